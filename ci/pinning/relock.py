"""Resolves a wheel set's roots with pip and rewrites its lock table in pins.toml.

The resolution uses this machine's pip configuration; what it found is then fixed by hash. Wheels only:
nothing that would have to be built on the way.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import lockfile
from .files import replace
from .lockfile import PINS_FILE, ROOT, PinsError, Wheel, normalize

# A wheel for another Python is asked for by platform tag; pip matches each tag exactly, so all are listed.
PLATFORMS = ("2_34", "2_31", "2_28", "2_27", "2_24", "2_17")


class Unresolved(PinsError):
    """There is no resolution, or no way to it."""

    code = os.EX_UNAVAILABLE


def relock(pins: dict[str, Any], set_name: str) -> None:
    """Rewrites [wheels.SET.lock]. The set's keys are read: roots, roots-without-dependencies, adds-to, pythons."""
    table = lockfile.wheel_set(pins, set_name)
    base = {wheel.normalized: wheel for other in table.get("adds-to", []) for wheel in lockfile.wheels(pins, other)}
    with tempfile.TemporaryDirectory(prefix="kdtree-lock-") as scratch:
        folder = Path(scratch)
        constraints = folder / "constraints.txt"
        constraints.write_text("".join(f"{wheel.requirement}\n" for wheel in base.values()))
        if table.get("roots"):
            _download(folder, "--constraint", str(constraints), *table["roots"])
        for roots in _rounds(table.get("roots-without-dependencies", [])):
            _download(folder, "--no-deps", *roots)
        found = {wheel.requirement: wheel for wheel in map(_identify, folder.glob("*.whl"))}
        added = [wheel for wheel in found.values() if wheel.normalized not in base]
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        for python in table.get("pythons", [running]):
            if python != running:
                _download_for(folder, python, added)
        lock = _collect(folder, {wheel.normalized for wheel in added})
    _rewrite(set_name, lock)
    print(f"pins: [wheels.{set_name}.lock] now has {len(lock)} wheels")


def _rounds(roots: list[str]) -> list[list[str]]:
    """The roots, parted so that no part has a project twice: pip takes one version at a time."""
    parts: list[list[str]] = []
    for root in roots:
        project = root.partition("==")[0] + "=="
        free = next((part for part in parts if not any(other.startswith(project) for other in part)), None)
        if free is None:
            parts.append(free := [])
        free.append(root)
    return parts


def _download(folder: Path, *arguments: str) -> None:
    command = [_python_with_pip(), "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    if subprocess.run([*command, "--dest", folder, *arguments]).returncode:
        fix = "roots that go together, the network, room for the downloads"
        raise Unresolved(f"pip could not resolve the set; its words are above. Fix: {fix}")


def _python_with_pip() -> str | Path:
    """This Python, or where it has no pip, as Debian's, the test environment's."""
    if importlib.util.find_spec("pip"):
        return sys.executable
    if (python := ROOT / "build" / "venv" / "bin" / "python").exists():
        return python
    raise Unresolved("no pip to resolve with. Fix: ci/venv")


def _download_for(folder: Path, python: str, found: list[Wheel]) -> None:
    tags = [f"--platform=manylinux_{tag}_x86_64" for tag in PLATFORMS] + ["--platform=manylinux2014_x86_64"]
    requirements = [wheel.requirement for wheel in found]
    _download(folder, "--no-deps", f"--python-version={python}", "--implementation=cp", *tags, *requirements)


def _identify(path: Path) -> Wheel:
    name, version = path.name.split("-")[:2]
    return Wheel(name, version, (hashlib.sha256(path.read_bytes()).hexdigest(),))


def _collect(folder: Path, wanted: set[str]) -> list[Wheel]:
    """The wanted projects' files in the folder, one entry a version with every file's hash."""
    found: dict[str, Wheel] = {}
    for path in sorted(folder.glob("*.whl")):
        wheel = _identify(path)
        if wheel.normalized in wanted:
            known = found.get(wheel.requirement)
            hashes = sorted({*wheel.sha256, *(known.sha256 if known else ())})
            found[wheel.requirement] = Wheel(normalize(wheel.name), wheel.version, tuple(hashes))
    return [found[name] for name in sorted(found)]


def _rewrite(set_name: str, lock: list[Wheel]) -> None:
    """Replaces the body of the set's lock table; everything else in the file stays as it is."""
    header = f"[wheels.{set_name}.lock]\n"
    text = PINS_FILE.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(header) + r"(?:\"[^\n]*\n)*")
    body = header + "".join(f'"{wheel.requirement}" = {_value(wheel.sha256)}\n' for wheel in lock)
    text, count = pattern.subn(lambda _: body, text)
    if count != 1:
        raise PinsError(f"pins.toml has {count} tables named {header.strip()}, expected one")
    replace(PINS_FILE, text)


def _value(hashes: tuple[str, ...]) -> str:
    quoted = [f'"{digest}"' for digest in hashes]
    return quoted[0] if len(quoted) == 1 else f"[{', '.join(quoted)}]"
