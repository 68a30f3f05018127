"""The checks of what is installed: versions, the plugin and SGLang's contract, the kernel library, its self-test."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import __version__, contract, preflight
from ..config import Device
from ..errors import ExitCode, LibraryError, SelftestFailed
from ..native import library
from . import process
from .finding import Finding, Status, ok, warning

SELFTEST_LIMIT = 300.0
"""Seconds. It takes about one a GPU, and importing torch from a cold disk a minute."""

_NAMED = ("sglang", "torch", "triton", "flashinfer-python", "cuda-bindings", "nvidia-ml-py")
_WHEEL = "kdtree-verify"


def check_versions(needed: Sequence[str] = ("sglang", "torch")) -> Finding:
    """The versions of what computes together.

    Raises:
        LibraryError: The installed wheel is another than the one that runs.
    """
    found = {name: _version(name) for name in (_WHEEL, *_NAMED)}
    wheel = found[_WHEEL]
    if wheel is not None and wheel != __version__:
        what = "two versions of this package are mixed"
        raise LibraryError(
            what, f"the wheel is {wheel}, what runs is {__version__}", "reinstall the kdtree-verify wheel"
        )
    listed = ", ".join(f"{name} {value}" for name, value in found.items() if value is not None)
    text = f"Python {sys.version.split()[0]}, {listed or 'nothing of it'}"
    if lost := [name for name in needed if found[name] is None]:
        return warning(
            f"not installed for {sys.executable}: {', '.join(lost)}; {text}", "use the Python that has SGLang"
        )
    return ok(text)


def check_contract(allowed_plugins: str) -> Finding:
    """Raises ContractError where SGLang would not load the plugin, or is not the one that it was written for."""
    preflight.check_plugin(allowed_plugins)
    root = contract.installed_root()
    contract.check_sources(root)
    return ok(f"SGLang in {root} is as expected; plugin {preflight.NAME} will be loaded")


def check_library(directory: Path, device: Device) -> Finding:
    """Raises LibraryError where the kernel library is missing or foreign."""
    found = library.load(directory, device).description
    made_for = ", ".join(found.archs) or "host"
    return ok(f"{found.path}: {found.version}, {made_for}, sha256 {found.sha256[:12]}")


def check_selftest(device: Device, limit: float = SELFTEST_LIMIT) -> list[Finding]:
    """`kdtree selftest` on every GPU, in a process of its own.

    Raises:
        SelftestFailed: It does not end in time, or not by itself.
    """
    where = "cpu" if device is Device.CPU else "all"
    command = [sys.executable, "-m", "kdtree_verify.cli", "selftest", "--json", "--device", where]
    ended = process.run(command, limit)
    try:
        reports = json.loads(ended.output)["reports"]
    except (ValueError, KeyError):
        reports = []
    findings = [_passed(report) for report in reports if report["passed"]]
    if ended.code == 0 and findings:
        return findings
    lines = [line for line in ended.errors.splitlines() if line.startswith("kdtree: ") and ". Fix: " in line]
    if ended.code is None or not lines:
        fix = "run kdtree selftest, whose output a report needs"
        raise SelftestFailed("the self-test did not finish", ended.how(limit), fix)
    # Its own words and code.
    text, _, fix = lines[0].removeprefix("kdtree: ").partition(". Fix: ")
    return [*findings, Finding(Status.FAILED, text, fix, ExitCode(ended.code or ExitCode.LIBRARY))]


def _passed(report: dict[str, object]) -> Finding:
    cases = report.get("cases")
    count = len(cases) if isinstance(cases, list) else 0
    return ok(f"self-test on {report.get('device')} ({report.get('device_name')}): passed {count} cases")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
