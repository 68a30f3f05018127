"""The benchmark's own float64 against that of the kernel's tests, and what it finds wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import reference
from bench import oracle
from bench.cells import Cell
from bench.contenders import ERROR_BOUND, Kdtree
from bench.inputs import UNWRITTEN, Inputs, tree_masks
from bench_samples import CPU, TINY

CELLS = [TINY, replace(TINY, prefix=0), replace(TINY, drafts=1), replace(TINY, short=2), replace(TINY, pool="e4m3")]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.key)
def test_it_is_the_reference(cell: Cell) -> None:
    (call,) = Inputs(CPU, 4096).calls(cell, 1)
    want = reference.attention(call).bfloat16()
    found = oracle.check(call, cell.lengths, want)
    assert found.flaw is None
    assert found.relative < 3e-3  # bf16's own rounding
    assert found.worst_row < 4e-3


def test_a_chain_is_the_causal_rule() -> None:
    (call,) = Inputs(CPU, 4096).calls(TINY, 1)
    chain = reference.attention(call._replace(custom_mask=None, mask_indptr=None)).bfloat16()
    assert oracle.check(call, TINY.lengths, chain, chain=True).relative < 3e-3
    assert oracle.check(call, TINY.lengths, chain).relative > 0.1


SPOILS: dict[str, Callable[[torch.Tensor], object]] = {
    "one row scaled": lambda out: out[3, 1].mul_(1.2),
    "two rows swapped": lambda out: out[:2].copy_(out[:2].flip(0)),
    "not finite": lambda out: out[0, 0, 0].fill_(float("nan")),
    "not written": lambda out: out[-1].fill_(UNWRITTEN),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_wrong_output_is_found(spoil: str) -> None:
    (call,) = Inputs(CPU, 4096).calls(TINY, 1)
    out = reference.attention(call).bfloat16()
    assert oracle.check(call, TINY.lengths, out).verdict(ERROR_BOUND) is None
    SPOILS[spoil](out)
    assert oracle.check(call, TINY.lengths, out).verdict(ERROR_BOUND)


@pytest.mark.parametrize("prefix", [1, 1000, 30000])
def test_a_mask_read_as_a_chain_is_found_after_any_prefix(prefix: int) -> None:
    cell = Cell(1, 2, 8, prefix)
    (call,) = Inputs(CPU, prefix).calls(cell, 1)
    out = reference.attention(call._replace(custom_mask=None, mask_indptr=None)).bfloat16()
    assert oracle.check(call, cell.lengths, out).relative > 20 * ERROR_BOUND


def test_long_prefixes_are_checked_on_some_rows(ours: Kdtree) -> None:
    cell = Cell(1, 8, 1, oracle.WHOLE_PREFIX + 1, short=2)
    (call,) = Inputs(CPU, sum(cell.lengths)).calls(cell, 1)
    ours.prepare(cell, [call]).launches[0]()
    assert oracle.check(call, cell.lengths, call.o_extend).verdict(ERROR_BOUND) is None
    call.o_extend[0] *= 1.5  # the long request is always among the sampled
    assert oracle.check(call, cell.lengths, call.o_extend).verdict(ERROR_BOUND)


def test_trees_are_trees() -> None:
    masks = tree_masks(5, 16, seed=3)
    assert masks.diagonal(dim1=1, dim2=2).all()
    assert not masks.triu(1).any()
    # An ancestor's ancestors are seen too.
    twice = (masks.float() @ masks.float()) > 0
    assert torch.equal(twice, masks)
    assert not torch.equal(masks[0], masks[1])


def test_calls_of_a_cell_share_nothing() -> None:
    calls = Inputs(CPU, 4096).calls(TINY, 3)
    used = sum(TINY.lengths)
    slots = torch.cat([call.kv_indices[:used] for call in calls])
    assert len(set(slots.tolist())) == 3 * used
    assert 0 not in slots
    assert len({call.q_extend.data_ptr() for call in calls}) == 3
