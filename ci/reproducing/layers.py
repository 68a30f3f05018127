"""What differs between two layers, file by file."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime

from .archive import Archive, Layer
from .content import explain

LARGEST = 64 << 20
"""Bytes of a file that are held in memory to tell what differs in it."""
_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard link",
}
Entry = dict[str, str]
"""What a layer says of one path, by what it is called."""


def differences(a: tuple[Archive, Layer], b: tuple[Archive, Layer]) -> Iterator[tuple[str, list[str]]]:
    """The paths that differ, each with lines that say in what; of layers with the same files, what else it is."""
    one, other = _entries(*a), _entries(*b)
    changed = [path for path in one if path in other and one[path] != other[path]]
    for where, only in (("A", one.keys() - other.keys()), ("B", other.keys() - one.keys())):
        for path in sorted(only):
            yield path, [f"only in {where}: {_told({**one, **other}[path])}"]
    contents = [path for path in changed if "" != one[path]["content"] != other[path]["content"] != ""]
    texts, others = _contents(*a, contents), _contents(*b, contents)
    for path in changed:
        lines = [
            f"{what} {one[path][what]} | {other[path][what]}"
            for what in one[path]
            if what != "content" and one[path][what] != other[path][what]
        ]
        if path in contents:
            small = path in texts and path in others
            lines += explain(path, texts[path], others[path]) if small else ["content, of too many bytes to show"]
        yield path, lines
    if one == other:
        yield "", [_beside_the_files(a[1], b[1], [*one], [*other])]


def _beside_the_files(a: Layer, b: Layer, one: list[str], other: list[str]) -> str:
    if a.diff_id == b.diff_id:
        return "the same tar, compressed otherwise: another engine, or other settings of it"
    for left, right in zip(one, other, strict=True):
        if left != right:
            return f"the same files in another order, from {left} | {right}"
    return "the same files, and another form of tar"


def _entries(archive: Archive, layer: Layer) -> dict[str, Entry]:
    with archive.unpacked(layer) as tar:
        return {member.name: _entry(tar, member) for member in tar}


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    content = tar.extractfile(member) if member.isreg() else None
    extended = sorted((name, value) for name, value in member.pax_headers.items() if name not in ("mtime", "path"))
    return {
        "kind": _KINDS.get(member.type, "special file"),
        "mode": f"{member.mode:04o}",
        "owner": f"{member.uid}:{member.gid}",
        "owner's name": f"{member.uname}:{member.gname}",
        "size": str(member.size),
        "time": datetime.fromtimestamp(member.mtime, UTC).isoformat(" ").removesuffix("+00:00"),
        "target": member.linkname,
        "extended": str(extended),
        "content": hashlib.file_digest(content, "sha256").hexdigest() if content else "",  # type: ignore[arg-type]
    }


def _told(entry: Entry) -> str:
    target = f" to {entry['target']}" if entry["target"] else ""
    return f"{entry['kind']}{target}, mode {entry['mode']}, owner {entry['owner']}, {entry['size']} bytes"


def _contents(archive: Archive, layer: Layer, paths: list[str]) -> dict[str, bytes]:
    """By path, what files hold that are small enough; a stream is read once more for it."""
    found: dict[str, bytes] = {}
    if paths:
        with archive.unpacked(layer) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.name in paths and member.size <= LARGEST else None
                if content:
                    found[member.name] = content.read()
    return found
