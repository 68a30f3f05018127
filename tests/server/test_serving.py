"""A real server answers the same requests with off, validate and on; with two ranks; with EAGLE's trees."""

from __future__ import annotations

import pytest
import torch

from demo.verdict import LARGEST_REL_L2, differences
from kdtree_verify.rank.kernel import REL_L2_BOUND, REL_L2_BOUND_FP8_POOL
from outcome import Outcome

pytestmark = [pytest.mark.server, pytest.mark.slow]


def kernel_calls(outcome: Outcome) -> list[int]:
    return [rank["counters"]["kernel_calls"] for rank in outcome.ranks.values()]


def worst_rel_l2(outcome: Outcome) -> float:
    return max(layer["worst_rel_l2"] for rank in outcome.ranks.values() for layer in rank["layers"])


def test_off_loads_nothing_and_says_so(off: Outcome) -> None:
    assert [(rank["mode"], rank["state"]) for rank in off.ranks.values()] == [("off", "off")]
    assert off.mapped == {"dp0-pp0-tp0": []}
    assert all(answer.verify_calls > 0 for answer in off.answers)


def test_validate_returns_stocks_answers(off: Outcome, validate: Outcome) -> None:
    assert [answer.tokens for answer in validate.answers] == [answer.tokens for answer in off.answers]
    assert [answer.margins for answer in validate.answers] == [answer.margins for answer in off.answers]


def test_validate_measures_every_layer_within_bf16(validate: Outcome) -> None:
    (rank,) = validate.ranks.values()
    assert (rank["mode"], rank["state"]) == ("validate", "serving")
    assert rank["counters"]["declined"] == {}
    assert rank["counters"]["out_of_range"] == 0
    assert [layer["layer"] for layer in rank["layers"]] == [0, 1]
    for layer in rank["layers"]:
        # Batched requests share a step, and a step calls each layer once.
        assert 0 < layer["calls"] <= sum(answer.verify_calls for answer in validate.answers)
        assert layer["calls"] == rank["counters"]["kernel_calls"] // 2
        assert layer["exceeded_calls"] == 0
        assert layer["nonfinite"] == 0
        assert 0 < layer["worst_rel_l2"] < LARGEST_REL_L2


def test_on_answers_as_stock_does(off: Outcome, on: Outcome) -> None:
    assert [found for found in differences(off.answers, on.answers) if not found.near_tie] == []
    (rank,) = on.ranks.values()
    assert (rank["mode"], rank["state"]) == ("on", "serving")
    assert kernel_calls(on)[0] > 0
    assert rank["counters"]["declined"] == {}


def test_a_broken_kernel_leaves_validates_answers_right_and_its_report_wrong(off: Outcome, validate: Outcome) -> None:
    assert [answer.tokens for answer in validate.second_answers] == [answer.tokens for answer in off.second_answers]
    (rank,) = validate.second_ranks.values()
    assert all(layer["exceeded_calls"] > 0 for layer in rank["layers"])
    assert all(layer["last_rel_l2"] > 0.02 for layer in rank["layers"])
    assert "left its bound" in validate.log


def test_a_broken_kernel_changes_the_answers_of_on(off: Outcome, on: Outcome) -> None:
    """The model's attention decides its answers: else no answer here would prove anything."""
    changed = differences(off.second_answers, on.second_answers)
    assert len(changed) == len(off.second_answers)
    assert not any(found.near_tie for found in changed)


def test_two_ranks_each_answer_with_their_own_heads(off: Outcome, on_two_ranks: Outcome) -> None:
    assert sorted(on_two_ranks.ranks) == ["dp0-pp0-tp0", "dp0-pp0-tp1"]
    first, second = kernel_calls(on_two_ranks)
    assert first == second > 0
    assert {rank["state"] for rank in on_two_ranks.ranks.values()} == {"serving"}
    assert [found for found in differences(off.answers, on_two_ranks.answers) if not found.near_tie] == []


def test_eagle_trees_verify(off: Outcome, eagle: Outcome) -> None:
    """Greedy verification gives the target model's own answer, whoever drafted."""
    assert kernel_calls(eagle)[0] > 0
    assert worst_rel_l2(eagle) < LARGEST_REL_L2
    assert [found for found in differences(off.answers[:2], eagle.answers) if not found.near_tie] == []


def test_an_fp8_cache_is_served(fp8: dict[str, Outcome]) -> None:
    assert [answer.tokens for answer in fp8["validate"].answers] == [answer.tokens for answer in fp8["off"].answers]
    assert [answer.margins for answer in fp8["validate"].answers] == [answer.margins for answer in fp8["off"].answers]
    for mode in ("validate", "on"):
        (rank,) = fp8[mode].ranks.values()
        assert (rank["mode"], rank["state"]) == (mode, "serving")
        assert rank["counters"]["declined"] == {}
        assert rank["counters"]["out_of_range"] == 0
        assert kernel_calls(fp8[mode])[0] > 0
    # Stock rounds q and P to e5m2, ours does not: answers part where stock itself hesitates.
    assert all(found.margin < 0.5 for found in differences(fp8["off"].answers, fp8["on"].answers))


def test_validate_knows_how_far_stock_is_off_with_an_fp8_cache(fp8: dict[str, Outcome]) -> None:
    (rank,) = fp8["validate"].ranks.values()
    assert all(layer["exceeded_calls"] == 0 for layer in rank["layers"])
    assert REL_L2_BOUND < worst_rel_l2(fp8["validate"]) < REL_L2_BOUND_FP8_POOL[torch.float8_e5m2]


def test_the_kernels_memory_is_taken_before_the_pool_is_sized(validate: Outcome, eagle: Outcome) -> None:
    for outcome in (validate, eagle):
        assert outcome.log.count("kdtree: allocated on") == 1
        allocated = outcome.log.index("kdtree: allocated on cpu, before the KV pool is sized: workspace ")
        assert outcome.log.index("Load weight end") < allocated < outcome.log.index("KV Cache is allocated")


def test_a_killed_rank_ends_the_server_with_an_error(on: Outcome) -> None:
    assert on.killed_status not in (None, 0)
