"""kdtree_verify of the host library against the float64 reference."""

from __future__ import annotations

import os

import pytest
import torch

import reference
from cases import Case, make_call
from harness import Harness
from kdtree_verify.native import abi
from kdtree_verify.native.library import Library

F32, BF16, E4M3, E5M2 = torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2

CASES = [
    Case((64,), (16,), 8),
    Case((0,), (1,), 1),
    Case((0,), (17,), 3),
    Case((1, 1, 1), (4, 4, 4), 16),
    Case((5, 0, 131, 300), (16, 16, 16, 16), 12),
    Case((5, 0, 131, 300), (1, 33, 0, 7), 8, gap=2),
    Case((40, 9), (12, 30), 8, mask="any"),
    Case((0, 0), (12, 30), 8, mask="any"),
    Case((0, 77), (9, 16), 8, mask="chain"),
    Case((33,), (256,), 4),
    Case((300,), (64,), 128),
    Case((16, 15, 17), (20, 3, 9), 8, strided=True, gap=1),
    Case((100, 20), (16, 16), 20, q_dtype=F32, kv_dtype=F32, pool_dtype=F32, out_dtype=F32, strided=True),
    Case((100, 20), (16, 16), 8, q_dtype=BF16, kv_dtype=F32, pool_dtype=E5M2, out_dtype=F32),
    Case((100, 20), (16, 16), 8, pool_dtype=E4M3, k_scale=0.25, v_scale=3.5),
    Case((100, 20), (16, 16), 8, pool_dtype=E5M2, k_scale=2.0, v_scale=0.125),
    Case((130, 7), (10, 10), 8, indptr_dtype=torch.int64, indices_dtype=torch.int32, mask_dtype=torch.bool),
    Case((200,), (16,), 8, scale=60.0),  # nearly one key a row: the running maximum moves
]


