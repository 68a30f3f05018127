"""What the compiled kernels take, as build/kernel-report.json tells: no GPU is needed to know that they fit sm_120."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "build" / "lib" / "libkdtree_verify_cuda.so"
PRODUCT = "sm_120a"
ATTENTION = "kdtree_attend_"


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    path = ROOT / "build" / "kernel-report.json"
    if not path.exists():
        pytest.skip("build/kernel-report.json is not there (`make kernel` writes it)")
    return json.loads(path.read_text())


def _kernels(report: dict[str, Any], arch: str) -> dict[str, dict[str, Any]]:
    return {kernel["kernel"]: kernel for kernel in report["kernels"] if kernel["arch"] == arch}


def test_it_tells_of_the_library_that_is_there(report: dict[str, Any]) -> None:
    assert report["sha256"] == hashlib.sha256(LIBRARY.read_bytes()).hexdigest()


def test_the_product_s_kernels_are_in_it(report: dict[str, Any]) -> None:
    kernels = _kernels(report, PRODUCT)
    assert {"kdtree_merge", "kdtree_compare_rows", "kdtree_compare_total", "kdtree_count_one"} < set(kernels)
    assert any(name.startswith(ATTENTION) for name in kernels)
    for arch in {kernel["arch"] for kernel in report["kernels"]}:
        assert set(_kernels(report, arch)) == set(kernels)


def test_every_kernel_fits_sm_120(report: dict[str, Any]) -> None:
    for kernel in report["kernels"]:
        assert kernel["spill_store_bytes"] == kernel["spill_load_bytes"] == kernel["stack_bytes"] == 0, kernel
        assert kernel["instructions"]["LDL"] == kernel["instructions"]["STL"] == 0, kernel
        assert kernel["registers"] * kernel["threads"] <= 65536, kernel
        assert 0 <= kernel["shared_bytes"] <= 101_376 == report["shared_limit_bytes"], kernel


def test_attention_uses_the_matrix_units(report: dict[str, Any]) -> None:
    """And ldmatrix and bulk copies feed them; its warps trade registers, which ptxas gives up where there is a call."""
    for kernel in report["kernels"]:
        if kernel["kernel"].startswith(ATTENTION):
            assert kernel["dynamic_shared_bytes"] > 49_152, kernel
            assert min(kernel["instructions"][name] for name in ("HMMA", "LDSM", "UBLKCP")) > 0, kernel
            assert kernel["instructions"]["USETMAXREG"] == 2, kernel


@pytest.mark.parametrize(("arguments", "code"), [([], 64), (["nowhere.so", "out.json"], 70)])
def test_report_refuses(arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("cuobjdump", "nvdisasm"):
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = [sys.executable, ROOT / "kernel" / "report.py", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith("kdtree: ")
    assert "Fix: " in done.stderr
    assert not (tmp_path / "out.json").exists()
