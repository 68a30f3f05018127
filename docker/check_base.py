#!/usr/bin/env python3
"""Asserts the base image's assumption list: check_base.py [--json] ASSUMPTIONS COMMIT

Run by the base's own Python inside the build. COMMIT is the pinned SGLang commit (a prefix). Prints one line for
each assumption that does not hold and exits 78; prints nothing and exits 0 when all hold. With --json every
assumption, on stdout, with what was found; the exit code is the same.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import stat
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

EXIT_USAGE = 64
EXIT_CONTRACT = 78

MOVED = "adapt docker/base-assumptions.toml and what reads it to this base, or pin another (ci/pins.toml)"


class Assumption(NamedTuple):
    """One thing that is taken for granted, what is there, and what to do where it is not so."""

    what: str
    found: str
    holds: bool
    fix: str = MOVED


def release(version: str) -> tuple[int, ...]:
    """The numbers before any suffix: "0.5.21.dev7+gcae69be5" is (0, 5, 21)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def within(version: str, table: Mapping[str, Any]) -> bool:
    """Whether table's minimum <= version < below, suffixes ignored."""
    return release(table["minimum"]) <= release(version) < release(table["below"])


def check_python(table: Mapping[str, Any]) -> Iterator[Assumption]:
    executable, version = table["executable"], ".".join(map(str, sys.version_info[:3]))
    yield Assumption(f"Python is {executable}", sys.executable, sys.executable == executable)
    yield Assumption("Python is a virtual environment's", sys.prefix, sys.prefix != sys.base_prefix)
    what = f"Python is at least {table['minimum']} and below {table['below']}"
    yield Assumption(what, version, within(version, table))
    for module in table["modules"]:
        there = importlib.util.find_spec(module) is not None
        yield Assumption(f"the base's Python has {module}", "it does" if there else "no such module", there)


def check_sglang(table: Mapping[str, Any], commit: str, environment: Mapping[str, str]) -> Iterator[Assumption]:
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        yield Assumption("SGLang is installed", "no distribution named sglang", False)
        return
    what = f"SGLang is at least {table['minimum']} and below {table['below']}"
    yield Assumption(what, version, within(version, table))
    spec = importlib.util.find_spec("sglang")
    origin = spec.origin if spec and spec.origin else "nowhere"
    what = f"SGLang is an editable install under {table['source']}"
    yield Assumption(what, f"imported from {origin}", Path(origin).is_relative_to(table["source"]))
    found = environment.get(table["commit-variable"], "")
    fix = "pin the image and its commit together (ci/pins.toml, docker/Dockerfile)"
    so = bool(commit) and found.startswith(commit)
    yield Assumption(f"{table['commit-variable']} begins with {commit}", f"'{found}'", so, fix)


def check_environment(table: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Assumption]:
    for name in table["unset"]:
        found = f"'{environment[name]}'" if name in environment else "it is not"
        yield Assumption(f"{name} is not set", found, name not in environment)
    for name, value in table["set"].items():
        yield Assumption(f"{name} is {value}", f"'{environment.get(name, '')}'", environment.get(name) == value)


def check_files(table: Mapping[str, Any]) -> Iterator[Assumption]:
    yield Assumption(f"the base's user is {table['uid']}", str(os.getuid()), os.getuid() == table["uid"])
    home = os.path.expanduser("~")
    yield Assumption(f"the home folder is {table['home']}", home, home == table["home"])
    for name in ("caches", "nvidia-entrypoint"):
        there = os.path.exists(table[name])  # false, too, where this user may not look
        yield Assumption(f"{table[name]} exists", "it does" if there else "it does not", there)
    size, most = unreadable_bytes(Path(table["caches"])), table["unreadable-bytes"]
    yield Assumption(f"at most {most} bytes of {table['caches']} are root's alone to read", str(size), size <= most)


def unreadable_bytes(folder: Path) -> int:
    """Bytes of the files in a folder that not everybody may read; 0 where this user may not look."""
    files = (Path(parent, name).lstat() for parent, _, names in os.walk(folder) for name in names)
    return sum(each.st_size for each in files if stat.S_ISREG(each.st_mode) and each.st_mode & 0o444 != 0o444)


def examine(assumptions: Mapping[str, Any], commit: str, environment: Mapping[str, str]) -> list[Assumption]:
    """Every assumption, and whether it holds here."""
    return [
        *check_python(assumptions["python"]),
        *check_sglang(assumptions["sglang"], commit, environment),
        *check_environment(assumptions["environment"], environment),
        *check_files(assumptions["files"]),
    ]


def main(argv: list[str]) -> int:
    as_json = argv[:1] == ["--json"]
    operands = argv[1:] if as_json else argv
    if len(operands) != 2:
        print(__doc__, file=sys.stderr)
        return EXIT_USAGE
    found = examine(tomllib.loads(Path(operands[0]).read_text(encoding="utf-8")), operands[1], os.environ)
    wrong = [each for each in found if not each.holds]
    if as_json:
        print(json.dumps([each._asdict() for each in found], indent=1))
    else:
        for each in wrong:
            print(f"kdtree: base image: not so: {each.what}: {each.found}. Fix: {each.fix}", file=sys.stderr)
    return EXIT_CONTRACT if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
