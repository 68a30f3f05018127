"""What SGLang's Triton attention asks of sglang.srt.utils on an NVIDIA GPU; ci/bench-peers puts it in that place.

The real module imports the whole server. These are all the names that the attention modules take from it.
"""

import torch


def is_cuda() -> bool:
    return torch.version.cuda is not None


def is_hip() -> bool:
    return False


def is_gfx95_supported() -> bool:
    return False


def is_gfx1250_supported() -> bool:
    return False


def get_device_core_count(device_id: int = 0) -> int:
    return torch.cuda.get_device_properties(device_id).multi_processor_count
