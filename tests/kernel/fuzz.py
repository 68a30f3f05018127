"""Tree-verify calls drawn from a seed: any lengths, masks, layouts, index types and slots that the ABI allows.

Whatever a call does not name is poisoned: NaN of every pattern in pool rows, NaN in query and draft rows and between
them, huge and negative indices before the first request's and after the last's, random bytes in the mask's prefix
columns and between its blocks. The structure comes from the seed alone; numbers come from the device's generator.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import torch

from cases import FP8, POOLS, fp8_edges, tree_mask, tree_parents
from kdtree_verify.abi import MAX_DRAFT_TOKENS, QK_DIM, V_DIM
from kdtree_verify.call import Call

POISON = 12345.0  # what an output holds before the call
POOL_DTYPES = tuple(POOLS.values())
NAN_BYTES = {
    torch.float8_e4m3fn: (0x7F, 0xFF),
    torch.float8_e5m2: (0x7C, 0x7D, 0x7E, 0x7F, 0xFC, 0xFD, 0xFE, 0xFF),  # infinities among them
}


@dataclass(frozen=True)
class Limits:
    """How large a call may be: (row, key) pairs, (token, head) rows, prefix keys in all, and requests."""

    pairs: int
    rows: int
    keys: int
    batch: int = 64


@dataclass
class DistantPool:
    """Pool memory whose rows lie further than 2^31 elements, and in fp8 2^32, from its first. NaN throughout on a GPU;
    on the CPU only what is touched takes memory, and zeros surround it."""

    device: torch.device
    size: int = 2**32 + 2**24
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


@dataclass(frozen=True)
class Shape:
    prefixes: tuple[int, ...]
    drafts: tuple[int, ...]
    heads: int
    pool_dtype: torch.dtype
    layout: str
    masks: str
    pool_stride: int
    distant: bool

    def __str__(self) -> str:
        dtype = str(self.pool_dtype).removeprefix("torch.")
        where = f"{self.layout}{', distant' if self.distant else ''}, slots {self.pool_stride} apart"
        return f"L {self.prefixes}, T {self.drafts}, H {self.heads}, {dtype}, {where}, masks {self.masks}"


def draw_shape(random: Random, limits: Limits, dtypes: tuple[torch.dtype, ...]) -> Shape:
    batch = min(random.choice((1, 1, 2, 3, 5, 8, 17, 33, 64, random.randint(1, 64))), limits.batch)
    heads = random.choice((8, 12, 16, 20)) if random.random() < 0.6 else random.randint(1, 128)
    longest_prefix, longest_draft = _log_uniform(random, 20_000), _log_uniform(random, MAX_DRAFT_TOKENS)
    ragged = random.random() < 0.7

    def length(longest: int, usual: tuple[int, ...]) -> int:
        if not ragged:
            return longest
        return random.choice((random.choice(usual), random.randint(0, longest), longest))

    prefixes = [length(longest_prefix, (0, 1, 31, 32, 33, 63, 64, 65)) for _ in range(batch)]
    drafts = [length(longest_draft, (0, 1, 2, 8, 16, 17)) for _ in range(batch)]
    drafts[-1] = max(drafts[-1], 1)
    pairs = _log_uniform(random, limits.pairs)

    def too_large() -> Iterator[tuple[list[int], int]]:
        """The lists and requests to halve the length of."""
        while True:
            work = [heads * t * (p + t) for p, t in zip(prefixes, drafts, strict=True)]
            if sum(drafts) * heads > limits.rows and sum(drafts) > 1:
                yield drafts, max(range(batch), key=drafts.__getitem__)
            elif sum(prefixes) > limits.keys:
                yield prefixes, max(range(batch), key=prefixes.__getitem__)
            elif sum(work) > max(pairs, heads):
                largest = max(range(batch), key=work.__getitem__)
                yield (prefixes if prefixes[largest] > drafts[largest] else drafts), largest
            else:
                return

    for lengths, request in too_large():
        lengths[request] //= 2
    drafts[-1] = max(drafts[-1], 1)
    dtype = random.choice(dtypes)
    apart = 16 // dtype.itemsize  # rows begin at 16 bytes
    return Shape(
        prefixes=tuple(prefixes),
        drafts=tuple(drafts),
        heads=heads,
        pool_dtype=dtype,
        layout=random.choice(("scattered", "pages of 16", "pages of 64")),
        masks=random.choice(("mixed", "mixed", "tree", "random", "nothing", "diagonal", "everything", "none")),
        pool_stride=QK_DIM + random.choice((0, 0, apart, 5 * apart)),
        distant=random.random() < 0.2,
    )


def _log_uniform(random: Random, high: int) -> int:
    return int(2 ** random.uniform(0, math.log2(high)))


def fuzz_call(
    seed: int,
    limits: Limits,
    device: torch.device,
    distant: DistantPool | None = None,
    dtypes: tuple[torch.dtype, ...] = POOL_DTYPES,
) -> tuple[Call, Shape]:
    """The seed's call. Without `distant` every pool is just large enough."""
    random = Random(seed)
    shape = draw_shape(random, limits, dtypes)
    generator = torch.Generator(device).manual_seed(seed)
    gap, index = random.randint(0, 5), random.choice((torch.int32, torch.int64))
    tokens = gap + sum(shape.drafts) + random.randint(0, 5)
    named = slice(gap, gap + sum(shape.drafts))

    def filled(width: int, heads: int) -> torch.Tensor:
        rows = _spread(random, tokens, heads, width, float("nan"), device)
        numbers = torch.randn(named.stop - gap, heads, width, generator=generator, device=device)
        rows[named] = numbers.bfloat16()
        return rows

    k_scale, v_scale = _descales(random, shape.pool_dtype)
    pool, indices = _pool(random, shape, k_scale, device, generator, distant)
    skipped = random.randint(0, 5)
    extremes = torch.tensor([torch.iinfo(index).max, torch.iinfo(index).min, -1], dtype=index, device=device)
    length = skipped + len(indices) + random.choice((0, 9, 5000))
    kv_indices = extremes.repeat(length // 3 + 1)[:length]
    kv_indices[skipped : skipped + len(indices)] = indices.to(device=device, dtype=index)
    k = filled(QK_DIM, 1)
    mask, mask_indptr = _mask(random, shape, device, generator)
    call = Call(
        q_extend=filled(QK_DIM, shape.heads),
        k_extend=k,
        v_extend=k[..., :V_DIM] if random.random() < 0.3 else filled(V_DIM, 1),
        o_extend=_spread(random, tokens, shape.heads, V_DIM, POISON, device),
        k_buffer=pool[:, None],
        v_buffer=pool[:, None, :V_DIM],
        qo_indptr=_indptr(random, shape.drafts, gap, device),
        kv_indptr=_indptr(random, shape.prefixes, skipped, device),
        kv_indices=kv_indices,
        custom_mask=mask,
        is_causal=True,
        mask_indptr=mask_indptr,
        max_len_extend=random.choice((max(shape.drafts), MAX_DRAFT_TOKENS)),
        k_scale=k_scale,
        v_scale=v_scale,
        sm_scale=random.choice((0.5, 3.0, 3.0, 20.0)) / QK_DIM**0.5,
    )
    return call, shape


def seeds(count: int) -> range:
    """0 to `count`, unless KDTREE_FUZZ says how many ("2000") or which ("731:732")."""
    first, _, last = os.environ.get("KDTREE_FUZZ", str(count)).rpartition(":")
    return range(int(first or 0), int(last))


def for_each_seed(chosen: range, make: Callable[[int], tuple[Call, Shape]], check: Callable[[Call], None]) -> None:
    """Checks every seed's call; names the first five that fail, and how to run them alone."""
    failures: list[str] = []
    for seed in chosen:
        call, shape = make(seed)
        try:
            check(call)
        except AssertionError as error:
            failures.append(f"KDTREE_FUZZ={seed}:{seed + 1}: {shape}: {error}")
        except Exception as error:
            error.add_note(f"KDTREE_FUZZ={seed}:{seed + 1}: {shape}")
            raise
        if len(failures) == 5:
            break
    assert not failures, "\n".join(failures)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of the tensor's storage."""
    elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage(), 0, (elements,), (1,))


