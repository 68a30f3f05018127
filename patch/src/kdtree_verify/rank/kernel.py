"""The library on one device: what its calls share, and how an SGLang call becomes one of its calls."""

from __future__ import annotations

import ctypes
from typing import TypeVar

import torch

from ..config import Device
from ..errors import CapabilityError, DeviceError
from ..native import abi
from ..native.call import Call, compare_args, gate_args, verify_args
from ..native.library import Library
from .eligibility import Limits
from .records import Place

# A compare call that is further from stock than this leaves its bound. Stock itself is 2e-3 from float64 with a bf16
# pool; with an fp8 pool it casts q and P to the pool's dtype. Its arithmetic over prefixes of 64 to 64K keys, whose
# scores have a standard deviation of 0.25 to 8, is off by 0.02 to 0.11 (e4m3) and by 0.04 to 0.21 (e5m2); in servers of
# models that look at a few keys of 64K, one call of 700 was off by 0.15 and 0.30 (docs/evidence/server-h200.md).
REL_L2_BOUND = 0.02
REL_L2_BOUND_FP8_POOL = {torch.float8_e4m3fn: 0.2, torch.float8_e5m2: 0.4}
POOL_NAMES = {
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
}
"""A pool's dtype, as reports and files call it."""
_Args = TypeVar("_Args", abi.VerifyArgs, abi.CompareArgs)


def rel_l2_bound(pool: torch.dtype) -> float:
    """The relative L2 to stock above which a call on such a pool leaves its bound."""
    return REL_L2_BOUND_FP8_POOL.get(pool, REL_L2_BOUND)


class Kernel:
    """Launches on the current stream. Only the constructor allocates, and nothing waits for the device.

    One workspace serves every call: the verify calls that are taken follow each other in one process
    (eligibility.runner_reason).

    Args:
        library: The library for `device`'s kind.
        device: `cuda:N`, or `cpu`.

    Raises:
        CapabilityError: The library has no machine code for this device.
        DeviceError: The library is for another kind of device.
    """

    def __init__(self, library: Library, device: torch.device):
        wanted = "cuda" if library.description.device_kind == "cuda" else "cpu"
        if device.type != wanted:
            raise DeviceError(
                f"the kernel library in use is for {wanted}",
                f"the model runs on {device}",
                f"set KDTREE_DEVICE={Device.CPU if device.type == 'cpu' else Device.CUDA}, or KDTREE_VERIFY=off",
            )
        self.library, self.device = library, device
        self._ordinal = -1 if device.type == "cpu" else device.index
        if library.supports_device(self._ordinal) != abi.Status.OK:
            raise CapabilityError(
                "the kernel library has no code for this GPU",
                f"{device}, the library is for {', '.join(library.description.archs) or 'the host'}",
                "rebuild the image with this GPU's architecture, or set KDTREE_VERIFY=off",
            )
        self.limits = Limits.of(library.description, device)
        # Its size is a matter of the device and not of the server (25 MB on 188 multiprocessors), so it is made
        # for all that the library takes: a captured graph holds its address, and it must never move.
        size = library.largest_workspace_size(self._ordinal)
        self._workspace = torch.empty(size, dtype=torch.uint8, device=device)

    @property
    def workspace_bytes(self) -> int:
        """Device memory that this instance keeps."""
        return self._workspace.numel()

    def verify(self, call: Call, out: torch.Tensor, place: Place) -> int:
        """Computes the call into `out` [tokens, heads, 512]; returns the library's status."""
        return self.library.verify(self._on_stream(verify_args(call, out), place))

    def compare(
        self,
        call: Call,
        ours: torch.Tensor,
        place: Place,
        shapes: Place,
        stamps: int | None = None,
        box: abi.BoxArgs | None = None,
    ) -> int:
        """Adds the difference between stock's output of the call and `ours` to the records; returns the status.

        Args:
            call: With stock's output in `o_extend`.
            ours: [tokens, heads, 512]
            place: The layer's record.
            shapes: The table of shapes.
            stamps: Where the device has three stamps of the call: before stock, before ours, after ours.
            box: Where the device keeps the call if it leaves its bound.
        """
        args = compare_args(call, ours)
        args.rel_l2_bound = rel_l2_bound(call.k_buffer.dtype)
        args.shapes, args.shapes_mirror, args.stamps = shapes.record, shapes.mirror, stamps
        if box is not None:
            args.box = ctypes.pointer(box)
        return self.library.compare(self._on_stream(args, place))

    def gate(self, call: Call, gated: Call, counter: int, *, every: int, phase: int) -> int:
        """Makes the indptrs of `gated` the call's, or zeros; returns the status.

        Args:
            call: What is let through one time of `every`.
            gated: With indptrs of the same dtypes as the call's, at least as long as its requests are many, and one.
            counter: Device address of a counter of such calls.
            phase: Which ones: those for which (counter + phase) % every is 0.
        """
        args = gate_args(call, gated)
        args.counter, args.every, args.phase = counter, every, phase
        args.device, args.stream = self._ordinal, self._stream()
        return self.library.gate(args)

    def stamp(self, slot: int) -> int:
        """Stores the time at which the device comes here; returns the status."""
        return self.library.stamp(slot, self._ordinal, self._stream())

    def count(self, place: Place) -> int:
        """Adds one to a counter; returns the status."""
        return self.library.count(place.record, place.mirror, self._ordinal, self._stream())

    def capturing(self) -> bool:
        """Whether what is launched now goes into a CUDA graph."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _stream(self) -> int | None:
        return torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else None

    def _on_stream(self, args: _Args, place: Place) -> _Args:
        args.device, args.stream = self._ordinal, self._stream()
        args.workspace, args.workspace_bytes = self._workspace.data_ptr(), self._workspace.numel()
        args.record, args.mirror = place.record, place.mirror
        return args
