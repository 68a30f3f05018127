"""Every byte of an fp8 pool, as the CUDA library reads it."""

from __future__ import annotations

import pytest
import torch

from cases import FP8
from float8_calls import keys_call, values_call
from harness import Harness
from kdtree_verify.native import abi
from oracle import on_gpu

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("v_scale", [1.0, 0.375])
def test_every_byte_as_a_value(harness: Harness, dtype: torch.dtype, v_scale: float) -> None:
    """Exactly: weights are powers of two, and the scaled numbers have fewer bits than bf16."""
    call, want = values_call(dtype, v_scale)
    call = on_gpu(call)
    assert harness.verify(call) == abi.Status.OK
    got, finite = call.o_extend.cpu().double(), want.isfinite()
    assert torch.equal(got[finite], want[finite])
    assert got[~finite].isnan().all()


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("k_scale", [1.0, 0.5, 6.0])
def test_every_byte_as_a_key(harness: Harness, dtype: torch.dtype, k_scale: float) -> None:
    call, want = keys_call(dtype, k_scale)
    call = on_gpu(call)
    assert harness.verify(call) == abi.Status.OK
    torch.testing.assert_close(call.o_extend.cpu().double(), want, rtol=6e-3, atol=0)
