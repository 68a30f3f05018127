"""kdtree_verify of the host library on calls drawn from seeds (fuzz.py), small ones, against float64.

KDTREE_FUZZ chooses how many or which: "2000", "731:732".
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

import oracle
import reference
from fuzz import POISON, for_each_seed, fuzz_call, memory_of, seeds, untouched
from fuzz_pool import DistantPool
from fuzz_shape import POOL_DTYPES, Limits, Shape
from harness import Harness
from kdtree_verify.native import abi
from kdtree_verify.native.call import Call
from kdtree_verify.native.library import Library

CPU = torch.device("cpu")
LIMITS = Limits(pairs=2**19, rows=2**11, keys=1500, batch=24)
INDICES = ("qo_indptr", "kv_indptr", "kv_indices", "mask_indptr")


def make(seed: int) -> tuple[Call, Shape]:
    # A pool of its own for each: only the pages that its call touches take memory.
    return fuzz_call(seed, LIMITS, CPU, DistantPool(CPU))


def test_equals_float64(library: Library) -> None:
    harness = Harness(library)

    def check(call: Call) -> None:
        named = reference.named_rows(call)
        assert harness.verify(call) == abi.Status.OK
        reference.assert_rounded(call.o_extend[named], reference.attention(call)[named])
        assert untouched(call, named)
        first = memory_of(call.o_extend).clone()
        memory_of(call.o_extend).fill_(POISON)
        harness.workspace.fill_(0x3C)
        assert harness.verify(call) == abi.Status.OK
        assert torch.equal(memory_of(call.o_extend), first), "not the same bits twice"
        assert harness.record.out_of_range == 0

    for_each_seed(seeds(120), make, check)


def test_the_oracle_of_many_rows_is_the_reference() -> None:
    """The float64 that a GPU is held against is this folder's, over the same calls; and the bf16 flash computation
    passes for a kernel, so that the bounds can be met."""

    def check(call: Call) -> None:
        want, named = reference.attention(call), reference.named_rows(call)
        atol = 1e-9 * call.v_scale / call.k_scale  # the values' size
        torch.testing.assert_close(oracle.attention(call), want, rtol=1e-9, atol=atol, equal_nan=True)
        oracle.Errors().add(call, oracle.bf16_flash(call).masked_fill(~named[:, None, None], POISON))

    for_each_seed(seeds(40), make, check)


def _traits(call: Call, shape: Shape) -> Iterator[str]:
    """What a call has of what must occur."""
    requests = reference.requests(call)
    slots = torch.cat([request.slots for request in requests])
    dtype, largest = shape.pool_dtype, int(slots.max()) if len(slots) else 0
    yield f"{dtype} pool, {shape.layout}"
    yield f"{shape.masks} masks"
    for name in ("qo_indptr", "kv_indptr", "kv_indices", "mask_indptr", "custom_mask"):
        if (tensor := getattr(call, name)) is not None:
            yield f"{name} of {tensor.dtype}"
    facts = {
        f"{dtype} pool, an element beyond 2^31": largest * call.k_buffer.stride(0) > 2**31,
        "a slot beyond 2^31 / 576": largest > 2**31 // abi.QK_DIM,
        f"{dtype} pool, slots apart": shape.pool_stride > abi.QK_DIM,
        "a slot used twice": len(slots) > len(slots.unique()),
        "no prefix beside one": 0 in shape.prefixes and max(shape.prefixes) > 100,
        "no draft beside some": 0 in shape.drafts,
        "a draft behind the 64th that is seen": any(r.visible[:, 64:].any() for r in requests),
        "heads outermost": call.q_extend.stride(0) < call.q_extend.stride(1),
        "output heads outermost": call.o_extend.stride(0) < call.o_extend.stride(1),
        "output rows apart": call.o_extend.stride(1) > abi.V_DIM,
        "values are the keys' columns": call.v_extend.data_ptr() == call.k_extend.data_ptr(),
        "rows that see nothing": any(not len(r.slots) and not r.visible.any(1).all() for r in requests),
        "drafts that see later ones": any(r.visible.triu(1).any() for r in requests),
    }
    yield from (name for name, holds in facts.items() if holds)


def test_the_seeds_draw_everything() -> None:
    found = {trait for seed in range(150) for trait in _traits(*make(seed))}
    wanted = {f"{name} of torch.{kind}" for name in INDICES for kind in ("int32", "int64")}
    wanted |= {f"custom_mask of torch.{kind}" for kind in ("uint8", "bool")}
    wanted |= {f"{kind} masks" for kind in ("mixed", "tree", "random", "nothing", "diagonal", "everything", "none")}
    for dtype in POOL_DTYPES:
        wanted |= {f"{dtype} pool, {layout}" for layout in ("scattered", "pages of 16", "pages of 64")}
        wanted |= {f"{dtype} pool, {trait}" for trait in ("an element beyond 2^31", "slots apart")}
    wanted |= {
        "a slot beyond 2^31 / 576", "a slot used twice",
        "no prefix beside one", "no draft beside some", "a draft behind the 64th that is seen",
        "heads outermost", "output heads outermost", "output rows apart", "values are the keys' columns",
        "rows that see nothing", "drafts that see later ones",
    }  # fmt: skip
    assert found == wanted
