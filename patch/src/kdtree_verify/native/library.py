"""Finds, loads and identifies a kernel library. Nothing here touches a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from ..config import Device
from ..errors import LibraryError
from ..versions import package_version
from . import abi

FILE_NAMES = {Device.CUDA: "libkdtree_verify_cuda.so", Device.CPU: "libkdtree_verify_host.so"}
_KINDS = {Device.CUDA: "cuda", Device.CPU: "host"}
_REINSTALL = "use the library and the wheel of one build (rebuild the image, or `make kernel`)"


@dataclass(frozen=True)
class Description:
    """What the library says of itself, with the file it was loaded from."""

    path: Path
    sha256: str
    version: str
    device_kind: str
    archs: tuple[str, ...]
    compiler: str
    source_hash: str
    variants: tuple[str, ...]
    q_dtypes: frozenset[abi.DType]
    pool_dtypes: frozenset[abi.DType]
    out_dtypes: frozenset[abi.DType]
    max_heads: int
    max_draft_tokens: int
    max_batch: int


@dataclass(frozen=True)
class Library:
    """A loaded library: its functions as typed callables and its description.

    Every function returns a status; `check` turns one that is not OK into a LibraryError.
    """

    description: Description
    functions: ctypes.CDLL = field(repr=False)

    def verify(self, args: abi.VerifyArgs) -> int:
        return self.functions.kdtree_verify(args)

    def compare(self, args: abi.CompareArgs) -> int:
        return self.functions.kdtree_compare(args)

    def count(self, counter: int, mirror: int | None, device: int, stream: int | None) -> int:
        return self.functions.kdtree_count(counter, mirror, device, stream)

    def stamp(self, slot: int, device: int, stream: int | None) -> int:
        return self.functions.kdtree_stamp(slot, device, stream)

    def gate(self, args: abi.GateArgs) -> int:
        return self.functions.kdtree_gate(args)

    def supports_device(self, device: int) -> int:
        return self.functions.kdtree_supports_device(device)

    def workspace_size(self, *, device: int, num_heads: int, max_q_len: int, max_batch: int) -> int:
        """Bytes of workspace that calls within these limits need on this device.

        Raises:
            LibraryError: The library refuses the limits or the device.
        """
        args = abi.WorkspaceArgs(ctypes.sizeof(abi.WorkspaceArgs), device, num_heads, max_q_len, max_batch)
        size = ctypes.c_uint64()
        self.check(self.functions.kdtree_workspace_size(args, size), "kdtree_workspace_size")
        return size.value

    def largest_workspace_size(self, device: int) -> int:
        """Bytes of workspace for any call that the library takes on this device.

        Raises:
            LibraryError: The library refuses the device.
        """
        limits = self.description
        return self.workspace_size(
            device=device,
            num_heads=limits.max_heads,
            max_q_len=limits.max_draft_tokens,
            max_batch=limits.max_batch,
        )

    def status_text(self, status: int) -> str:
        return self.functions.kdtree_status_string(status).decode()

    def check(self, status: int, call: str) -> None:
        """Raises LibraryError unless `status` is OK."""
        if status != abi.Status.OK:
            raise LibraryError(f"{call} was refused", f"status {status}, {self.status_text(status)}", _REINSTALL)


def load(directory: Path, device: Device) -> Library:
    """Loads the library for `device` from `directory` and checks that it belongs to this package.

    Raises:
        LibraryError: Missing, not loadable, another ABI or version, or for another kind of device.
    """
    path = directory / FILE_NAMES[device]
    if not os.path.isfile(path):  # nor where this user may not look
        raise LibraryError(
            "the kernel library is missing", str(path), "set KDTREE_LIBRARY_DIR to the folder that holds it"
        )
    try:
        _check_whole(path)
        functions = ctypes.CDLL(str(path))
        for name, (result, arguments) in abi.FUNCTIONS.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LibraryError("the kernel library does not load", str(error), _REINSTALL) from error
    return Library(_identify(path, functions, _KINDS[device]), functions)


def _check_whole(path: Path) -> None:
    # The loader maps what the headers promise: a page that the file lacks ends the process by SIGBUS, without a word.
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return  # the loader says what it is not
    (sections,) = struct.unpack_from("<Q", header, 40)
    entry_size, entries = struct.unpack_from("<HH", header, 58)
    size, wanted = path.stat().st_size, sections + entry_size * entries
    if size < wanted:
        raise LibraryError("the kernel library is cut short", f"{path}: {size} of {wanted} bytes", _REINSTALL)


def _identify(path: Path, functions: ctypes.CDLL, kind: str) -> Description:
    found = functions.kdtree_abi_version()
    if found != abi.ABI_VERSION:
        raise LibraryError(
            "the kernel library is foreign", f"{path}: ABI {found}, wanted {abi.ABI_VERSION}", _REINSTALL
        )
    raw = abi.Description(struct_size=ctypes.sizeof(abi.Description))
    status = functions.kdtree_describe(raw)
    if status != abi.Status.OK:
        raise LibraryError("the kernel library does not describe itself", f"{path}: status {status}", _REINSTALL)
    wanted = package_version()
    if raw.version.decode() != wanted:
        raise LibraryError(
            "the kernel library is foreign", f"{path}: version {raw.version.decode()}, wanted {wanted}", _REINSTALL
        )
    if raw.device_kind.decode() != kind:
        raise LibraryError(
            "the kernel library is foreign", f"{path}: for {raw.device_kind.decode()}, wanted {kind}", _REINSTALL
        )
    names = (functions.kdtree_variant_name(i + 1) for i in range(raw.num_variants))
    return Description(
        path=path,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        version=raw.version.decode(),
        device_kind=raw.device_kind.decode(),
        archs=tuple(filter(None, raw.archs.decode().split(","))),
        compiler=raw.compiler.decode(),
        source_hash=raw.source_hash.decode(),
        variants=tuple(name.decode() for name in names),
        q_dtypes=_dtypes(raw.q_dtypes),
        pool_dtypes=_dtypes(raw.pool_dtypes),
        out_dtypes=_dtypes(raw.out_dtypes),
        max_heads=raw.max_heads,
        max_draft_tokens=raw.max_draft_tokens,
        max_batch=raw.max_batch,
    )


def _dtypes(bits: int) -> frozenset[abi.DType]:
    return frozenset(dtype for dtype in abi.DType if bits >> dtype & 1)
