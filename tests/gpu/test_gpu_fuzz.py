"""kdtree_verify of the CUDA library on calls drawn from seeds (tests/kernel/fuzz.py), against float64, the bf16 flash
computation and stock's error.

KDTREE_FUZZ chooses how many or which: "2000", "731:732".
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest
import torch

import reference
from cases import POOLS
from fuzz import POISON, for_each_seed, fuzz_call, memory_of, seeds, untouched
from fuzz_pool import DistantPool
from fuzz_shape import Limits, Shape, draw_shape
from harness import Harness
from kdtree_verify.native import abi
from kdtree_verify.native.call import Call
from oracle import DEVICE, Errors

pytestmark = pytest.mark.gpu

LIMITS = Limits(pairs=2**26, rows=2**16, keys=200_000)
# Past the signed and, where the card has the memory, the unsigned 32-bit number of bf16 elements.
DISTANT_BYTES = (3 * 2**32, 3 * 2**31)
OTHER_BYTES = 6 * 2**30  # what the calls and their float64 take


@pytest.fixture(scope="module")
def distant() -> DistantPool | None:
    """None on a card too small for it: then the pools of all calls are near."""
    free, _ = torch.cuda.mem_get_info(DEVICE)
    size = next((size for size in DISTANT_BYTES if size + OTHER_BYTES < free), None)
    return size and DistantPool(DEVICE, size)


def test_close_to_float64_and_repeatable(harness: Harness, distant: DistantPool | None) -> None:
    totals: dict[torch.dtype, Errors] = defaultdict(Errors)

    def make(seed: int) -> tuple[Call, Shape]:
        return fuzz_call(seed, LIMITS, DEVICE, distant)

    def check(call: Call) -> None:
        harness.workspace.fill_(0xFF)
        assert harness.verify(call) == abi.Status.OK
        first = memory_of(call.o_extend).clone()
        totals[call.k_buffer.dtype].add(call, call.o_extend)
        assert untouched(call, reference.named_rows(call)), "memory between or beside the output's rows was written"
        harness.workspace.fill_(0x3C)
        memory_of(call.o_extend).fill_(POISON)
        assert harness.verify(call) == abi.Status.OK
        again = memory_of(call.o_extend)
        assert torch.equal(again.view(torch.int16), first.view(torch.int16)), "not the same bits twice"

    chosen = seeds(150)
    for_each_seed(chosen, make, check)
    assert harness.record.out_of_range == 0
    assert harness.record.kernel_calls == 2 * len(chosen)
    for dtype, errors in totals.items():
        name = str(dtype).removeprefix("torch.")
        print(
            f"{name}: relative error {errors.relative:.3e}, {errors.ratio:.3f} times bf16 flash's, "
            f"{errors.stock_ratio:.3f} times stock's"
        )
        if len(chosen) >= 100:
            assert errors.ratio <= 1.1
            assert errors.stock_ratio <= (1.1 if dtype == torch.bfloat16 else 1.0)


@pytest.mark.parametrize("pool", POOLS)
def test_slots_beyond_32_bits(harness: Harness, distant: DistantPool | None, pool: str) -> None:
    if distant is None:
        pytest.skip(f"the card has less than {(DISTANT_BYTES[-1] + OTHER_BYTES) >> 30} GiB free")
    dtypes = (POOLS[pool],)
    far = [seed for seed in range(60) if draw_shape(Random(seed), LIMITS, dtypes).distant]
    largest = 0
    for seed in far:
        call, shape = fuzz_call(seed, LIMITS, DEVICE, distant, dtypes)
        assert harness.verify(call) == abi.Status.OK
        try:
            Errors().add(call, call.o_extend)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {shape}: {error}") from error
        for request in reference.requests(call):
            if len(request.slots):
                largest = max(largest, int(request.slots.max()) * call.k_buffer.stride(0))
    assert largest > 2**31
    assert harness.record.out_of_range == 0
