"""Puts together what bench/peers.py imports on a machine without SGLang and FlashInfer; called by ci/bench-peers.

peers_build.py WHEELS FOLDER ARCH...

Of SGLang, out of the environment that runs this: the modules of its Triton attention kernel, unchanged, and
bench/sglang_utils.py for the one that would import the server. Of FlashInfer, out of its wheel: the Python, and its
MLA kernels compiled, in the place where it looks for what was built ahead of time: then it needs no compiler.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

SGLANG_MODULES = (
    "kernels/ops/attention/extend_attention.py",
    "kernels/ops/attention/decode_attention.py",
    "kernels/ops/attention/score_mod.py",
    "srt/environ.py",
)
UTILS = Path(__file__).with_name("sglang_utils.py")
FLASHINFER_UNUSED = ("data/cutlass", "data/include", "data/spdlog")
FLASHINFER_SOURCES = "batch_mla_*"
"""In data/csrc: FlashInfer reads them when it loads a kernel, also one that is compiled."""
TVM_UNUSED = ("3rdparty", "src")


def main(wheels: Path, folder: Path, archs: list[str]) -> None:
    """Builds the folder beside itself and then puts it in place whole."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    add_sglang(part)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(part)
    for unused in TVM_UNUSED:
        _remove(part / "tvm_ffi" / unused)
    add_flashinfer_kernels(part / "flashinfer", archs)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"bench-peers: {folder}, {size / 1e6:.0f} MB, FlashInfer's MLA kernels for {' '.join(archs)}")


def add_sglang(folder: Path) -> None:
    """The attention modules, each package on the way to them empty."""
    installed = distribution("sglang")
    for module in SGLANG_MODULES:
        target = folder / "sglang" / module
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(installed.locate_file(f"sglang/{module}")), target)
    utils = folder / "sglang" / "srt" / "utils" / "__init__.py"
    utils.parent.mkdir()
    shutil.copyfile(UTILS, utils)
    for package in (folder / "sglang", *(path for path in (folder / "sglang").rglob("*") if path.is_dir())):
        (package / "__init__.py").touch()
    metadata = folder / f"sglang-{installed.version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {installed.version}\n")


def add_flashinfer_kernels(package: Path, archs: list[str]) -> None:
    """Compiles the MLA kernels with FlashInfer's own sources and flags, then removes what only that needed."""
    with tempfile.TemporaryDirectory() as scratch:
        # FlashInfer reads these when it is imported, which is not before here.
        os.environ["FLASHINFER_WORKSPACE_BASE"] = scratch
        os.environ["FLASHINFER_CUDA_ARCH_LIST"] = " ".join(f"{arch[:-2]}.{arch[-2:]}" for arch in archs)
        sys.path.append(str(package.parent))  # last: this environment's own tvm_ffi is the one that loads here
        for backend in ("fa2", "fa3"):
            ours = [arch for arch in archs if backend == "fa2" or arch == "90a"]
            if ours:
                _compile(backend, ours, Path(scratch))
    for unused in FLASHINFER_UNUSED:
        _remove(package / unused)
    sources = package / "data" / "csrc"
    kept = set(sources.glob(FLASHINFER_SOURCES))
    for source in sources.iterdir():
        if source not in kept:
            _remove(source)


def _compile(backend: str, archs: list[str], scratch: Path) -> None:
    torch = importlib.import_module("torch")
    jit = importlib.import_module("flashinfer.jit")
    bf16 = torch.bfloat16
    spec = jit.gen_batch_mla_module(backend, bf16, bf16, bf16, torch.int32, 512, 64, False)
    flags = [flag for flag in spec.extra_cuda_cflags if not flag.startswith("-gencode")]
    flags += jit.current_compilation_context.COMMON_NVCC_FLAGS
    flags += [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    flags += ["--expt-relaxed-constexpr", "-static-global-template-stub=false", "-Xcompiler=-fPIC"]
    for include in _includes(jit.env):
        flags += ["-isystem", str(include)]
    objects = []
    for source in spec.sources:
        print(f"bench-peers: compiling {source.name} for {' '.join(archs)}", file=sys.stderr)
        objects.append(str(scratch / f"{source.name}.o"))
        subprocess.run(["nvcc", "--disable-warnings", *flags, "-c", str(source), "-o", objects[-1]], check=True)
    spec.aot_path.parent.mkdir(parents=True)
    # The CUDA runtime inside: the machine's own need not be found. tvm_ffi's symbols are there when it loads this.
    subprocess.run(["nvcc", "-shared", "-cudart=static", "-Xlinker=-s", *objects, "-o", str(spec.aot_path)], check=True)


def _includes(env: Any) -> list[Path]:
    tvm_ffi = importlib.import_module("tvm_ffi")
    return [
        Path(tvm_ffi.libinfo.find_include_path()),
        Path(tvm_ffi.libinfo.find_dlpack_include_path()),
        env.FLASHINFER_INCLUDE_DIR,
        env.FLASHINFER_CSRC_DIR,
        *env.CUTLASS_INCLUDE_DIRS,
        env.SPDLOG_INCLUDE_DIR,
    ]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
