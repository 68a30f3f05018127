"""The contract check (kdtree_verify.contract) on SGLang's releases, each from its own unpacked wheel.

Nothing is installed and nothing of SGLang is imported: only its sources are read.
"""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

from kdtree_verify import contract
from kdtree_verify.errors import KdtreeError

from . import lockfile
from .lockfile import ROOT, PinsError

WHEELHOUSE = ROOT / "build" / "wheelhouse"
UNPACKED = ROOT / "build" / "sglang-releases"
SET = "sglang-releases"
# Where the contract's files are, in any of the releases; the first makes it a package that Python finds.
READ = ("sglang/__init__.py", "sglang/srt/layers/", "sglang/srt/model_executor/", "sglang/kernels/ops/")


@dataclass(frozen=True)
class Verdict:
    """What the contract check says of one SGLang; no reason where it is as expected."""

    sglang: str
    reason: str | None

    @property
    def row(self) -> str:
        """As a line of the table in docs/supply-chain/pins.md."""
        return f"| {self.sglang} | {'refused' if self.reason else 'as expected'} | {self.reason or ''} |"


def check(root: Path, name: str) -> Verdict:
    """What the check says of the package folder `root`."""
    try:
        contract.check_sources(root)
    except KdtreeError as refused:
        return Verdict(name, f"{refused.what}: {refused.found}")
    return Verdict(name, None)


def check_all() -> list[Verdict]:
    """What it says of every pinned release, oldest first. Raises PinsError where a wheel cannot be had."""
    wanted = lockfile.wheels(lockfile.load(), SET)
    if subprocess.run([ROOT / "ci" / "wheelhouse", SET]).returncode:
        raise PinsError("SGLang's wheels cannot be had; why is above")
    return [check(_unpack(wheel) / "sglang", wheel.version) for wheel in wanted]


def _unpack(wheel: lockfile.Wheel) -> Path:
    """A folder with the sources in the wheel, made where it is not there; whole or not at all."""
    folder = UNPACKED / f"{wheel.version}-{wheel.sha256[0][:12]}"
    if folder.is_dir():
        return folder
    (file,) = WHEELHOUSE.glob(f"sglang-{wheel.version}-*.whl")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(file) as archive:
        sources = [name for name in archive.namelist() if name.startswith(READ)]
        archive.extractall(partial, [name for name in sources if name.endswith(".py")])
    partial.rename(folder)
    return folder
