"""Compiles the CUDA kernels' own sources for the CPU emulator (emulator.h), with g++.

What no C++ compiler takes is replaced: inline asm, declarations of shared memory and launch code, each at a place that
must be there exactly once. ptx.cuh's functions are ptx.h's. Everything else is what nvcc compiles. Builds are kept
under build/emulator by a hash of all that goes into them.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kdtree_verify.native import abi
from mutants import MUTANTS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KERNEL = ROOT / "kernel"
BUILDS = ROOT / "build" / "emulator"
UNSUPPORTED = None if platform.machine() == "x86_64" else "the emulator's switch between fibers is x86-64 assembly"

KINDS = ("kernel", "racecheck", "mutants")
FAILED = (3, 4, 5)  # what a process ends with after a failed check: emulator.h's Exit
WRONG = 6  # and a mutant's, where nothing failed but its results

RUNS = ("run", "run_compare")
RUNTIME = ("fibers.cpp", "races.cpp", "barriers.cpp", "copies.cpp", "warp.cpp", "matrix.cpp")
GXX = "g++"  # whatever CXX is: clang's sanitizer takes other options
# Shared memory is bytes, which the kernel's sources look at as what they hold.
COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-c")
RUNTIME_FLAGS = (*COMMON, "-O3", "-Wall", "-Wextra")
# The thread sanitizer's compiler half puts a call before each load and store; races.cpp is its other half.
KERNEL_FLAGS = (
    *COMMON, "-O1", "-Wno-unknown-pragmas", "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0",
)  # fmt: skip


class SourcesChangedError(Exception):
    """A place of the kernel's sources that is replaced here is not what it was."""


@dataclass(frozen=True)
class Substitution:
    """In `file` of kernel/cuda, `text` becomes `emulated`."""

    file: str
    text: str
    emulated: str


ATTENTION = "verify_attn_flash_paged.cu"
COMPARE, BOX, STREAM = "compare.cu", "box.cu", "stream.cu"
# Each file, what it becomes, and where its launch code begins, which goes on to the namespace's end.
KERNELS = (
    (ATTENTION, "attention.h", "kAttend"),
    (COMPARE, "compare_kernels.h", "kCompareRows"),
    (BOX, "fill_box_kernel.h", "kFillBox"),
    (STREAM, "stream_kernels.h", "kCountOne"),
)
SUBSTITUTIONS = (
    Substitution(
        "barriers.cuh",
        'asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");',
        "emulator::named_barrier(id, threads, true);",
    ),
    Substitution(
        "barriers.cuh",
        'asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");',
        "emulator::named_barrier(id, threads, false);",
    ),
    Substitution(
        "barriers.cuh",
        r"""  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %3, 0;\n\tbar.red.or.pred p, %1, %2, p;\n\tselp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(result)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(any))
      : "memory");
""",
        "  result = emulator::named_barrier(id, threads, true, any);\n",
    ),
    # Who tells of a phase, or waits for one, says which.
    Substitution(
        "barriers.cuh",
        "mbarrier_arrive(barrier_of(shared, signal, number));",
        "mbarrier_arrive(barrier_of(shared, signal, number), number / 2);",
    ),
    Substitution(
        "barriers.cuh",
        "mbarrier_wait(barrier_of(shared, signal, number), number / 2 % 2);",
        "mbarrier_wait(barrier_of(shared, signal, number), number / 2 % 2, number / 2);",
    ),
    Substitution(
        "filler.cuh",
        "mbarrier_expect(barrier, kRowsPerWarp * bytes);",
        "mbarrier_expect(barrier, kRowsPerWarp * bytes, count / 2);",
    ),
    Substitution(
        "merge.cuh",
        "__shared__ MergeShared shared;",
        "MergeShared& shared = *reinterpret_cast<MergeShared*>(emulator::shared_memory());",
    ),
    Substitution(
        ATTENTION,
        "extern __shared__ __align__(128) unsigned char shared[];",
        "unsigned char* const shared = emulator::shared_memory();",
    ),
    Substitution(
        COMPARE,
        "__shared__ RowsShared shared;",
        "RowsShared& shared = *reinterpret_cast<RowsShared*>(emulator::shared_memory());",
    ),
    Substitution(
        COMPARE,
        "__shared__ TotalShared shared;",
        "TotalShared& shared = *reinterpret_cast<TotalShared*>(emulator::shared_memory());",
    ),
    *(Substitution(file, '#include "launch.h"\n', "") for file, _, _ in KERNELS),
)


