#!/usr/bin/env python3
"""Unpacks this bundle into a folder for PYTHONPATH; `. FOLDER/environment` in bash puts it there.

install FOLDER      make FOLDER, or bring it up to date; one that is up to date is left as it is

It needs Python's standard library only. The folder appears whole: an interrupted call leaves FOLDER.part, which the
next one removes.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
import tarfile
from pathlib import Path

SUMS = "SHA256SUMS"
ARCHIVE = "site.tar.xz"
STAMP = ".gpu-bundle"
EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_INTERRUPTED = 64, 69, 130


class InstallError(Exception):
    """Why nothing was unpacked: one line, with what was found and a fix."""


def main(argv: list[str], bundle: Path) -> int:
    """The command; bundle is the folder that the archive lies in."""
    if argv in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if len(argv) != 1 or argv[0].startswith("-") or not argv[0]:
        found = " ".join(argv) or "nothing"
        print(f"kdtree: install takes one folder: {found}. Fix: install FOLDER", file=sys.stderr)
        return EXIT_USAGE
    try:
        print(f"gpu-bundle: {install(bundle, Path(argv[0]).resolve())}")
    except InstallError as error:
        print(f"kdtree: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except (OSError, tarfile.TarError) as error:
        print(f"kdtree: {argv[0]} cannot be made: {error}. Fix: room and rights there", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def install(bundle: Path, folder: Path) -> str:
    """Makes the folder what the bundle says; returns what was done. Raises InstallError."""
    sums = bundle / SUMS
    if not sums.is_file():
        raise InstallError(f"the bundle is not whole: no {SUMS} in {bundle}. Fix: copy it again, or run ci/gpu-bundle")
    with sums.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two at once would remove each other's part
        stamp = lock.read()
        if folder.exists():
            found = folder / STAMP
            if found.is_file() and found.read_text() == stamp:
                return f"{folder} is up to date"
            if not found.is_file() and not (folder.is_dir() and not any(folder.iterdir())):
                raise InstallError(f"{folder} is not this bundle's: it has no {STAMP}. Fix: name another folder")
        check(bundle, stamp)
        return unpack(bundle / ARCHIVE, folder, stamp)


def check(bundle: Path, sums: str) -> None:
    """Every file that the sums name is there, and is what it was. Raises InstallError for the first that is not."""
    for line in sums.splitlines():
        digest, _, name = line.partition("  ")
        file = bundle / name
        if not file.is_file():
            raise InstallError(f"the bundle is not whole: no {name} in {bundle}. Fix: copy it again")
        with file.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != digest:
                raise InstallError(f"the bundle is not whole: {name} is not what was made. Fix: copy it again")


def unpack(archive: Path, folder: Path, stamp: str) -> str:
    """The archive's content beside the folder, the stamp last, then in its place by one rename."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tarfile.open(archive) as content:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.2 has none; what is unpacked is known by its sum
            content.extractall(part, filter="data")
        else:
            content.extractall(part)
    files = sum(path.is_file() for path in part.rglob("*"))
    (part / STAMP).write_text(stamp)
    if folder.exists():
        shutil.rmtree(folder)
    part.rename(folder)
    return f"{folder} made, {files} files; in bash: . {folder / 'environment'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parent))
