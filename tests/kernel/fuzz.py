"""Tree-verify calls drawn from a seed: any lengths, masks, layouts, index types and slots that the ABI allows.

Whatever a call does not name is poisoned: NaN of every pattern in pool rows, NaN in query and draft rows and between
them, huge and negative indices before the first request's and after the last's, random bytes in the mask's prefix
columns and between its blocks. The structure comes from the seed alone; numbers come from the device's generator.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import torch

from cases import FP8, tree_mask, tree_parents
from fuzz_pool import DistantPool, make_pool
from fuzz_shape import POOL_DTYPES, Limits, Shape, draw_shape
from kdtree_verify.native.abi import MAX_DRAFT_TOKENS, QK_DIM, V_DIM
from kdtree_verify.native.call import Call

POISON = 12345.0  # what an output holds before the call


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
    pool, indices = make_pool(random, shape, k_scale, device, generator, distant)
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