def replaced(text: str, old: str, new: str, file: str) -> str:
    """`text` with `old`, which is in it once, replaced."""
    if (count := text.count(old)) != 1:
        raise SourcesChangedError(
            f"kernel/cuda/{file} has {count} times, wanted once: {old.strip()!r}. Fix: tests/emulator/emulated.py, "
            "mutants.py, which follow the kernel's sources"
        )
    return text.replace(old, new)


def emulated_sources() -> dict[str, str]:
    """What the emulator compiles of kernel/cuda, by file name.

    Raises:
        SourcesChangedError: kernel/cuda is not what this module knows.
    """
    sources = {path.name: path.read_text() for path in sorted((KERNEL / "cuda").glob("*.cuh"))}
    sources |= {file: (KERNEL / "cuda" / file).read_text() for file, _, _ in KERNELS}
    sources["ptx.cuh"] = '#pragma once\n#include "ptx.h"\n'
    for change in SUBSTITUTIONS:
        sources[change.file] = replaced(sources[change.file], change.text, change.emulated, change.file)
    for file, header, entry in KERNELS:
        launch_code = re.compile(rf"^const Entry {entry} = .*?(?=^}}  // namespace kdtree$)", re.DOTALL | re.MULTILINE)
        text, count = launch_code.subn("", sources.pop(file))
        if count != 1:
            raise SourcesChangedError(f"kernel/cuda/{file}: its launch code, from {entry} on, is not found")
        sources[header] = f"#pragma once\n{text}"
    for file, text in sources.items():
        if found := re.search(r"\basm\b.*|\b__shared__\b.*", text):
            raise SourcesChangedError(f"kernel/cuda/{file} has what g++ cannot compile: {found[0]!r}")
    return sources


def with_mutants(sources: dict[str, str]) -> dict[str, str]:
    """The sources with every mutant in them; kdtree_mutant chooses one when they run."""
    sources = dict(sources)
    for number, mutant in enumerate(MUTANTS, 1):
        chosen = f"::kdtree_mutant == {number}"
        if ";" in mutant.text:  # statements
            choice = f"if ({chosen}) {{ {mutant.broken} }} else {{ {mutant.text}\n}}"
        else:
            choice = f"({chosen} ? ({mutant.broken}) : ({mutant.text}))"
        around = mutant.around or mutant.text
        broken = replaced(around, mutant.text, choice, mutant.file)
        sources[mutant.file] = replaced(sources[mutant.file], around, broken, mutant.file)
    return {
        name: text.replace("#pragma once", '#pragma once\nextern "C" int kdtree_mutant;')
        for name, text in sources.items()
    }


def _cached(name: str, parts: list[str], make: Callable[[Path], None]) -> Path:
    """build/emulator/NAME-HASH, made by `make` in a folder of its own if it is not there."""
    version = subprocess.run([GXX, "--version"], check=True, capture_output=True, text=True).stdout
    digest = hashlib.sha256("\0".join([version, *parts]).encode()).hexdigest()[:16]
    kept = BUILDS / f"{name}-{digest}"
    if not kept.is_dir():
        BUILDS.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=BUILDS, prefix="."))
        try:
            make(folder)
            folder.chmod(0o755)
            folder.rename(kept)
        except OSError:
            if not kept.is_dir():  # or another process has made it in the meantime
                raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return kept


def _text(paths: list[Path]) -> list[str]:
    return [part for path in sorted(paths) for part in (path.name, path.read_text())]


