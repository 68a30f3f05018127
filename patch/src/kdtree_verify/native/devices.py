"""The devices that a command of `kdtree` computes on. torch is imported when one is asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..errors import CapabilityError, DeviceError, UsageError
from . import abi
from .library import Library

if TYPE_CHECKING:
    import torch


def on_machine(text: str) -> list[torch.device]:
    """The devices that --device asks for: "cpu", "cuda:N", or "all" GPUs.

    Raises:
        UsageError: It asks for something else.
        DeviceError: No torch, or no such GPU.
    """
    try:
        import torch
    except ImportError as error:
        fix = "run the kdtree of the Python that SGLang is installed in (the image's: /opt/sglang/bin/kdtree)"
        raise DeviceError("no torch to prove the kernel with", str(error), fix) from error

    if text == "cpu":
        return [torch.device("cpu")]
    if text != "all" and not re.fullmatch(r"cuda:[0-9]{1,9}", text):
        raise UsageError("--device is none", f"'{text}'", "give cuda:N, cpu or all")
    count = torch.cuda.device_count()
    if not count:
        raise DeviceError(
            "no CUDA device", "torch sees none", "check nvidia-smi and the container's GPUs, or give --device cpu"
        )
    if text == "all":
        return [torch.device("cuda", index) for index in range(count)]
    index = int(text[5:])
    if index >= count:  # asked before torch is, to which only 8 bits of it may count
        raise DeviceError("no such CUDA device", f"{text} of {count}", f"give cuda:0 to cuda:{count - 1}, or all")
    return [torch.device("cuda", index)]


def check_architecture(kernels: Library, device: torch.device) -> None:
    """Raises CapabilityError where the library has no machine code for the device."""
    if device.type != "cuda" or kernels.supports_device(device.index) == abi.Status.OK:
        return
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    raise CapabilityError(
        f"the kernel library has no machine code for {device}",
        f"compute capability {major}.{minor}, the library has {', '.join(kernels.description.archs)}",
        f"build it with KDTREE_ARCHS={major}{minor}a, or use another GPU",
    )