def untouched(call: Call, named: torch.Tensor) -> bool:
    """Whether the output's memory is still poisoned everywhere but in the named rows."""
    written = torch.zeros_like(memory_of(call.o_extend), dtype=torch.bool)
    out = call.o_extend
    written.as_strided(out.shape, out.stride(), out.storage_offset())[named.to(out.device)] = True
    return bool((memory_of(out)[~written] == POISON).all())


def _descales(random: Random, dtype: torch.dtype) -> tuple[float, float]:
    if dtype not in FP8:
        return random.choice(((1.0, 1.0), (1.0, 1.0), (0.5, 0.85)))
    k_scale = random.choice((1.0, 0.31, 0.031, 8 / torch.finfo(dtype).max))
    return k_scale, k_scale * random.choice((1.0, 0.6, 1.9))


def _indptr(random: Random, lengths: tuple[int, ...], first: int, device: torch.device) -> torch.Tensor:
    dtype = random.choice((torch.int32, torch.int64))
    return torch.tensor([first, *lengths]).cumsum(0).to(device=device, dtype=dtype)


def _spread(random: Random, tokens: int, heads: int, width: int, fill: float, device: torch.device) -> torch.Tensor:
    """bfloat16 [tokens, heads, width] in memory full of `fill`: rows apart, tokens or heads outermost, begun anywhere
    that 16 bytes allow."""
    row = width + 8 * random.choice((0, 0, 1, 6))
    begin = 8 * random.choice((0, 0, 1, 3))
    if random.random() < 0.7:
        token, head = heads * row + 8 * random.choice((0, 0, 2)), row
    else:
        token, head = row, tokens * row + 8 * random.choice((0, 0, 2))
    size = begin + (tokens - 1) * token + (heads - 1) * head + width
    memory = torch.full((size,), fill, dtype=torch.bfloat16, device=device)
    return memory.as_strided((tokens, heads, width), (token, head, 1), begin)


