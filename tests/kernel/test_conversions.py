"""Every dtype is converted exactly on the way in and rounded once on the way out.

A row that sees one key has weight 1: its output is that key's value.
"""

from __future__ import annotations

import pytest
import torch

import reference
from cases import FP8, Case, make_call
from float8_calls import keys_call, values_call
from harness import Harness
from kdtree_verify.native import abi
from kdtree_verify.native.library import Library

NAN, INF = float("nan"), float("inf")


def _value_out(library: Library, value: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """What a row gets that sees one draft key with this value ([512])."""
    call = make_call(Case((0,), (1,), 1, kv_dtype=value.dtype, out_dtype=out_dtype, mask="chain"))
    call.v_extend[0, 0] = value
    assert Harness(library).verify(call) == abi.Status.OK
    return call.o_extend[0, 0]


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("v_scale", [1.0, 0.37])
def test_float8_pool_every_byte_as_a_value(library: Library, dtype: torch.dtype, v_scale: float) -> None:
    call, want = values_call(dtype, v_scale)
    assert Harness(library).verify(call) == abi.Status.OK
    finite = want.isfinite()
    assert finite.any()
    assert call.o_extend[~finite].isnan().all()
    scale = torch.tensor(v_scale).double() / v_scale  # the ABI takes it as float32
    reference.assert_rounded(call.o_extend[finite], want[finite] * scale)


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("k_scale", [1.0, 0.5, 6.0])
def test_float8_pool_every_byte_as_a_key(library: Library, dtype: torch.dtype, k_scale: float) -> None:
    call, want = keys_call(dtype, k_scale)
    assert Harness(library).verify(call) == abi.Status.OK
    reference.assert_rounded(call.o_extend, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_values_pass_through(library: Library, dtype: torch.dtype) -> None:
    bits = torch.randint(-(2**31), 2**31, (512,), generator=torch.Generator().manual_seed(3)).to(torch.int32)
    value = bits.view(torch.float32).to(dtype)
    value[:8] = torch.tensor([0.0, -0.0, 1e-40, -1e-45, INF, -INF, NAN, 3.3e38])
    got = _value_out(library, value, torch.float32)
    torch.testing.assert_close(got, value.float(), rtol=0, atol=0, equal_nan=True)


def test_bfloat16_rounds_to_nearest_even(library: Library) -> None:
    generator = torch.Generator().manual_seed(4)
    bits = torch.randint(-(2**31), 2**31, (512,), generator=generator).to(torch.int32)
    bits[:256] = bits[:256] & ~0xFFFF | 0x8000  # halfway between two bfloat16
    value = bits.view(torch.float32)
    value[:6] = torch.tensor([INF, -INF, NAN, 3.4028235e38, -3.3961775e38, 3.3895e38])  # above and below the largest
    value[6:9] = torch.tensor([2**-134, 3 * 2**-134, 2**-135])  # halfway among subnormals
    got = _value_out(library, value, torch.bfloat16)
    torch.testing.assert_close(got, value.bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_bfloat16_is_rounded_once(library: Library) -> None:
    """The mean of two float32 neighbours is no float32: rounded to one first, it would be a tie."""
    call = make_call(
        Case((0,), (2,), 1, kv_dtype=torch.float32, q_dtype=torch.float32, out_dtype=torch.bfloat16, mask="any")
    )
    call.custom_mask.fill_(1)
    call.k_extend.zero_()  # equal scores: weights of one half
    tie = torch.tensor(1 + 2**-8)  # between the bfloat16 1 and 1 + 2^-7; to even is 1
    call.v_extend[0, 0], call.v_extend[1, 0] = tie, torch.nextafter(tie, torch.tensor(2.0))
    assert Harness(library).verify(call) == abi.Status.OK
    assert (call.o_extend == 1 + 2**-7).all()
    call.v_extend[1, 0] = torch.nextafter(tie, torch.tensor(0.0))
    assert Harness(library).verify(call) == abi.Status.OK
    assert (call.o_extend == 1).all()
