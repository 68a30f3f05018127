"""The CUDA library where there is no GPU: it loads, tells of itself, checks arguments, and refuses devices."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kdtree_verify.native.abi import ABI_VERSION

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "build" / "lib" / "libkdtree_verify_cuda.so"

# In a process of its own that sees no GPU, so that it says the same on every machine.
PROGRAM = """
import ctypes, sys
sys.path.insert(0, {src!r})
from pathlib import Path
from kdtree_verify.native import abi
from kdtree_verify.config import Device
from kdtree_verify.native.library import load
library = load(Path({folder!r}), Device.CUDA)
about = library.description
print(about.device_kind, *about.archs, *(dtype.name for dtype in sorted(about.pool_dtypes)))
empty = abi.VerifyArgs()
sound = abi.VerifyArgs(ctypes.sizeof(abi.VerifyArgs), num_heads=8, max_q_len=8, sm_scale=1, k_scale=1, v_scale=1)
sound.q_dtype = sound.kv_dtype = sound.pool_dtype = sound.out_dtype = abi.DType.BF16
sound.qo_indptr_dtype = sound.kv_indptr_dtype = sound.kv_indices_dtype = abi.DType.I32
indptr = (ctypes.c_int32 * 1)(0)
sound.qo_indptr = sound.kv_indptr = ctypes.addressof(indptr)
size = ctypes.c_uint64(7)
limits = abi.WorkspaceArgs(ctypes.sizeof(abi.WorkspaceArgs), 0, 8, 8, 8)
workspace = library.functions.kdtree_workspace_size(limits, size)
print(library.verify(empty), library.verify(sound), library.supports_device(0), library.supports_device(-1),
      library.count(ctypes.addressof(size), None, 0, None), library.stamp(ctypes.addressof(size), 0, None),
      workspace, size.value)
"""


def test_without_a_gpu() -> None:
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY.name} is not built (`make kernel` builds it)")
    program = PROGRAM.format(src=str(ROOT / "patch" / "src"), folder=str(LIBRARY.parent))
    environment = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    about, statuses = done.stdout.splitlines()
    assert about.startswith("cuda sm_120a")
    assert about.endswith(" BF16 F8_E4M3 F8_E5M2")
    struct_size, device = 1, 8
    assert statuses == f"{struct_size} {device} {device} {device} {device} {device} {device} 7"


def test_it_needs_nothing_of_cuda_to_load() -> None:
    """The runtime is linked in; the driver is looked for when a device is."""
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY.name} is not built (`make kernel` builds it)")
    assert ctypes.CDLL(str(LIBRARY)).kdtree_abi_version() == ABI_VERSION
    needed = subprocess.run(["ldd", LIBRARY], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in needed.replace(str(LIBRARY), "")


@pytest.mark.slow
def test_same_bytes_in_any_folder(tmp_path: Path) -> None:
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY.name} is not built (`make kernel` builds it)")
    toolchain = subprocess.run([ROOT / "ci" / "cuda-toolchain"], capture_output=True, text=True, check=True)
    archs = " ".join(arch.removeprefix("sm_") for arch in _architectures())
    copied = tmp_path / "a folder" / "kernel"
    shutil.copytree(ROOT / "kernel", copied, copy_function=shutil.copyfile)
    subprocess.run(
        ["sh", copied / "build.sh", "cuda", tmp_path / "out", archs],
        env={**os.environ, "PATH": f"{toolchain.stdout.strip()}:{os.environ['PATH']}"},
        check=True,
    )
    built = (tmp_path / "out" / LIBRARY.name).read_bytes()
    assert built == LIBRARY.read_bytes()
    assert str(ROOT).encode() not in built


def _architectures() -> list[str]:
    from kdtree_verify.config import Device
    from kdtree_verify.native.library import load

    return list(load(LIBRARY.parent, Device.CUDA).description.archs)
