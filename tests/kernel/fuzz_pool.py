"""The KV pool of a fuzzed call: where its rows lie, which of them the call uses, and poison in all others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

import torch

from cases import FP8, fp8_edges
from fuzz_shape import Shape
from kdtree_verify.native.abi import QK_DIM

NAN_BYTES = {
    torch.float8_e4m3fn: (0x7F, 0xFF),
    torch.float8_e5m2: (0x7C, 0x7D, 0x7E, 0x7F, 0xFC, 0xFD, 0xFE, 0xFF),  # infinities among them
}


@dataclass
class DistantPool:
    """Pool memory whose rows lie further than 2^31 elements, and in fp8 2^32, from its first. NaN throughout on a GPU;
    on the CPU only what is touched takes memory, and zeros surround it."""

    device: torch.device
    size: int = 3 * 2**31
    memory: torch.Tensor = field(init=False)
    _dirty: tuple[torch.Tensor, torch.Tensor] | None = None

    def __post_init__(self) -> None:
        self.memory = torch.empty(self.size, dtype=torch.uint8, device=self.device)
        if self.device.type == "cuda":
            self.memory.fill_(0xFF)

    def rows(self, dtype: torch.dtype, stride: int) -> torch.Tensor:
        """The whole memory as pool rows, NaN where a call before this one had its own."""
        if self._dirty is not None:
            bytes_, slots = self._dirty
            bytes_[slots] = 0xFF
        elements = self.memory.view(dtype)
        return elements.as_strided(((len(elements) - QK_DIM) // stride + 1, QK_DIM), (stride, 1))

    def fill(self, pool: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        bytes_ = pool.view(torch.uint8)
        bytes_[slots] = rows.view(torch.uint8)
        self._dirty = (bytes_, slots)


def make_pool(
    random: Random,
    shape: Shape,
    k_scale: float,
    device: torch.device,
    generator: torch.Generator,
    distant: DistantPool | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pool rows [slots, 576], and the slots of all prefixes, one request's after the other's."""
    entries, count = _logical(random, shape)
    dtype, stride = shape.pool_dtype, shape.pool_stride
    page = {"scattered": 1, "pages of 16": 16, "pages of 64": 64}[shape.layout]
    needed = -(-count // page)
    if distant is not None and shape.distant:
        pool = distant.rows(dtype, stride)
        pages = len(pool) // page
    else:
        pages = max(needed, 1) + random.choice((0, 1, 7))
        memory = torch.full(((pages * page - 1) * stride + QK_DIM,), float("nan"), device=device).to(dtype)
        if dtype in NAN_BYTES:
            patterns = torch.tensor(NAN_BYTES[dtype], dtype=torch.uint8, device=device)
            draw = torch.randint(len(patterns), memory.shape, generator=generator, device=device)
            memory = patterns[draw].view(dtype)
        pool = memory.as_strided((pages * page, QK_DIM), (stride, 1))
    # Pages in an order without order, the whole pool over: i -> first + i step, step without a factor of theirs.
    step = random.randrange(1, pages + 1)
    while math.gcd(step, pages) > 1:
        step = step % pages + 1
    first = random.randrange(pages)
    logical = torch.arange(count)
    slots = (first + logical // page * step) % pages * page + logical % page
    used = torch.unique(entries)
    rows = torch.randn(len(used), QK_DIM, generator=generator, device=device) / k_scale
    if dtype in FP8:
        rows = fp8_edges(rows, dtype, k_scale, generator)
    here = slots[used].to(device)
    if distant is not None and shape.distant:
        distant.fill(pool, here, rows.to(dtype))
    else:
        pool.view(torch.uint8)[here] = rows.to(dtype).view(torch.uint8)
    return pool, slots[entries]


def _logical(random: Random, shape: Shape) -> tuple[torch.Tensor, int]:
    """What each prefix entry is, as numbers below the count returned: each request's own begin at a page; some requests
    begin with another's, some entries occur twice."""
    parts: list[torch.Tensor] = []
    count = 0
    sharing, repeating = random.random() < 0.3, random.random() < 0.2
    for length in shape.prefixes:
        own = count + torch.arange(length)
        count += -(-length // 64) * 64 if shape.layout != "scattered" else length
        if sharing and parts and random.random() < 0.7:
            other = random.choice(parts)
            common = random.randint(0, min(length, len(other)))
            own[:common] = other[:common]
        if repeating and length > 1:
            for _ in range(random.randint(1, 8)):
                own[random.randrange(length)] = own[random.randrange(length)].clone()
        parts.append(own)
    return torch.cat(parts), count
