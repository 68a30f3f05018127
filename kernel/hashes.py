#!/usr/bin/env python3
"""Holds what the kernel compiles to against kernel/hashes.toml, the one table of it.

  hashes.py sources            the table is of these sources: fails, and says how to renew it, where it is not
  hashes.py check FOLDER       the libraries in FOLDER, with what kernel/build.sh noted beside them: fails where one
                               differs from the table's, for the same sources and a toolchain that the table knows
  hashes.py record FOLDER [OF] writes them into the table, as the one row of their toolchain; its name is OF, else the
                               one that it has, else this system's

A cubin depends on nvcc alone, a library on its host compiler, linker and C library, too: each has its own key.
check and record need cuobjdump on PATH. Exit codes: 0, 1 something differs, 64 bad usage, 69 something is missing.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
TABLE = FOLDER / "hashes.toml"
LIBRARIES = ("host", "cuda")
ARCH = "sm_120a"
UNKNOWN = "unknown"
HEAD = """\
# sha256 of what the kernel compiles to, by toolchain. `ci/kernel` compares what it compiles with this, and so does CI;
# `ci/kernel --record` writes it (kernel/hashes.py, docs/supply-chain/reproduce.md). A toolchain that is not here is
# said to be unknown, and nothing is compared; a row that reads "unknown" has not been compiled anywhere yet.
"""


class HashesError(Exception):
    """There is nothing to compare, or the table cannot be read; the text is one line, with its fix."""


@dataclass(frozen=True)
class Library:
    """A compiled library: its hash, what compiled it, and the hash of its machine code where it has some."""

    name: str
    sha256: str
    tools: frozenset[str]
    cubins: str | None

    @property
    def nvcc(self) -> str:
        return next((tool for tool in self.tools if tool.startswith("nvcc ")), UNKNOWN)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def source_hash(name: str) -> str:
    """What kernel/build.sh says of the sources, and the library of itself."""
    command = ["sh", str(FOLDER / "build.sh"), "hash", name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def cubins(library: Path) -> str | None:
    """One hash over the library's cubins for ARCH, in any order; None where it holds none."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["cuobjdump", "--extract-elf", "all", str(library.resolve())]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        except OSError as error:
            raise HashesError("a CUDA tool is missing: cuobjdump. Fix: PATH=$(ci/cuda-toolchain):$PATH") from error
        except subprocess.CalledProcessError as error:
            said = (error.stderr or error.stdout).decode(errors="replace").strip().splitlines() or ["no reason given"]
            raise HashesError(f"no machine code to read: {library.name}: {said[-1]}. Fix: compile it anew") from error
        found = sorted(sha256(file.read_bytes()) for file in Path(folder).glob(f"*.{ARCH}.cubin"))
    return sha256("\n".join(found).encode()) if found else None


def read(folder: Path, name: str) -> Library:
    """A library and what build.sh noted beside it."""
    library = folder / f"libkdtree_verify_{name}.so"
    try:
        content, tools = library.read_bytes(), library.with_suffix(".toolchain").read_text().splitlines()
    except OSError as error:
        raise HashesError(f"no library to compare: {error.filename} cannot be read. Fix: ci/kernel") from error
    return Library(name, sha256(content), frozenset(tools), cubins(library) if name == "cuda" else None)


