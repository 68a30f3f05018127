"""The host library on the very calls that SGLang makes, against float64 and against what SGLang computed.

sglang_recorder.py makes and records them, once for each SGLang version.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import oracle
import reference
from harness import Harness
from kdtree_verify.native import abi
from kdtree_verify.native.call import Call
from kdtree_verify.native.library import Library
from sglang_cases import BACKEND_CASES, KERNEL_CASES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMES = [f"kernel: {name}" for name in KERNEL_CASES] + [f"backend: {name}" for name in BACKEND_CASES]
# Stock's own relative error against float64. With an fp8 pool it rounds queries and weights to fp8 too. That of float32
# hangs on the order in which a processor's library adds: one came to 1.05e-6, others stayed below 1e-6.
STOCK_ERROR = {
    torch.float32: 2e-6,
    torch.bfloat16: 4e-3,
    torch.float8_e4m3fn: 6e-2,
    torch.float8_e5m2: 1e-1,
}
VERSIONS = {"0.5.23": None, "0.5.21": ROOT / "build" / "sglang-0.5.21"}
# Before 0.5.23 stock's result of a mask byte other than 0 and 1 is arbitrary; SGLang writes no such byte.
STOCK_TAKES_BYTES_AS_BITS = {("0.5.21", "kernel: any nonzero mask byte")}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def recorded(version: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the recorder wrote under one SGLang version, by name."""
    folder = VERSIONS[version]
    ours = [Path(__file__).parent, ROOT / "patch" / "src", ROOT / "docker" / "standin" / "shim" / "src"]
    paths = [*([folder] if folder else []), *ours]
    output = tmp_path_factory.mktemp("recorded") / "calls.pt"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-W", "ignore", Path(__file__).with_name("sglang_recorder.py"), output]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == version  # the version that was meant
    records = {record["name"]: record for record in torch.load(output)}
    assert list(records) == NAMES
    return records


def _call(record: dict[str, Any]) -> tuple[Call, torch.Tensor]:
    """The recorded call, with a buffer of its own for the output, and stock's output."""
    arguments = record["call"]
    call = Call(**arguments, v_buffer=arguments["k_buffer"][..., : abi.V_DIM])
    return call._replace(o_extend=torch.zeros_like(record["stock"])), record["stock"]


@pytest.mark.parametrize("name", NAMES)
def test_equals_float64_and_stock(
    library: Library, version: str, recorded: dict[str, dict[str, Any]], name: str
) -> None:
    call, stock = _call(recorded[name])
    harness = Harness(library)
    assert harness.verify(call) == abi.Status.OK
    want, named = reference.attention(call), reference.named_rows(call)
    reference.assert_rounded(call.o_extend[named], want[named])
    assert harness.record.out_of_range == 0

    if (version, name) in STOCK_TAKES_BYTES_AS_BITS:
        return
    bound = STOCK_ERROR[call.k_buffer.dtype]
    assert reference.relative_error(stock[named], want[named]) < bound
    ours = call.o_extend
    assert harness.compare(call._replace(o_extend=stock), ours, rel_l2_bound=bound) == abi.Status.OK
    assert harness.record.exceeded_calls == harness.record.nonfinite == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_model_of_stock_errs_as_stock_does(version: str, recorded: dict[str, dict[str, Any]], name: str) -> None:
    """oracle.stock_like, which the errors on a GPU are held against: the same elements rounded the same way."""
    call, stock = _call(recorded[name])
    if (version, name) in STOCK_TAKES_BYTES_AS_BITS:
        return
    want, named = reference.attention(call), reference.named_rows(call)
    model = oracle.stock_like(call)
    error = reference.relative_error(stock[named], want[named])
    between = reference.relative_error(model[named], stock[named].double())
    if call.k_buffer.dtype == torch.float32:
        assert between < STOCK_ERROR[torch.float32]
    else:
        assert reference.relative_error(model[named], want[named]) == pytest.approx(error, rel=0.01)
        assert between < 0.1 * error


@pytest.mark.parametrize("name", [f"backend: {name}" for name in BACKEND_CASES])
def test_the_backend_s_calls_are_what_the_abi_takes(recorded: dict[str, dict[str, Any]], name: str) -> None:
    """The facts that the patch and the ABI stand on."""
    case = BACKEND_CASES[name.removeprefix("backend: ")]
    call, _ = _call(recorded[name])
    batch = case.graph_batch or len(case.prefixes)
    tokens = batch * case.drafts
    assert recorded[name]["v_in_k_buffer"]
    assert call.q_extend.shape == (tokens, case.heads, abi.QK_DIM)
    assert call.k_extend.shape == (tokens, 1, abi.QK_DIM)
    assert call.v_extend.shape == (tokens, 1, abi.V_DIM)
    assert call.k_buffer.shape[1:] == (1, abi.QK_DIM)
    assert call.qo_indptr.tolist() == list(range(0, tokens + 1, case.drafts))
    padding = [1] * (batch - len(case.prefixes))
    assert call.kv_indptr.diff().tolist() == [*case.prefixes, *padding]  # the drafts are not among them
    assert call.max_len_extend == case.drafts
    assert call.skip_prefix_custom_mask
    assert call.is_causal
    needed = sum(case.drafts * (prefix + case.drafts) for prefix in (*case.prefixes, *padding))
    assert call.custom_mask.dtype in (torch.bool, torch.uint8)
    if case.graph_batch:
        assert len(call.kv_indices) > call.kv_indptr[-1]
        assert len(call.custom_mask) > needed
        assert (call.kv_indices[call.kv_indptr[len(case.prefixes)] : call.kv_indptr[-1]] == 0).all()
    else:
        assert len(call.custom_mask) == needed
    assert call.k_scale == call.v_scale == (case.scale or 1.0)


@pytest.mark.parametrize("name", ["backend: replay eagle", "backend: replay ngram"])
def test_padding_is_not_compared(library: Library, recorded: dict[str, dict[str, Any]], name: str) -> None:
    call, stock = _call(recorded[name])
    case = BACKEND_CASES[name.removeprefix("backend: ")]
    harness = Harness(library)
    assert harness.compare(call._replace(o_extend=stock), torch.full_like(stock, torch.nan)) == abi.Status.OK
    real_rows = len(case.prefixes) * case.drafts
    assert harness.record.compare_rows == real_rows
    assert harness.record.nonfinite == real_rows * case.heads * abi.V_DIM


@pytest.mark.parametrize("name", ["kernel: plain", "backend: eager eagle", "backend: replay ngram"])
def test_a_chain_in_place_of_the_tree_shows(library: Library, recorded: dict[str, dict[str, Any]], name: str) -> None:
    call, stock = _call(recorded[name])
    harness = Harness(library)
    assert harness.verify(call, mask=None, mask_len=0) == abi.Status.OK
    ours, bound = call.o_extend, STOCK_ERROR[torch.bfloat16]
    assert harness.compare(call._replace(o_extend=stock), ours, rel_l2_bound=bound) == abi.Status.OK
    assert harness.record.exceeded_calls == 1
    assert harness.record.last_rel_l2 > 10 * bound
