#!/usr/bin/env python3
"""Fills build/wheelhouse with locked wheels.

  ci/wheelhouse SET...               download what is missing of these sets
  ci/wheelhouse --into FOLDER SET    that, then install the set into a new folder, by hash and without an index

Every file is checked against pins.toml; what is there already is not asked for again, and what came before a
broken download stays. The index is whatever pip is configured with; KDTREE_TORCH_INDEX adds one, for torch's
CPU build where the configured index lacks it. Wheels are chosen for the test environment's Python (pins.toml,
[python] test), whichever Python runs this.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from pinning import lockfile
from pinning.lockfile import PinsError, Wheel

BUILD = Path(__file__).resolve().parents[1] / "build"
WHEELHOUSE = BUILD / "wheelhouse"
PIP_VENV = BUILD / "pip"
EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_INTERRUPTED = 64, 69, 130
OLDEST_GLIBC, NEWEST_GLIBC = 5, 36  # manylinux_2_5 .. Debian 12's own


def main(argv: list[str]) -> int:
    try:
        match argv:
            case ["--into", folder, set_name]:
                fill([set_name])
                install(set_name, Path(folder))
            case [first, *_] if not first.startswith("-"):
                fill(argv)
            case ["-h" | "--help"]:
                print(__doc__)
            case _:
                print(__doc__, file=sys.stderr)
                return EXIT_USAGE
    except PinsError as error:
        print(f"kdtree: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"kdtree: {BUILD} cannot be filled: {error}. Fix: room and rights there", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def fill(set_names: list[str]) -> None:
    """Downloads what the wheelhouse lacks of the sets. Raises PinsError naming the wheel that cannot be had."""
    table = lockfile.load()
    WHEELHOUSE.mkdir(parents=True, exist_ok=True)
    with (WHEELHOUSE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for set_name in set_names:  # one at a time: two sets may hold two versions of a project
            wanted = lockfile.wheels(table, set_name)
            missing = lacking(wanted)
            if not missing:
                continue
            print(f"wheelhouse: {set_name}: downloading {len(missing)} of {len(wanted)} wheels", file=sys.stderr)
            pip = Downloader(lockfile.get(table, "python.test"))
            if pip.download(missing) is None:
                continue
            # One of them failed: fetch singly, so that the rest is kept and the culprit has a name.
            for wheel in lacking(wanted):
                if reason := pip.download([wheel]):
                    raise PinsError(f"no wheel for {wheel.requirement}: {reason}. Fix: {_fix(wheel)}")


def present() -> dict[tuple[str, str], Path]:
    """The wheelhouse's files by their projects' normalized names and versions."""
    found = {}
    for path in WHEELHOUSE.glob("*.whl"):
        name, version = path.name.split("-")[:2]
        found[lockfile.normalize(name), version] = path
    return found


def lacking(wanted: list[Wheel]) -> list[Wheel]:
    """The wheels with no file of a pinned hash; a file of another hash under the same version is removed."""
    files = present()
    missing = []
    for wheel in wanted:
        file = files.get((wheel.normalized, wheel.version))
        if file and _sha256(file) in wheel.sha256:
            continue
        if file:
            file.unlink()
        missing.append(wheel)
    return missing


def install(set_name: str, folder: Path) -> None:
    """Replaces the folder by a fresh installation of the set; a broken one never stands under its name."""
    partial = folder.with_name(folder.name + ".partial")
    requirements = WHEELHOUSE / f"{set_name}.txt"
    requirements.write_text("".join(f"{wheel.pip_line}\n" for wheel in lockfile.wheels(lockfile.load(), set_name)))
    shutil.rmtree(partial, ignore_errors=True)
    reason = _pip(
        "install", "--no-deps", "--require-hashes", "--no-index", f"--find-links={WHEELHOUSE}",
        f"--target={partial}", f"--requirement={requirements}",
    )  # fmt: skip
    if reason:
        raise PinsError(f"wheel set {set_name} cannot be installed into {folder}: {reason}")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


class Downloader:
    """Fetches wheels for one Python version on Debian 12's libc and older ones."""

    def __init__(self, python_version: str) -> None:
        tag = "cp" + python_version.replace(".", "")
        platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1)]
        platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
        self.arguments = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation=cp"]
        self.arguments += [f"--python-version={python_version}", f"--abi={tag}", "--abi=abi3", "--abi=none"]
        self.arguments += [f"--platform={platform}" for platform in platforms]
        if index := os.environ.get("KDTREE_TORCH_INDEX"):
            self.arguments += ["--extra-index-url", index]

    def download(self, some: list[Wheel]) -> str | None:
        """Moves the files into the wheelhouse when all came; else nothing is moved and pip's reason returned."""
        partial = WHEELHOUSE / ".partial"
        partial.mkdir(exist_ok=True)
        requirements = partial / "requirements.txt"
        requirements.write_text("".join(f"{wheel.pip_line}\n" for wheel in some))
        reason = _pip("download", *self.arguments, f"--dest={partial}", f"--requirement={requirements}")
        if reason is None:
            for file in partial.glob("*.whl"):
                file.replace(WHEELHOUSE / file.name)
        return reason


def _pip(verb: str, *arguments: str) -> str | None:
    """Runs pip; None when it succeeded, else its last error. The pip is of an environment of its own, so that
    none need be installed on the machine."""
    python = PIP_VENV / "bin" / "python"
    if not python.exists():
        # Whole or not at all: one that was interrupted has a Python, and no pip.
        part = PIP_VENV.with_name(f"{PIP_VENV.name}.part")
        venv.create(part, clear=True, with_pip=True, symlinks=True)
        shutil.rmtree(PIP_VENV, ignore_errors=True)
        part.rename(PIP_VENV)
    options = ["--quiet", "--retries=2", "--disable-pip-version-check"]
    result = subprocess.run(
        [python, "-m", "pip", verb, *options, *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if result.returncode == 0:
        return None
    return _reason(result.stderr)


def _reason(stderr: str) -> str:
    """What to tell of pip's words: a connection that broke explains the rest, else its last error does."""
    if broken := re.findall(r"after connection broken by '(.*)': /", stderr):
        return "the index does not answer, " + re.sub(r"<[^<>]*>: ", "", broken[-1])
    errors = re.findall(r"^ERROR: (.*)", stderr, re.M)
    return errors[-1] if errors else "pip gave no reason"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fix(wheel: Wheel) -> str:
    if wheel.version.endswith("+cpu"):
        return "set KDTREE_TORCH_INDEX to an index of PyTorch's CPU wheels (README, Building)"
    return "check the network and pip's index (pip config list), then run it again; it resumes"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