def load() -> dict[str, Any]:
    try:
        return tomllib.loads(TABLE.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise HashesError(f"{TABLE.name} cannot be read: {error}. Fix: git checkout kernel/{TABLE.name}") from error


def of_other_sources(table: dict[str, Any]) -> list[str]:
    """The libraries whose sources are not those that the table is of."""
    return [name for name in LIBRARIES if table["sources"][name] != source_hash(name)]


def expected(table: dict[str, Any], library: Library) -> dict[str, str]:
    """What the table says of a library, by what it is the hash of; nothing where it does not know."""
    found = {}
    rows = (row for row in table["toolchain"] if library.tools <= {*row["tools"]})
    if row := next((row for row in rows if row[library.name] != UNKNOWN), None):
        found[f"libkdtree_verify_{library.name}.so"] = row[library.name]
    if library.cubins and library.nvcc in table["cubins"]:
        found[f"the {ARCH} cubins"] = table["cubins"][library.nvcc]
    return found


def compare(table: dict[str, Any], library: Library) -> list[str]:
    """What differs from the table, a line each; says on stdout what was compared and what could not be."""
    known = expected(table, library)
    actual = {f"libkdtree_verify_{library.name}.so": library.sha256}
    if library.cubins:
        actual[f"the {ARCH} cubins"] = library.cubins
    for what in actual:
        if what not in known:
            print(f"hashes: {what}: {UNKNOWN} for {'; '.join(sorted(library.tools))}: {actual[what]}")
        elif known[what] == actual[what]:
            print(f"hashes: {what}: as recorded")
    return [
        f"kdtree: {what} is not what this toolchain made of these sources: {actual[what]}, recorded is {value}. "
        "Fix: find what changed beside them; where it is meant, ci/kernel --record"
        for what, value in known.items()
        if actual[what] != value
    ]


def check(folder: Path) -> int:
    table = load()
    others = of_other_sources(table)
    for name in others:
        print(f"hashes: the {name} library's sources are not those of kernel/{TABLE.name}: nothing is compared")
    wrong = [line for name in LIBRARIES if name not in others for line in compare(table, read(folder, name))]
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


def check_sources() -> int:
    others = of_other_sources(load())
    for name in others:
        print(
            f"kdtree: kernel/{TABLE.name} is of other sources: the {name} library's have changed. "
            "Fix: ci/kernel --record, and commit the table with the sources",
            file=sys.stderr,
        )
    return 1 if others else 0


def record(folder: Path, name: str | None = None) -> int:
    """Renews a toolchain's row. What other rows say of a library whose sources have changed becomes unknown."""
    table = load()
    for other in of_other_sources(table):
        table["sources"][other] = source_hash(other)
        for row in table["toolchain"]:
            row[other] = UNKNOWN
        if other == "cuda":
            table["cubins"] = {}
    host, cuda = (read(folder, library) for library in LIBRARIES)
    if cuda.cubins:
        table["cubins"][cuda.nvcc] = cuda.cubins
    tools = sorted(host.tools | cuda.tools)
    known = (row["of"] for row in table["toolchain"] if row["tools"] == tools)
    name = name or next(known, None) or platform.freedesktop_os_release()["PRETTY_NAME"]
    others = [row for row in table["toolchain"] if row["of"] != name and row["tools"] != tools]
    table["toolchain"] = [*others, {"of": name, "tools": tools, "host": host.sha256, "cuda": cuda.sha256}]
    partial = TABLE.with_suffix(".part")
    partial.write_text(written(table), encoding="utf-8")
    partial.replace(TABLE)
    print(f"hashes: kernel/{TABLE.name}: {name} is recorded")
    return 0


def written(table: dict[str, Any]) -> str:
    """The table as TOML; a JSON string and a list of them are TOML, too."""
    lines = [HEAD, "# What `kernel/build.sh hash` says.", "[sources]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in table["sources"].items()]
    lines += ["", f"# One hash over the cubins for {ARCH}, by the build of nvcc.", "[cubins]"]
    lines += [f"{json.dumps(nvcc)} = {json.dumps(value)}" for nvcc, value in table["cubins"].items()]
    for row in table["toolchain"]:
        lines += ["", "[[toolchain]]", f"of = {json.dumps(row['of'])}", "tools = ["]
        lines += [*(f"    {json.dumps(tool)}," for tool in row["tools"]), "]"]
        lines += [f"{library} = {json.dumps(row[library])}" for library in LIBRARIES]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["sources"]:
                return check_sources()
            case ["check", folder]:
                return check(Path(folder))
            case ["record", folder, *name] if len(name) < 2:
                return record(Path(folder), *name)
    except HashesError as error:
        print(f"kdtree: {error}", file=sys.stderr)
        return 69
    print(__doc__, file=sys.stderr)
    return 64


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
