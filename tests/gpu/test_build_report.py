"""What the compiled kernels take, as build/kernel-report.json tells: no GPU is needed to know that they fit sm_120."""

from __future__ import annotations

import hashlib
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.model import MMAS_A_WARP

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "build" / "lib" / "libkdtree_verify_cuda.so"
PRODUCT = "sm_120a"
ATTENTION = "kdtree_attend_"
LOOPS = 2
"""Of an attention kernel: steps of prefix and of draft tokens."""

WITH_A_CALL = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'other' for 'sm_90a'
ptxas info    : Function properties for other
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    256 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 256 bytes cumulative stack size
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 512 bytes smem
ptxas info    : Function properties for _Z1fiPKi
    16 bytes stack frame, 0 bytes spill stores, 12 bytes spill loads
"""


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
    others = "merge", "compare_rows", "compare_total", "fill_box", "count_one", "stamp_time", "gate_indptrs"
    assert {f"kdtree_{name}" for name in others} < set(kernels)
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
            assert kernel["instructions"]["HMMA"] == LOOPS * MMAS_A_WARP, kernel
            assert min(kernel["instructions"][name] for name in ("LDSM", "UBLKCP")) > 0, kernel
            assert kernel["instructions"]["USETMAXREG"] == 2, kernel


def test_a_called_function_s_stack_and_spills_are_its_module_s_kernels() -> None:
    """ptxas does not say who calls it; a kernel's own are told before, and stay."""
    names = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
    found = runpy.run_path(str(ROOT / "kernel" / "report.py"))["compiled"](WITH_A_CALL)
    properties = {kernel: tuple(found[kernel, "sm_90a"][name] for name in names) for kernel, _ in found}
    assert properties == {"other": (0, 0, 0), "first": (256, 8, 12), "second": (16, 0, 12)}
    assert found["second", "sm_90a"]["registers"] == 12
    assert found["second", "sm_90a"]["static_shared_bytes"] == 512


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """cuobjdump and nvdisasm that say nothing; the folder that they are in."""
    for tool in ("cuobjdump", "nvdisasm"):
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def refused(tools: Path, *arguments: str) -> tuple[int, str]:
    """What report.py's exit code and line on stderr are; it writes nothing."""
    program = [sys.executable, ROOT / "kernel" / "report.py", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tools)
    (line,) = done.stderr.splitlines()
    assert line.startswith("kdtree: ")
    assert "Fix: " in line
    assert not (tools / "out.json").exists()
    return done.returncode, line


@pytest.mark.parametrize(("arguments", "code"), [([], 64), (["nowhere.so", "out.json"], 70)])
def test_report_refuses(arguments: list[str], code: int, tools: Path) -> None:
    assert refused(tools, *arguments)[0] == code


@pytest.mark.parametrize(
    ("cuobjdump", "words"),
    [("echo it has no device code; exit 255", "cuobjdump: it has no device code"), ("exit 0", "file too short")],
)
def test_a_library_that_is_none_is_refused(cuobjdump: str, words: str, tools: Path) -> None:
    (tools / "x.so").write_bytes(b"\x7fELF")
    (tools / "x.ptxas").write_text(WITH_A_CALL)
    (tools / "cuobjdump").write_text(f"#!/bin/sh\n{cuobjdump}\n")
    code, line = refused(tools, "x.so", "out.json")
    assert code == 70
    assert words in line