AT_THE_LIMITS = [
    Case((9,), (abi.MAX_DRAFT_TOKENS,), abi.MAX_HEADS),
    Case((1, 0) * (abi.MAX_BATCH // 2), (1, 1) * (abi.MAX_BATCH // 2), 1, mask="any"),
]


@pytest.mark.parametrize(
    ("case", "seed"),
    [(case, seed) for seed in (0, 1) for case in CASES] + [(case, 0) for case in AT_THE_LIMITS],
    ids=str,
)
def test_equals_float64(library: Library, case: Case, seed: int) -> None:
    call = make_call(case, seed)
    harness = Harness(library)
    assert harness.verify(call) == abi.Status.OK
    want, named = reference.attention(call), reference.named_rows(call)
    reference.assert_rounded(call.o_extend[named], want[named])
    assert (call.o_extend[~named] == torch.tensor(12345.0).to(case.out_dtype)).all()
    assert harness.record.out_of_range == 0
    assert harness.record.kernel_rows == sum(case.drafts)


@pytest.mark.parametrize("nodes", [16, 60, 256])
def test_ddtree_masks(library: Library, nodes: int) -> None:
    case = Case((7, 50), (nodes, nodes // 2), 8, q_dtype=F32, kv_dtype=F32, pool_dtype=F32, out_dtype=F32)
    call = make_call(case, seed=nodes)
    first = reference.requests(call)[0].visible
    assert (first.int().diff(dim=1) == 1).sum() > nodes / 2  # the ancestors do not lie side by side
    assert Harness(library).verify(call) == abi.Status.OK
    reference.assert_rounded(call.o_extend, reference.attention(call))


def test_whole_captured_buffers(library: Library) -> None:
    """Under graph replay indices and mask are the captured buffers: far longer than the call needs."""
    call = make_call(Case((30, 4), (8, 8), 8))
    indices = torch.full((5000,), 2**62, dtype=torch.int64)
    indices[: len(call.kv_indices)] = call.kv_indices
    mask = torch.full((20000,), 255, dtype=torch.uint8)
    mask[: len(call.custom_mask)] = call.custom_mask
    large = call._replace(kv_indices=indices, custom_mask=mask, max_len_extend=abi.MAX_DRAFT_TOKENS)
    harness = Harness(library)
    assert harness.verify(large) == abi.Status.OK
    reference.assert_rounded(call.o_extend, reference.attention(call))
    assert harness.record.out_of_range == 0


def test_shared_slots_and_key_order(library: Library) -> None:
    """Two requests may share prefix slots, and a slot may occur twice."""
    call = make_call(Case((6, 6), (4, 4), 2, out_dtype=F32))
    call.kv_indices[:12] = call.kv_indices[[3, 3, 0, 1, 2, 5, 5, 3, 1, 0, 2, 2]]
    assert Harness(library).verify(call) == abi.Status.OK
    reference.assert_rounded(call.o_extend, reference.attention(call))


def test_rows_that_see_nothing_are_zeros(library: Library) -> None:
    call = make_call(Case((0, 0), (12, 5), 4, mask="any"))
    assert Harness(library).verify(call) == abi.Status.OK
    blind = torch.cat([~request.visible.any(1) for request in reference.requests(call)])
    assert blind.any()
    assert not blind.all()
    assert (call.o_extend[blind] == 0).all()
    assert (call.o_extend[~blind] != 0).any(-1).all()


def test_columns_right_of_the_row_count(library: Library) -> None:
    """The mask is what counts, not the order of the tokens: a row may see later ones."""
    call = make_call(Case((3,), (80,), 2))
    call.custom_mask[: 80 * 83].view(80, 83)[:, 3:] = torch.ones(80, 80).triu().to(torch.uint8)
    assert Harness(library).verify(call) == abi.Status.OK
    reference.assert_rounded(call.o_extend, reference.attention(call))


def test_nothing_to_do(library: Library) -> None:
    """No request, or requests without rows: a call like any other."""
    harness = Harness(library)
    call = make_call(Case((4,), (2,), 2))
    no_request = call._replace(qo_indptr=call.qo_indptr[:1], kv_indptr=call.kv_indptr[:1])
    assert harness.verify(no_request) == abi.Status.OK
    no_row = call._replace(qo_indptr=torch.zeros_like(call.qo_indptr))
    assert harness.verify(no_row) == abi.Status.OK
    assert (call.o_extend == torch.tensor(12345.0).bfloat16()).all()
    assert (harness.record.kernel_calls, harness.record.kernel_rows) == (2, 0)


def test_same_bytes_on_any_number_of_threads(library: Library) -> None:
    """A row's sum is always taken in one order: replays can be compared bit by bit."""
    case = Case((300, 20), (64, 30), 16, out_dtype=F32)
    call = make_call(case)
    assert Harness(library).verify(call) == abi.Status.OK
    many = call.o_extend.clone()
    processors = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(processors)})
        assert Harness(library).verify(call) == abi.Status.OK
    finally:
        os.sched_setaffinity(0, processors)
    assert torch.equal(many, call.o_extend)


@pytest.mark.parametrize("seed", range(40))
def test_random_shapes(library: Library, seed: int) -> None:
    """Shapes, dtypes, masks and layouts drawn from the seed."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def draw(*options):
        return options[int(torch.randint(len(options), (), generator=generator))]

    batch = draw(1, 2, 3, 5)
    case = Case(
        prefixes=tuple(draw(0, 1, 15, 16, 17, 31, 33, 90, 257) for _ in range(batch)),
        drafts=(*tuple(draw(0, 1, 4, 8, 15, 16, 17, 31, 64) for _ in range(batch - 1)), draw(1, 5, 16, 40)),
        heads=draw(1, 2, 3, 8, 12, 16, 20),
        q_dtype=draw(BF16, F32),
        kv_dtype=draw(BF16, F32),
        pool_dtype=draw(BF16, F32, E4M3, E5M2),
        out_dtype=draw(BF16, F32),
        indptr_dtype=draw(torch.int32, torch.int64),
        indices_dtype=draw(torch.int32, torch.int64),
        mask_dtype=draw(torch.uint8, torch.bool),
        mask=draw("tree", "any", "chain"),
        k_scale=draw(1.0, 0.5, 0.037),
        v_scale=draw(1.0, 2.0, 0.71),
        strided=draw(False, True),
        gap=draw(0, 1, 3),
        scale=draw(0.5, 3.0, 20.0),
    )
    call = make_call(case, seed)
    harness = Harness(library)
    assert harness.verify(call) == abi.Status.OK
    named = reference.named_rows(call)
    reference.assert_rounded(call.o_extend[named], reference.attention(call)[named])
    assert (call.o_extend[~named] == torch.tensor(12345.0).to(case.out_dtype)).all()
    assert harness.record.out_of_range == 0
