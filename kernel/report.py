#!/usr/bin/env python3
"""Writes what each kernel of the CUDA library takes, from the tools' own reports: report.py LIBRARY OUTPUT

Registers, static shared memory and spills are ptxas's (build.sh keeps its log beside the library), instruction counts
are those of cuobjdump's disassembly, threads and dynamic shared memory are the library's own launch table. Needs
cuobjdump and nvdisasm on PATH; the library is loaded, no GPU is needed.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

SHARED_LIMIT = 101_376
"""Bytes of shared memory that a block may have on sm_120."""
INSTRUCTIONS = ("HMMA", "LDSM", "UBLKCP", "USETMAXREG", "LDL", "STL")
"""mma.sync, ldmatrix, bulk copies, setmaxnreg; loads and stores of local memory, where spills go."""

COMPILING = re.compile(r"Compiling entry function '(?P<kernel>\w+)' for '(?P<arch>\w+)'")
MODULE = re.compile(r"\d+ bytes gmem")
PROPERTIES = re.compile(r"Function properties for (?P<function>\w+)")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
PROPERTY_NAMES = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
USED = re.compile(r"Used (?P<registers>\d+) registers(?:.*?(?P<shared>\d+) bytes smem)?")
ARCH = re.compile(r"arch = (?P<arch>\w+)")
FUNCTION = re.compile(r"Function : (?P<kernel>\w+)")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z0-9]+)")


class ReportError(Exception):
    """There is nothing that can be reported."""


Key = tuple[str, str]
"""A kernel and an architecture."""


def compiled(log: str) -> dict[Key, dict[str, int]]:
    """Registers, stack, spills and static shared memory, from ptxas -v.

    It tells of functions that are called, too, and not by which kernels. What such a one takes counts in all kernels
    that were compiled with it: each has the greatest stack and spills among it and them.
    """
    found: dict[Key, dict[str, int]] = {}
    module: list[dict[str, int]] = []  # its kernels
    function = kernel = ""
    for line in log.splitlines():
        if MODULE.search(line):
            module = []
        elif match := COMPILING.search(line):
            kernel = match["kernel"]
            module.append(found.setdefault((kernel, match["arch"]), {}))
        elif match := PROPERTIES.search(line):
            function = match["function"]
        elif match := SPILLS.search(line):
            taking = [module[-1]] if function == kernel else module
            for name, count in zip(PROPERTY_NAMES, map(int, match.groups()), strict=True):
                for numbers in taking:
                    numbers[name] = max(numbers.get(name, 0), count)
        elif match := USED.search(line):
            module[-1].update(registers=int(match["registers"]), static_shared_bytes=int(match["shared"] or 0))
    return found


def disassembled(sass: str) -> dict[Key, Counter[str]]:
    """How often each instruction occurs, from cuobjdump -sass."""
    found: dict[Key, Counter[str]] = {}
    arch, counts = "", Counter[str]()
    for line in sass.splitlines():
        if match := ARCH.search(line):
            arch = match["arch"]
        elif match := FUNCTION.search(line):
            counts = found.setdefault((match["kernel"], arch), Counter())
        elif match := INSTRUCTION.search(line):
            counts[match["name"]] += 1
    return found


def launched(library: Path) -> dict[str, dict[str, int]]:
    """Threads and dynamic shared memory by kernel, from the library's launch table."""
    entry = ctypes.CDLL(str(library.resolve())).kdtree_cuda_entry
    name, threads, shared = ctypes.c_char_p(), ctypes.c_int(), ctypes.c_int()
    found: dict[str, dict[str, int]] = {}
    while entry(len(found), ctypes.byref(name), ctypes.byref(threads), ctypes.byref(shared)):
        found[(name.value or b"").decode()] = {"threads": threads.value, "dynamic_shared_bytes": shared.value}
    return found


def report(library: Path) -> dict[str, Any]:
    """The whole report.

    Raises:
        ReportError: The library cannot be read, or its three sources do not tell of the same kernels.
    """
    try:
        sass = subprocess.run(["cuobjdump", "-sass", library], check=True, capture_output=True, text=True).stdout
        resources, counts = compiled(library.with_suffix(".ptxas").read_text()), disassembled(sass)
        launches = launched(library)
    except subprocess.CalledProcessError as error:
        said = f"{error.stdout}\n{error.stderr}".strip() or f"it ends with {error.returncode}"
        raise ReportError(f"cuobjdump: {said.splitlines()[-1]}") from error
    except (OSError, AttributeError) as error:
        raise ReportError(str(error)) from error
    if resources.keys() != counts.keys() or {kernel for kernel, _ in counts} != launches.keys():
        raise ReportError(f"ptxas tells of {[*resources]}, cuobjdump of {[*counts]}, the launch table of {[*launches]}")
    kernels = []
    for (kernel, arch), numbers in sorted(resources.items()):
        shared = numbers["static_shared_bytes"] + launches[kernel]["dynamic_shared_bytes"]
        count = counts[kernel, arch]
        instructions = {name: count[name] for name in INSTRUCTIONS} | {"all": count.total()}
        kernels.append(
            {"kernel": kernel, "arch": arch, **launches[kernel], **numbers, "shared_bytes": shared}
            | {"instructions": instructions}
        )
    return {
        "library": library.name,
        "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "shared_limit_bytes": SHARED_LIMIT,
        "kernels": kernels,
    }


def fail(what: str, found: str, fix: str, code: int) -> int:
    print(f"kdtree: {what}: {found}. Fix: {fix}", file=sys.stderr)
    return code


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        return fail("wrong number of arguments", str(len(arguments)), "report.py LIBRARY OUTPUT", 64)
    library, output = map(Path, arguments)
    for tool in ("cuobjdump", "nvdisasm"):
        if shutil.which(tool) is None:
            return fail("a CUDA tool is missing", tool, "PATH=$(ci/cuda-toolchain):$PATH", 69)
    for file in (library, library.with_suffix(".ptxas")):
        if not file.is_file():
            return fail("nothing to report on", f"{file} is missing", "kernel/build.sh cuda OUTDIR", 70)
    try:
        found = report(library)
    except ReportError as error:
        return fail("nothing to report on", f"{library}: {error}", "build it anew: kernel/build.sh cuda OUTDIR", 70)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
