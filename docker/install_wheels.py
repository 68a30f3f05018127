#!/usr/bin/env python3
"""Adds our wheel, and what it needs and the base lacks: install_wheels.py OURS PINS OFFLINE

Run by the base's own Python inside the build. OURS: folder with the kdtree-verify wheel. PINS: folder with pins.toml,
whose set runtime-added is installed by hash where missing, and its reader, pinning/lockfile.py. OFFLINE: folder of
wheels to take those from instead of the index; may be empty. Nothing that was installed before may change: that is
compared.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

EXIT_USAGE = 64
EXIT_CONTRACT = 78
OUR_NAME = "kdtree-verify"


def installed() -> dict[str, str]:
    """Every distribution of this Python, by normalized name, with its version: what `pip freeze` tells."""
    found = importlib.metadata.distributions()
    return {re.sub(r"[-_.]+", "-", item.metadata["Name"]).lower(): item.version for item in found}


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "install"]
    subprocess.run([*command, "--no-deps", "--root-user-action=ignore", *arguments], check=True)


def install_missing(wanted: Iterable[tuple[str, str]], before: dict[str, str], offline: Path) -> set[str]:
    """Installs those of `wanted` (name, pip's requirement line with hashes) that are missing; their names."""
    missing = {name: line for name, line in wanted if name not in before}
    if missing:
        source = ["--no-index", f"--find-links={offline}"] if any(offline.glob("*.whl")) else []
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
            requirements.write("".join(f"{line}\n" for line in missing.values()))
            requirements.flush()
            pip("--require-hashes", "--only-binary=:all:", *source, f"--requirement={requirements.name}")
    return set(missing)


def differences(before: dict[str, str], after: dict[str, str], expected: set[str]) -> list[str]:
    """What is not as it was, apart from the expected additions; empty when all is well."""
    changed = [
        f"{name} {version} became {after.get(name, 'nothing')}"
        for name, version in before.items()
        if after.get(name) != version
    ]
    added = [f"{name} {after[name]} came along" for name in sorted(after.keys() - before.keys() - expected)]
    return changed + added


def main(argv: list[str]) -> int:
    if len(argv) != 3:
        print(__doc__, file=sys.stderr)
        return EXIT_USAGE
    ours, pins_folder, offline = map(Path, argv)
    sys.path.insert(0, str(pins_folder))
    from pinning import lockfile

    before = installed()
    wanted = [(wheel.normalized, wheel.pip_line) for wheel in lockfile.wheels(lockfile.load(), "runtime-added")]
    added = install_missing(wanted, before, offline)
    # By its name and not by its file: pip would note the file's path, which is of this build, in the image.
    pip("--no-index", f"--find-links={ours}", OUR_NAME)
    importlib.invalidate_caches()
    found = differences(before, installed(), added | {OUR_NAME})
    for difference in found:
        fix = "pin wheels in ci/pins.toml that go with this base"
        print(f"kdtree: the base's packages have changed: {difference}. Fix: {fix}", file=sys.stderr)
    print(f"kdtree: added {', '.join(sorted(added | {OUR_NAME}))} to {len(before)} packages of the base")
    return EXIT_CONTRACT if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