def _pool(
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


def _mask(
    random: Random, shape: Shape, device: torch.device, generator: torch.Generator
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The mask's bytes, random where nobody looks, blocks in any order; and where each block begins."""
    if shape.masks == "none":
        return None, None
    batch = len(shape.drafts)
    sizes = [t * (p + t) for p, t in zip(shape.prefixes, shape.drafts, strict=True)]
    begins, end = [0] * batch, random.randint(0, 40)
    for request in random.sample(range(batch), batch):
        begins[request] = end
        end += sizes[request] + random.choice((0, 0, 13))
    mask = torch.randint(256, (end + 11,), generator=generator, device=device, dtype=torch.uint8)
    marks = random.choice(((1,), (1, 7, 128, 255)))
    for begin, prefix, rows in zip(begins, shape.prefixes, shape.drafts, strict=True):
        visible = _visible(random, shape.masks, rows).to(device=device, dtype=torch.uint8)
        marked = visible * random.choice(marks)
        mask[begin : begin + rows * (prefix + rows)].view(rows, prefix + rows)[:, prefix:] = marked
    dtype = random.choice((torch.int32, torch.int64))
    return mask.view(random.choice((torch.uint8, torch.bool))), torch.tensor(begins).to(device=device, dtype=dtype)


def _visible(random: Random, masks: str, rows: int) -> torch.Tensor:
    """bool [rows, rows]"""
    kinds = ("tree", "tree", "chain", "random", "random", "nothing", "diagonal", "everything")
    kind = random.choice(kinds) if masks == "mixed" else masks
    generator = torch.Generator().manual_seed(random.getrandbits(32))
    if kind == "tree":
        return tree_mask(tree_parents(rows, generator))
    if kind == "random":
        visible = torch.rand(rows, rows, generator=generator) < random.choice((0.02, 0.3, 0.9))
        visible[random.randrange(5) :: 5] = False  # rows that see no draft, not even themselves
        return visible
    every = torch.ones(rows, rows, dtype=torch.bool)
    return {"chain": every.tril(), "nothing": ~every, "diagonal": every.tril().triu(), "everything": every}[kind]
