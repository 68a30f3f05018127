"""Packs: folders as archives that are carried to another machine, with a sum beside each."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from pathlib import Path

from .errors import Unavailable

STAMP = ".kdtree-pack"


def sums_of(archive: Path) -> Path:
    """The file beside an archive that holds its sum."""
    return archive.with_name(f"{archive.name}.sha256")


def write(folder: Path, archive: Path) -> None:
    """Packs the folder's content; the same content is the same archive. It appears when it is whole."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f"{archive.name}.part")
    with tarfile.open(part, "w:xz", preset=6) as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, str(path.relative_to(folder)), recursive=False, filter=_plain)
    with part.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    sums_of(archive).write_text(f"{digest}  {archive.name}\n")
    part.rename(archive)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def unpack(archive: Path, folder: Path) -> None:
    """Makes `folder` the pack's content, unless it is that already. Raises Unavailable."""
    carry = "Fix: make it with ci/gpu-container pack, and carry it here"
    if not archive.is_file() or not sums_of(archive).is_file():
        raise Unavailable(f"no pack: {archive} or its .sha256 is not there. {carry}")
    digest = sums_of(archive).read_text().partition(" ")[0]
    stamp = folder / STAMP
    if stamp.is_file() and stamp.read_text() == digest:
        return
    if folder.exists() and not stamp.is_file() and any(folder.iterdir()):
        raise Unavailable(f"{folder} is not a pack's: it has no {STAMP}. Fix: name another folder")
    with archive.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != digest:
            raise Unavailable(f"the pack is not whole: {archive} is not what was made. {carry}")
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.2 has none; what is unpacked is known by its sum
            tar.extractall(part, filter="data")
        else:
            tar.extractall(part)
    (part / STAMP).write_text(digest)
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(part, folder)
