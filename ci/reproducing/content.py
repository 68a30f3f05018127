"""What differs in two contents of one file: which member, section, value, line or byte."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

MOST_LINES = 12
"""Of one file. What is different in more places is told by the first."""
_SHOWN = 100  # characters of a value or a line
_PYC_HEADER = 16


def explain(name: str, a: bytes, b: bytes) -> list[str]:
    """Lines that tell how two contents differ, by the kind of file that they are."""
    for kind, reader in _KINDS:
        if kind(name, a) and kind(name, b):
            try:
                found = list(reader(a, b))
            except (ValueError, KeyError, struct.error, zipfile.BadZipFile):
                continue  # it is not what its name or its first bytes say
            if found:
                return _cut(found)
    return _cut(list(_bytes(a, b)))


def values(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """The places of two JSON documents that differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            where = f"{path}.{key}" if path else str(key)
            yield from values(a.get(key), b.get(key), where)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from values(one, other, f"{path}[{number}]")
    elif a != b:
        yield f"{path or 'the whole'}: {_short(json.dumps(a))} | {_short(json.dumps(b))}"


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - MOST_LINES
    return lines if more <= 0 else [*lines[:MOST_LINES], f"and {more} more"]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _wheel(a: bytes, b: bytes) -> Iterator[str]:
    """A zip's members: which, in what order, with what time and mode, and what is in them."""
    with zipfile.ZipFile(io.BytesIO(a)) as one, zipfile.ZipFile(io.BytesIO(b)) as other:
        names, others = one.namelist(), other.namelist()
        for where, only in (("A", set(names) - set(others)), ("B", set(others) - set(names))):
            yield from (f"member {name}: only in {where}" for name in sorted(only))
        common = [name for name in names if name in others]
        if common != [name for name in others if name in names]:
            yield "the members' order"
        for name in common:
            for what, of in _MEMBER.items():
                if of(one.getinfo(name)) != of(other.getinfo(name)):
                    yield f"member {name}: {what} {of(one.getinfo(name))} | {of(other.getinfo(name))}"
            contents = one.read(name), other.read(name)
            if contents[0] != contents[1]:
                yield from (f"member {name}: {line}" for line in explain(name, *contents))


_MEMBER: dict[str, Callable[[zipfile.ZipInfo], str]] = {
    "mode": lambda member: f"{member.external_attr >> 16:o}",
    "time": lambda member: "{}-{:02}-{:02} {:02}:{:02}:{:02}".format(*member.date_time),
    "compression": lambda member: f"{member.compress_type}, {member.compress_size} bytes",
}


def _elf(a: bytes, b: bytes) -> Iterator[str]:
    one, other = _sections(a), _sections(b)
    for name in sorted({*one, *other}):
        if name not in one or name not in other:
            yield f"section {name}: only in {'A' if name in one else 'B'}"
        elif one[name] != other[name]:
            yield f"section {name}: {next(_bytes(one[name], other[name]))}"


def _sections(data: bytes) -> dict[str, bytes]:
    """The sections of a 64-bit little-endian ELF file."""
    if data[4:6] != b"\x02\x01":
        raise ValueError("another class of ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + size * number) for number in range(count)]
    names_at = headers[names_index][4]
    found = {}
    for name_at, kind, _, _, offset, length in headers:
        name = data[names_at + name_at : data.index(b"\0", names_at + name_at)].decode()
        found[name] = b"" if kind == 8 else data[offset : offset + length]  # 8: takes no room in the file
    return found


def _pyc(a: bytes, b: bytes) -> Iterator[str]:
    """Compiled Python: what it was compiled from, or what it was compiled to."""
    if a[:_PYC_HEADER] != b[:_PYC_HEADER]:
        yield f"its header (Python, and the source's hash or time): {a[:_PYC_HEADER].hex()} | {b[:_PYC_HEADER].hex()}"
    if a[_PYC_HEADER:] != b[_PYC_HEADER:]:
        yield f"its code: {next(_bytes(a[_PYC_HEADER:], b[_PYC_HEADER:]))}"


def _json(a: bytes, b: bytes) -> Iterator[str]:
    yield from values(json.loads(a), json.loads(b))


def _text(a: bytes, b: bytes) -> Iterator[str]:
    """The lines that differ; where the numbers of lines do, the first."""
    one, other = a.decode().splitlines(), b.decode().splitlines()
    pairs = [(number, *pair) for number, pair in enumerate(zip(one, other, strict=False), 1) if pair[0] != pair[1]]
    if len(one) != len(other):
        yield f"{len(one)} lines | {len(other)} lines"
        pairs = pairs[:1]
    for number, left, right in pairs:
        yield f"line {number}: {_short(left)} | {_short(right)}"


def _bytes(a: bytes, b: bytes) -> Iterator[str]:
    first = next((at for at, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
    sizes = f"{len(a):,} bytes | {len(b):,} bytes, " if len(a) != len(b) else ""
    yield f"{sizes}from byte {first:,}: {a[first : first + 16].hex() or 'end'} | {b[first : first + 16].hex() or 'end'}"


_Kind = Callable[[str, bytes], bool]
_Reader = Callable[[bytes, bytes], Iterator[str]]
_KINDS: tuple[tuple[_Kind, _Reader], ...] = (
    (lambda name, data: data.startswith(b"PK\3\4"), _wheel),
    (lambda name, data: data.startswith(b"\x7fELF"), _elf),
    (lambda name, data: name.endswith(".pyc"), _pyc),
    (lambda name, data: name.endswith(".json"), _json),
    (lambda name, data: b"\0" not in data[:8192], _text),
)
