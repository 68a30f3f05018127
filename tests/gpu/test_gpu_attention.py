"""kdtree_verify of the CUDA library against float64, over shapes, layouts, masks and index types."""

from __future__ import annotations

import pytest
import torch

import reference
from cases import POOLS, Case, make_call, with_pool
from harness import Harness
from kdtree_verify.native import abi
from kdtree_verify.native.call import Call
from oracle import DEVICE, Errors, attention, on_gpu

pytestmark = pytest.mark.gpu

I32, I64 = torch.int32, torch.int64
every_pool = pytest.mark.parametrize("pool", POOLS)

CASES = [
    Case((64,), (16,), 8),
    Case((0,), (1,), 1),
    Case((0,), (17,), 3),
    Case((1, 1, 1), (4, 4, 4), 16),
    Case((31, 32, 33), (8, 8, 8), 8),
    Case((5, 0, 131, 300), (16, 16, 16, 16), 12),
    Case((5, 0, 131, 300), (1, 33, 0, 7), 8, gap=2),
    Case((40, 9), (12, 30), 8, mask="any"),
    Case((0, 0), (12, 30), 8, mask="any"),
    Case((0, 77), (9, 16), 8, mask="chain"),
    Case((33,), (256,), 4),
    Case((300,), (64,), 128),
    Case((1000, 3), (256, 200), 128, mask="chain"),
    Case((16, 15, 17), (20, 3, 9), 8, strided=True, gap=1),
    Case((130, 7), (10, 10), 8, indptr_dtype=I64, indices_dtype=I32, mask_dtype=torch.bool),
    Case((200,), (16,), 8, scale=60.0),  # nearly one key a row: the running maximum moves
    Case((500, 20), (8, 8), 8, k_scale=0.25, v_scale=3.5),
    Case((4096,), (16,), 8),
    Case((130_000, 1), (16, 16), 8),
    Case((60_000, 17, 0, 2000), (4, 4, 4, 4), 12, strided=True),
    Case(tuple(i % 200 for i in range(1024)), (2,) * 1024, 8),
    Case((5,) * 700, tuple(1 + i % 9 for i in range(700)), 3, indptr_dtype=I64),
]


def verified(harness: Harness, call: Call, **fields: int) -> Call:
    assert harness.verify(call, **fields) == abi.Status.OK
    torch.cuda.synchronize()
    return call


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("pool", "seed"), [("bf16", 0), ("bf16", 1), ("e4m3", 0), ("e5m2", 1)])
def test_close_to_float64(harness: Harness, case: Case, pool: str, seed: int) -> None:
    call = on_gpu(make_call(with_pool(case, pool), seed))
    Errors().add(call, verified(harness, call).o_extend)
    assert (harness.record.out_of_range, harness.record.kernel_rows) == (0, sum(case.drafts))


