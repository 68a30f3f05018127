#!/usr/bin/env python3
"""Asserts the base image's assumption list: check_base.py ASSUMPTIONS COMMIT

Run by the base's own Python inside the build. COMMIT is the pinned SGLang commit (a prefix). Prints one line for
each assumption that does not hold and exits 78; prints nothing and exits 0 when all hold.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import stat
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

EXIT_USAGE = 64
EXIT_CONTRACT = 78

Failure = tuple[str, str, str]
"""What is assumed, what was found, what to do."""

MOVED = "adapt docker/base-assumptions.toml and what reads it to this base, or pin another (ci/pins.toml)"


def release(version: str) -> tuple[int, ...]:
    """The numbers before any suffix: "0.5.21.dev7+gcae69be5" is (0, 5, 21)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def within(version: str, table: Mapping[str, Any]) -> bool:
    """Whether table's minimum <= version < below, suffixes ignored."""
    return release(table["minimum"]) <= release(version) < release(table["below"])


def check_python(table: Mapping[str, Any]) -> Iterator[Failure]:
    if sys.executable != table["executable"]:
        yield f"Python is {table['executable']}", sys.executable, MOVED
    if sys.prefix == sys.base_prefix:
        yield "Python is a virtual environment's", sys.prefix, MOVED
    version = ".".join(map(str, sys.version_info[:3]))
    if not within(version, table):
        yield f"Python is at least {table['minimum']} and below {table['below']}", version, MOVED
    for module in table["modules"]:
        if importlib.util.find_spec(module) is None:
            yield f"the base's Python has {module}", "no such module", MOVED


def check_sglang(table: Mapping[str, Any], commit: str, environment: Mapping[str, str]) -> Iterator[Failure]:
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        yield "SGLang is installed", "no distribution named sglang", MOVED
        return
    if not within(version, table):
        yield f"SGLang is at least {table['minimum']} and below {table['below']}", version, MOVED
    spec = importlib.util.find_spec("sglang")
    origin = spec.origin if spec and spec.origin else "nowhere"
    if not Path(origin).is_relative_to(table["source"]):
        yield f"SGLang is an editable install under {table['source']}", f"imported from {origin}", MOVED
    found = environment.get(table["commit-variable"], "")
    if not (commit and found.startswith(commit)):
        fix = "pin the image and its commit together (ci/pins.toml, docker/Dockerfile)"
        yield f"{table['commit-variable']} begins with {commit}", f"'{found}'", fix


def check_environment(table: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Failure]:
    for name in table["unset"]:
        if name in environment:
            yield f"{name} is not set", f"'{environment[name]}'", MOVED
    for name, value in table["set"].items():
        if environment.get(name) != value:
            yield f"{name} is {value}", f"'{environment.get(name, '')}'", MOVED


def check_files(table: Mapping[str, Any]) -> Iterator[Failure]:
    if os.getuid() != table["uid"]:
        yield f"the base's user is {table['uid']}", str(os.getuid()), MOVED
    home = os.path.expanduser("~")
    if home != table["home"]:
        yield f"the home folder is {table['home']}", home, MOVED
    for name in ("caches", "nvidia-entrypoint"):
        if not os.path.exists(table[name]):  # false, too, where this user may not look
            yield f"{table[name]} exists", "it does not", MOVED
    size = unreadable_bytes(Path(table["caches"]))
    if size > table["unreadable-bytes"]:
        yield (
            f"at most {table['unreadable-bytes']} bytes of {table['caches']} are root's alone to read",
            str(size),
            MOVED,
        )


def unreadable_bytes(folder: Path) -> int:
    """Bytes of the files in a folder that not everybody may read; 0 where this user may not look."""
    files = (Path(parent, name).lstat() for parent, _, names in os.walk(folder) for name in names)
    return sum(each.st_size for each in files if stat.S_ISREG(each.st_mode) and each.st_mode & 0o444 != 0o444)


def failures(assumptions: Mapping[str, Any], commit: str, environment: Mapping[str, str]) -> list[Failure]:
    """Every assumption that does not hold here."""
    return [
        *check_python(assumptions["python"]),
        *check_sglang(assumptions["sglang"], commit, environment),
        *check_environment(assumptions["environment"], environment),
        *check_files(assumptions["files"]),
    ]


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return EXIT_USAGE
    found = failures(tomllib.loads(Path(argv[0]).read_text(encoding="utf-8")), argv[1], os.environ)
    for what, instead, fix in found:
        print(f"kdtree: base image: not so: {what}: {instead}. Fix: {fix}", file=sys.stderr)
    return EXIT_CONTRACT if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