def build_runtime() -> Path:
    """A folder with the objects that are the same for all builds."""

    def compile_runtime(folder: Path) -> None:
        subprocess.run([GXX, *RUNTIME_FLAGS, *(HERE / file for file in RUNTIME)], check=True, cwd=folder)

    return _cached("runtime", [*RUNTIME_FLAGS, *_text([*HERE.glob("*.h"), *HERE.glob("*.cpp")])], compile_runtime)


def build(name: str = "kernel") -> Path:
    """The compiled emulator: "kernel", the sources as they are; "racecheck", as compute-sanitizer gets them;
    "mutants", with all of mutants.py."""
    runtime = build_runtime()
    sources = emulated_sources()
    if name == "mutants":
        sources = with_mutants(sources)
    flags = [*KERNEL_FLAGS, *(["-DKDTREE_FOR_RACECHECK"] if name == "racecheck" else [])]

    def compile_kernel(folder: Path) -> None:
        for file, text in sources.items():
            (folder / file).write_text(text)
        include = (folder, HERE, KERNEL, KERNEL / "include")
        for run in RUNS:
            command = [GXX, *flags, *(f"-I{path}" for path in include), HERE / f"{run}.cpp", "-o", folder / f"{run}.o"]
            subprocess.run(command, check=True)
        objects = [*(folder / f"{run}.o" for run in RUNS), *sorted(runtime.glob("*.o"))]
        subprocess.run([GXX, "-shared", "-Wl,-z,defs", *objects, "-o", folder / "emulator.so"], check=True)

    shared_headers = [*(KERNEL / "common").glob("*.h"), *(KERNEL / "include").glob("*.h")]
    source_parts = [part for item in sorted(sources.items()) for part in item]
    parts = [runtime.name, *flags, *_text(shared_headers), *source_parts]
    return _cached(name, parts, compile_kernel) / "emulator.so"


def build_host() -> Path:
    """A folder with the host library of these sources."""

    def compile_host(folder: Path) -> None:
        subprocess.run(["sh", KERNEL / "build.sh", "host", folder], check=True)

    source_hash = subprocess.run(
        ["sh", KERNEL / "build.sh", "hash", "host"], check=True, capture_output=True, text=True
    ).stdout
    return _cached("host", [source_hash, (KERNEL / "build.sh").read_text()], compile_host)


class Emulator:
    """A build, loaded. A failed check ends the process with one line on stderr, see emulator.h."""

    def __init__(self, name: str = "kernel", mutant: int = 0) -> None:
        self._library = ctypes.CDLL(str(build(name)))
        pointer, seed = ctypes.POINTER, ctypes.c_uint64
        self._library.kdtree_emulate.argtypes = [pointer(abi.VerifyArgs), ctypes.c_int, seed]
        self._library.kdtree_emulate_compare.argtypes = [pointer(abi.CompareArgs), ctypes.c_int, seed]
        self._library.kdtree_emulate_gate.argtypes = [pointer(abi.GateArgs), seed]
        self._library.kdtree_emulate_stamp.argtypes = [pointer(seed)]
        ctypes.c_int.in_dll(self._library, "kdtree_mutant").value = mutant

    def run(self, args: abi.VerifyArgs, ctas: int, seed: int) -> int:
        """A call on so many multiprocessors, its threads' order drawn from the seed; kdtree_verify's status."""
        return self._library.kdtree_emulate(args, ctas, seed)

    def compare(self, args: abi.CompareArgs, ctas: int, seed: int) -> int:
        """A call of kdtree_compare on so many CTAs; its status."""
        return self._library.kdtree_emulate_compare(args, ctas, seed)

    def gate(self, args: abi.GateArgs, seed: int) -> int:
        """A call of kdtree_gate; its status."""
        return self._library.kdtree_emulate_gate(args, seed)

    def stamp(self) -> int:
        """What kdtree_stamp stores."""
        slot = ctypes.c_uint64()
        self._library.kdtree_emulate_stamp(slot)
        return slot.value