@every_pool
@pytest.mark.parametrize("nodes", [16, 60, 256])
def test_ddtree_masks(harness: Harness, nodes: int, pool: str) -> None:
    call = on_gpu(make_call(with_pool(Case((70, 900), (nodes, nodes // 2), 8), pool), seed=nodes))
    first = reference.requests(call)[0].visible
    assert (first.int().diff(dim=1) == 1).sum() > nodes / 2  # the ancestors do not lie side by side
    Errors().add(call, verified(harness, call).o_extend)


def test_the_draft_values_are_the_passed_ones(harness: Harness) -> None:
    """Not the keys' first columns, which stock may pass or not."""
    call = on_gpu(make_call(Case((3,), (40,), 4)))
    assert not torch.equal(call.v_extend, call.k_extend[..., : abi.V_DIM])
    Errors().add(call, verified(harness, call).o_extend)


def test_every_mask_byte_counts(harness: Harness) -> None:
    """One visible draft token at a time, at every place of a 70 x 70 mask."""
    call = on_gpu(make_call(Case((0,), (70,), 1)))
    for shift in range(70):
        eye = torch.eye(70, dtype=torch.uint8, device=DEVICE).roll(shift, 1)
        call.custom_mask[: 70 * 70] = eye.flatten() * 64
        verified(harness, call)
        assert torch.equal(call.o_extend[:, 0], call.v_extend[:, 0].roll(-shift, 0))


@every_pool
def test_whole_captured_buffers(harness: Harness, pool: str) -> None:
    """Under graph replay indices and mask are the captured buffers: far longer than the call needs."""
    call = on_gpu(make_call(with_pool(Case((300, 4), (8, 8), 8), pool)))
    indices = torch.full((5000,), 2**62, dtype=I64, device=DEVICE)
    indices[: len(call.kv_indices)] = call.kv_indices
    mask = torch.full((20000,), 255, dtype=torch.uint8, device=DEVICE)
    mask[: len(call.custom_mask)] = call.custom_mask
    large = call._replace(kv_indices=indices, custom_mask=mask, max_len_extend=abi.MAX_DRAFT_TOKENS)
    Errors().add(call, verified(harness, large).o_extend)
    assert harness.record.out_of_range == 0


def test_distant_rows(harness: Harness) -> None:
    """Query, draft and output rows further apart than 2^31 elements in all."""
    call = on_gpu(make_call(Case((40,), (12,), 4)))
    apart = 2**28
    memory = torch.empty(11 * apart + 2**20, dtype=torch.bfloat16, device=DEVICE)
    wide = {}
    for i, name in enumerate(("q_extend", "k_extend", "v_extend", "o_extend")):
        rows = getattr(call, name)
        wide[name] = memory.as_strided(rows.shape, (apart, *rows.stride()[1:]), i * 2**16)
        wide[name].copy_(rows)
    call = call._replace(**wide)
    Errors().add(call, verified(harness, call).o_extend)


@every_pool
def test_shared_and_repeated_slots(harness: Harness, pool: str) -> None:
    call = on_gpu(make_call(with_pool(Case((6, 6), (4, 4), 2), pool)))
    call.kv_indices[:12] = call.kv_indices[[3, 3, 0, 1, 2, 5, 5, 3, 1, 0, 2, 2]]
    Errors().add(call, verified(harness, call).o_extend)


def test_rows_that_see_nothing_are_zeros(harness: Harness) -> None:
    call = on_gpu(make_call(Case((0, 0), (120, 5), 4, mask="any")))
    verified(harness, call)
    blind = torch.cat([~request.visible.any(1) for request in reference.requests(call)])
    assert blind.any()
    assert not blind.all()
    assert (call.o_extend[blind] == 0).all()
    assert (call.o_extend[~blind] != 0).any(-1).all()


def test_nothing_to_do(harness: Harness) -> None:
    call = on_gpu(make_call(Case((4,), (2,), 2)))
    verified(harness, call._replace(qo_indptr=call.qo_indptr[:1], kv_indptr=call.kv_indptr[:1]))
    verified(harness, call._replace(qo_indptr=torch.zeros_like(call.qo_indptr)))
    assert (call.o_extend == 12345.0).all()
    assert (harness.record.kernel_calls, harness.record.kernel_rows) == (2, 0)


def test_another_stream_and_another_thread_s_device(harness: Harness) -> None:
    call = on_gpu(make_call(Case((700,), (16,), 8)))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert harness.verify(call) == abi.Status.OK
    stream.synchronize()
    Errors().add(call, call.o_extend)


@every_pool
@pytest.mark.parametrize("case", [CASES[6], CASES[17], CASES[19], CASES[20]], ids=str)
def test_bitwise_repeatable(harness: Harness, case: Case, pool: str) -> None:
    """Whatever the workspace held, and however the blocks were scheduled."""
    call = on_gpu(make_call(with_pool(case, pool), 3))
    first = verified(harness, call).o_extend.clone()
    busy = torch.randn(4096, 4096, device=DEVICE)
    for byte in (0x00, 0x7F, 0xFF, 0xC3, 0x55):
        harness.workspace.fill_(byte)
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            busy @ busy  # other work on the card shifts who runs when
        call.o_extend.fill_(12345.0)
        verified(harness, call)
        assert torch.equal(call.o_extend.view(torch.int16), first.view(torch.int16))


@every_pool
def test_variants_are_all_right(harness: Harness, pool: str) -> None:
    call = on_gpu(make_call(with_pool(Case((400, 3), (16, 16), 12), pool)))
    for variant in range(1, len(harness.library.description.variants) + 1):
        call.o_extend.fill_(12345.0)
        Errors().add(call, verified(harness, call, variant=variant).o_extend)


@every_pool
def test_where_segments_begin_and_end(harness: Harness, pool: str) -> None:
    """Tiles begin and end anywhere within a CTA's share of the work, among prefix keys or drafts: sweep where."""
    for length in range(900, 1100, 13):
        call = on_gpu(make_call(with_pool(Case((length, 5, 64), (5, 9, 20), 8), pool), seed=length))
        Errors().add(call, verified(harness, call).o_extend)
    for drafts in range(200, 257, 9):  # many draft blocks behind a short prefix
        call = on_gpu(make_call(with_pool(Case((drafts - 190, 0), (drafts, 33), 12), pool), seed=drafts))
        Errors().add(call, verified(harness, call).o_extend)


@every_pool
def test_float64_itself(harness: Harness, pool: str) -> None:
    """The oracle on the GPU and the row-by-row reference agree, so either may judge."""
    for case in (CASES[5], CASES[6], CASES[7], CASES[16]):
        call = on_gpu(make_call(with_pool(case, pool)))
        want = reference.attention(call)
        atol = 1e-9 * call.v_scale / call.k_scale  # the values' size
        torch.testing.assert_close(attention(call).cpu(), want, rtol=1e-9, atol=atol, equal_nan=True)
