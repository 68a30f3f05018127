"""A real server with on and KDTREE_SAMPLE: every so many calls of a layer are computed by stock as well."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from demo.verdict import LARGEST_REL_L2, differences
from outcome import REQUESTS, Outcome, serve
from serving import Launch

pytestmark = [pytest.mark.server, pytest.mark.slow]

EVERY = 4


@pytest.fixture(scope="module")
def sampled(new_launch: Callable[..., Launch]) -> Outcome:
    return serve(new_launch("on", environment={"KDTREE_SAMPLE": str(EVERY)}), requests=REQUESTS[:2])


def test_samples_are_counted_on_the_device(sampled: Outcome) -> None:
    (rank,) = sampled.ranks.values()
    assert (rank["mode"], rank["state"]) == ("on", "serving")
    assert [layer["layer"] for layer in rank["layers"]] == [0, 1]
    for layer in rank["layers"]:
        chosen = sum((call + layer["layer"]) % EVERY == 0 for call in range(layer["kernel_calls"]))
        assert layer["compare_calls"] == chosen > 0
        assert layer["exceeded_calls"] == layer["nonfinite"] == 0
        assert 0 < layer["worst_rel_l2"] < LARGEST_REL_L2
    samples = sum(layer["compare_calls"] for layer in rank["layers"])
    assert rank["sampled"] == {"every": EVERY, "calls": samples, "exceeded_calls": 0}
    assert sum(shape["calls"] for shape in rank["shapes"]) == samples


def test_the_answers_are_ours_all_the_same(off: Outcome, on: Outcome, sampled: Outcome) -> None:
    assert [answer.tokens for answer in sampled.answers] == [answer.tokens for answer in on.answers[:2]]
    assert [answer.margins for answer in sampled.answers] == [answer.margins for answer in on.answers[:2]]
    assert [found for found in differences(off.answers[:2], sampled.answers) if not found.near_tie] == []
