"""The configurations: any two settings meet, and SGLang's own command line takes each."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from proof import starts
from proof.starts import STARTS, TWO_RANKS, Start

SETTINGS: dict[str, tuple[Any, ...]] = {
    "heads": starts.HEADS,
    "drafts": starts.DRAFTS,
    "algorithm": starts.ALGORITHMS,
    "topk": starts.TOPKS,
    "kv_dtype": starts.KV_DTYPES,
    "page": starts.PAGES,
    "graphs": starts.GRAPHS,
}


def pairs(start: Start) -> set[tuple[str, Any, str, Any]]:
    return {(a, getattr(start, a), b, getattr(start, b)) for a, b in itertools.combinations(SETTINGS, 2)}


def test_any_two_settings_meet_in_one_of_sixteen() -> None:
    possible = [Start(**dict(zip(SETTINGS, values, strict=True))) for values in itertools.product(*SETTINGS.values())]
    wanted = set().union(*(pairs(start) for start in possible if start.allowed))
    assert wanted == set().union(*(pairs(start) for start in STARTS))
    assert len(STARTS) == len({start.name for start in STARTS}) == 16
    assert all(start.allowed for start in (*STARTS, *TWO_RANKS))


def test_accept_lengths_are_compared_of_both_algorithms_within_graphs() -> None:
    assert {start.algorithm for start in STARTS if start.twice and start.graphs} == set(starts.ALGORITHMS)


@pytest.mark.parametrize("start", [start for start in STARTS if start.algorithm == "EAGLE"], ids=lambda s: s.name)
def test_eagles_steps_are_the_fewest_that_fill_the_tree(start: Start) -> None:
    def candidates(steps: int) -> int:
        return start.topk + (steps - 1) * start.topk**2

    assert candidates(start.steps) >= start.drafts - 1
    assert start.steps == 1 or candidates(start.steps - 1) < start.drafts - 1


@pytest.mark.parametrize("start", [*STARTS, *TWO_RANKS], ids=lambda s: s.name)
def test_sglang_knows_the_arguments(start: Start) -> None:
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    parsed = parser.parse_args(["--model-path", "m", *start.arguments()])
    assert parsed.speculative_num_draft_tokens == start.drafts
    assert parsed.kv_cache_dtype == start.kv_dtype
    assert (parsed.page_size, parsed.tp_size) == (start.page, start.tp)
