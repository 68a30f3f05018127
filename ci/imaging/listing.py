"""ci/additions [--files]: what the image that ci/image built last adds to its base, as build/image.json tells it.

A Markdown table by what it is for, as docs/supply-chain/what-ships.md has it; with --files each file, folder and link
of each layer: bytes, mode, SHA-256, path.

Exit codes: 1 no image was built; 64 bad arguments.
"""

from __future__ import annotations

import fnmatch
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line import Parser
from standin import ROOT

REPORT = ROOT / "build" / "image.json"
_SITE = "/opt/sglang/lib/python3.*/site-packages/"
# What it is for, and where: the first pattern that fits.
_PARTS = {
    "the CUDA kernel": ["/opt/kdtree/lib/libkdtree_verify_cuda.so"],
    "the kernel on the host": ["/opt/kdtree/lib/libkdtree_verify_host.so"],
    "tini, and its record for scanners": ["/usr/bin/tini", "/var/lib/dpkg/status.d/*"],
    "the patch: recorded results for its self-test": [_SITE + "kdtree_verify/*.npz"],
    "the patch: its bytecode": [_SITE + "kdtree_verify/*.pyc"],
    "the patch: its modules, metadata and command": [_SITE + "kdtree_verify*", "/*/bin/kdtree"],
    "wheels that the base lacks": [_SITE + "*"],
    "entrypoint, and which commit it is": ["/opt/kdtree/*.py", "/opt/kdtree/*.json"],
    "licences": ["/opt/kdtree/licenses/*"],
    "the base's own small caches, opened to all users": ["/root/*"],
}


def main() -> int:
    parser = Parser(prog="ci/additions", description=__doc__)
    parser.add_argument("--files", action="store_true")
    chosen = parser.parse_args()
    try:
        report = json.loads(REPORT.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"kdtree: no image was built: {error}. Fix: ci/image", file=sys.stderr)
        return 1
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ci/additions --files | head
    print("\n".join(files(report) if chosen.files else table(report)))
    return 0


def files(report: dict[str, Any]) -> Iterator[str]:
    """A line for all that a layer holds, under the step that left it."""
    for layer in report["added"]:
        yield f"# {layer['step']}"
        for file in layer["files"]:
            yield f"{file['bytes']:>9} {file['mode']} {file['sha256'] or file['kind']:<64} {file['path']}"


def parts(report: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """For each part how many files of it there are, and their bytes."""
    found: dict[str, tuple[int, int]] = dict.fromkeys(_PARTS, (0, 0))
    for layer in report["added"]:
        for file in layer["files"]:
            if file["kind"] == "file":
                part = _part(file["path"])
                count, size = found.get(part, (0, 0))
                found[part] = (count + 1, size + file["bytes"])
    return {part: sums for part, sums in found.items() if sums[0]}


def table(report: dict[str, Any]) -> Iterator[str]:
    yield "| what | files | bytes |"
    yield "|---|---|---|"
    for part, (count, size) in parts(report).items():
        yield f"| {part} | {count} | {size:,} |"
    yield f"| all of it | {sum(count for count, _ in parts(report).values())} | {report['added_bytes']:,} |"


def _part(path: str) -> str:
    named = (name for name, places in _PARTS.items() if any(fnmatch.fnmatchcase(path, place) for place in places))
    return next(named, str(Path(path).parent))
