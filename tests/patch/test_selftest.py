"""The self-test: what it stands on (inputs, recorded results), and that a right library passes it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kdtree_verify import selftest
from kdtree_verify.config import Device, from_environment
from kdtree_verify.errors import SelftestFailed, UsageError
from kdtree_verify.native import library
from kdtree_verify.native.abi import V_DIM, DType
from kdtree_verify.selftest import golden
from kdtree_verify.selftest.report import CaseResult
from kdtree_verify.selftest.runner import bounds
from kdtree_verify.selftest.shapes import MARKER, SHAPES, build, make_inputs

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def host() -> library.Library:
    return library.load(from_environment().library_dir, Device.CPU)


@pytest.mark.parametrize(("heads", "draft_tokens"), [(1, 1), (8, 16), (12, 5), (20, 33), (128, 2), (2, 256)])
def test_a_right_library_passes_at_any_heads_and_draft_tokens(host, heads, draft_tokens):
    report = selftest.run(host, CPU, heads, draft_tokens)
    report.raise_if_failed()
    assert {case.shape for case in report.cases} == {shape.name for shape in SHAPES} | {"record", "compare"}
    # Exact but for the output's rounding, half of a column's bound; the signed sums have more room.
    assert all(case.error <= 0.75 * case.bound for case in report.cases)


@pytest.mark.parametrize(("heads", "draft_tokens"), [(0, 1), (129, 1), (1, 0), (1, 257)])
def test_numbers_outside_the_limits_are_refused(host, heads, draft_tokens):
    with pytest.raises(UsageError, match="outside the limits"):
        selftest.run(host, CPU, heads, draft_tokens)


def test_the_report_is_json_and_names_every_case(host):
    document = json.loads(json.dumps(selftest.run(host, CPU, 2, 3).as_dict(), allow_nan=False))
    assert document["passed"] is True
    assert {case["mode"] for case in document["cases"]} == {"eager"}
    assert document["sha256"] == host.description.sha256


def test_a_failure_is_one_clear_line():
    case = CaseResult("causal", 2, "m64n32", "graph", float("inf"), 0.004, "expected 0.5, got nan, bound 0.004")
    report = selftest.SelftestReport("cuda:0", "GPU", "lib.so", "ab" * 32, 8, 16, (case,), {"eager": 0.1})
    with pytest.raises(SelftestFailed) as raised:
        report.raise_if_failed()
    line = str(raised.value)
    for part in ("cuda:0", "shape causal", "variant 2 (m64n32)", "graph", "expected 0.5, got nan, bound 0.004", "Fix:"):
        assert part in line
    assert "\n" not in line
    assert json.dumps(report.as_dict(), allow_nan=False)


def test_recorded_results_are_made_again_identically(tmp_path):
    again = tmp_path / "golden.npz"
    subprocess.run([sys.executable, ROOT / "patch" / "tools" / "make_golden.py", again], check=True)
    with np.load(again) as made:
        for name, recorded in golden.load_recorded().items():
            # Another BLAS sums float64 in another order: once in 10^8 numbers the last float32 bit may differ.
            steps = np.abs(made[name].view(np.int32).astype(np.int64) - recorded.numpy().view(np.int32))
            assert steps.max() <= 1
            assert np.count_nonzero(steps) <= 2


@pytest.mark.parametrize("request_", golden.REQUESTS.values(), ids=golden.REQUESTS)
def test_recorded_results_are_those_of_plain_float64_attention(request_):
    """Row by row, over the keys that the row sees, by numpy: no mask matrix, no torch."""
    parent = golden.parents()
    query = _float64(golden.query(request_, golden.TOKENS, golden.PATTERNS, CPU))
    prefix = _float64(golden.pool_rows(request_, CPU))
    keys, values = (_float64(make(request_, golden.TOKENS, CPU)) for make in (golden.draft_keys, golden.draft_values))
    sign, column = golden.signs().numpy(), golden.columns(request_).numpy()
    recorded = golden.load_recorded()[request_.name].numpy()
    for token in range(0, golden.TOKENS, 1 if request_.prefix < 100 else 7):
        if request_.blind_rows and token % 7 == 5:
            assert not recorded[token].any()
            continue
        seen = list(range(token + 1)) if request_.causal else []
        node = token
        while not request_.causal and node >= 0:
            seen.append(node)
            node = parent[node]
        scores = golden.SM_SCALE * np.concatenate(
            [query[token] @ prefix.T * request_.k_scale, query[token] @ keys[seen].T], axis=1
        )
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        output = weights @ np.concatenate([prefix[:, :V_DIM] * request_.v_scale, values[seen]])
        expected = np.stack([output[range(golden.PATTERNS), column[token]], output @ sign], axis=1)
        np.testing.assert_allclose(recorded[token], expected, rtol=1e-7, atol=1e-9)


def _float64(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


def _numpy_values(seed: int, stream: int, rows: int, width: int) -> np.ndarray:
    """golden's inputs, in uint32 arithmetic that wraps by itself."""

    def mix(words: np.ndarray) -> np.ndarray:
        words = (words ^ (words >> np.uint32(16))) * np.uint32(0x21F0AAAD)
        words = (words ^ (words >> np.uint32(15))) * np.uint32(0x735A2D97)
        return words ^ (words >> np.uint32(15))

    key = mix(np.array([8 * seed + stream + 1], dtype=np.uint32))
    counter = np.arange(rows, dtype=np.uint32)[:, None] * np.uint32(1024) + np.arange(width // 4, dtype=np.uint32)
    return mix(counter + key).view(np.int8).astype(np.float64) / 128


def test_inputs_are_those_of_plain_uint32_arithmetic():
    request = golden.REQUESTS["p300"]
    values = _float64(golden.draft_values(request, 256, CPU))
    np.testing.assert_array_equal(values, _numpy_values(request.seed, 2, 256, 512))
    pool = _float64(golden.pool_rows(request, CPU))
    np.testing.assert_array_equal(pool[:, :-1], _numpy_values(request.seed, 3, 300, 576)[:, :-1])
    assert abs(values.mean()) < 0.01
    assert 0.57 < values.std() < 0.585


def test_a_tree_of_fewer_nodes_is_the_first_rows_of_the_recorded_one():
    parent = golden.parents()
    assert parent[0] == -1
    assert all(0 <= parent[node] < node for node in range(1, golden.TOKENS))
    assert sum(parent[node] != node - 1 for node in range(1, golden.TOKENS)) > 200
    whole = golden.visible(golden.REQUESTS["p64"], golden.TOKENS)
    for tokens in (1, 2, 17, 100):
        assert torch.equal(golden.visible(golden.REQUESTS["p64"], tokens), whole[:tokens, :tokens])


def test_heads_that_share_a_pattern_are_never_16_apart():
    patterns = [golden.pattern(head) for head in range(128)]
    assert set(patterns[:16]) == set(range(16))
    assert all(a != b for a, b in zip(patterns, patterns[16:], strict=False))


def test_every_way_of_calling_is_in_the_shapes():
    inputs = make_inputs(4, 6, CPU)
    layouts = {shape.name: build(shape, 4, 6, CPU, inputs) for shape in SHAPES}
    assert {0, 1, 15, 16, 17, 64, 65, 4097} <= {m.prefix for layout in layouts.values() for m in layout.shape.members}
    for layout in layouts.values():
        assert layout.eager.qo_indptr.dtype == torch.int32
        assert layout.graph.qo_indptr.dtype == torch.int64
        assert layout.graph.kv_indices[-1] >= len(layout.pool)  # an unused tail, out of range
        assert (layout.storage == MARKER).all()
        used = {int(slot) for slot in layout.eager.kv_indices if 0 < slot < len(layout.pool)}
        poisoned = layout.pool.float().isnan().all(-1)
        assert [slot for slot in range(len(layout.pool)) if not poisoned[slot]] == sorted(used)
        if layout.eager.mask is not None:
            assert (layout.eager.mask.dtype, layout.graph.mask.dtype) == (torch.bool, torch.uint8)
            assert layout.graph.mask.max() > 1
            blank = layout.graph.blank()
            assert not blank.mask.any()
            assert blank.mask.shape == layout.graph.mask.shape
    assert layouts["causal"].eager.mask is None
    strided = layouts["strided"]
    assert strided.pool.stride(0) == 17 * 576
    assert int(strided.eager.qo_indptr[0]) == 3
    assert int(strided.eager.kv_indptr[0]) > 0
    assert layouts["ragged-tokens"].eager.qo_indptr.diff().tolist() == [6, 3, 0, 1]
    assert layouts["padded"].eager.kv_indices[-1] == 0


def test_fp8_pools_hold_every_code_that_they_are_to_hold():
    for request in golden.REQUESTS.values():
        if not request.codes:
            continue
        rows = golden.pool_rows(request, CPU)
        assert rows.dtype is request.pool_dtype
        codes = {*range(request.codes), *range(0x80, 0x80 + request.codes)}
        assert set(rows[:, :-1].reshape(-1).view(torch.uint8).tolist()) == codes
        values = rows.float()
        assert values.isfinite().all()
        # Exact: 3 / k_scale, which raises the last key's score by about 6.
        assert float(values[-1, -1]) * request.k_scale == 3.0
        assert float(values[:, :-1].abs().max()) * request.v_scale <= request.largest_value == 1.0


def test_a_library_without_fp8_is_not_asked_for_it(host):
    from dataclasses import replace

    bf16 = replace(host.description, pool_dtypes=host.description.pool_dtypes - {DType.F8_E4M3, DType.F8_E5M2})
    report = selftest.run(library.Library(bf16, host.functions), CPU, 2, 3)
    report.raise_if_failed()
    ran = {case.shape for case in report.cases}
    assert {shape.name for shape in SHAPES if shape.name not in ran} == {
        "e4m3-subnormals", "e5m2-subnormals", "e4m3-range", "e5m2-range"
    }  # fmt: skip


def test_the_bound_is_a_few_percent_of_what_is_recorded():
    column, signed_sum = bounds(1.0)
    for request in golden.REQUESTS.values():
        recorded = golden.load_recorded()[request.name].abs().mean(dim=(0, 1))
        assert recorded[0] > (20 if request.codes else 30) * column
        assert recorded[1] > 10 * signed_sum
