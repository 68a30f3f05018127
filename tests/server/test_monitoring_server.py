"""Real servers' /metrics holds what `kdtree status` says; and looking at a server costs it nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import prometheus_server
from kdtree_verify.metrics.catalogue import METRICS
from monitoring import Seen
from outcome import Outcome

pytestmark = [pytest.mark.server, pytest.mark.slow]

Labels = tuple[tuple[str, str], ...]


def seen(outcome: Outcome) -> Seen:
    assert outcome.seen is not None
    return outcome.seen


def labels(rank: dict[str, Any], **more: object) -> Labels:
    where = {f"{name}_rank": rank["rank"][name] for name in ("tp", "pp", "dp")}
    return tuple(sorted((name, str(value)) for name, value in (where | more).items()))


def of_layers(found: Seen, field: str) -> dict[Labels, float]:
    return {
        labels(rank, model=layer["model"], layer=layer["layer"]): layer[field]
        for rank in found.status["ranks"]
        for layer in rank["layers"]
    }


def of_models(found: Seen, field: str) -> dict[Labels, float]:
    sums: dict[Labels, float] = {}
    for rank in found.status["ranks"]:
        for layer in rank["layers"]:
            key = labels(rank, model=layer["model"])
            sums[key] = sums.get(key, 0) + layer[field]
    return sums


def test_validates_metrics_are_what_status_says(eagle: Outcome) -> None:
    found = seen(eagle)
    (rank,) = found.status["ranks"]
    assert found.series("kdtree_verify_calls_total") == {labels(rank): rank["counters"]["verify_calls"]}
    for name, field in (
        ("kdtree_worst_relative_l2_ratio", "worst_rel_l2"),
        ("kdtree_last_relative_l2_ratio", "last_rel_l2"),
        ("kdtree_exceeded_calls_total", "exceeded_calls"),
    ):
        assert found.series(name) == of_layers(found, field), name
    for name, field in (
        ("kdtree_kernel_calls_total", "kernel_calls"),
        ("kdtree_compared_calls_total", "compare_calls"),
        ("kdtree_nonfinite_values_total", "nonfinite"),
        ("kdtree_out_of_range_total", "out_of_range"),
    ):
        assert found.series(name) == of_models(found, field), name
    assert all(value > 0 for value in found.series("kdtree_worst_relative_l2_ratio").values())
    assert found.series("kdtree_relative_l2_bound_ratio") == {labels(rank, pool_dtype="bf16"): 0.02}
    (info,) = found.series("kdtree_rank_info")
    assert dict(info)["library_sha256"] == rank["library"]["sha256"]
    assert found.series("kdtree_rank_start_time_seconds") == {labels(rank): rank["started_at"]}
    assert found.series("kdtree_rank_state")[labels(rank, state="serving")] == 1


def test_two_ranks_have_series_each(on_two_ranks: Outcome) -> None:
    found = seen(on_two_ranks)
    ranks = found.status["ranks"]
    assert [rank["name"] for rank in ranks] == ["dp0-pp0-tp0", "dp0-pp0-tp1"]
    calls = {labels(rank): rank["counters"]["verify_calls"] for rank in ranks}
    assert found.series("kdtree_verify_calls_total") == calls
    assert found.series("kdtree_kernel_calls_total") == of_models(found, "kernel_calls")
    assert not found.series("kdtree_worst_relative_l2_ratio")  # on compares nothing


def test_types_and_help_are_there(eagle: Outcome) -> None:
    lines = seen(eagle).metrics.splitlines()
    for metric in METRICS:
        if any(line.startswith(f"{metric.name}{{") for line in lines):
            assert f"# HELP {metric.name} {metric.help}" in lines
            assert f"# TYPE {metric.name} {metric.kind}" in lines


def test_sglangs_own_metrics_are_still_there(off: Outcome, eagle: Outcome) -> None:
    for outcome in (off, eagle):
        assert "sglang:num_running_reqs{" in seen(outcome).metrics
        assert seen(outcome).metrics.count("# TYPE sglang:num_running_reqs ") == 1


def test_off_adds_nothing(off: Outcome) -> None:
    assert "kdtree" not in seen(off).metrics


def test_a_server_without_the_flag_publishes_nothing(on: Outcome) -> None:
    assert on.seen is None
    assert "no metrics of this rank" not in on.log


def test_the_dashboards_queries_find_data_in_what_real_servers_say(
    eagle: Outcome, on_two_ranks: Outcome, tmp_path: Path
) -> None:
    """Each query whose metrics these servers have; what they have not, tests/deploy asks of what the product writes."""
    if prometheus_server.tool("prometheus") is None:
        pytest.skip("no Prometheus: ci/prometheus fetches it")
    texts = [seen(outcome).metrics for outcome in (eagle, on_two_ranks)]
    lacking = {metric.name for metric in METRICS if not any(f"\n{metric.name}{{" in text for text in texts)}
    assert {name for name in lacking if not name.startswith(("kdtree_declined_", "kdtree_sampled_"))} == set()
    queries = prometheus_server.dashboard_queries(json.loads(prometheus_server.DASHBOARD.read_text()))
    asked = [query for query in queries if not any(name in query for name in lacking)]
    assert sum("sglang:" in query for query in asked) >= 5
    with prometheus_server.running(tmp_path, *texts) as prometheus:
        assert {query: bool(prometheus.query(query)) for query in asked} == dict.fromkeys(asked, True)
        assert {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]} <= {"KDTreeRankSilent"}


def test_no_check_costs_the_model_a_forward_pass(eagle: Outcome) -> None:
    found = eagle.cost
    assert found is not None
    assert found.after == found.before
    assert found.after_control > found.after, "SGLang's /health costs one: else this test could not fail"


def test_the_checks_say_what_is(eagle: Outcome) -> None:
    assert eagle.cost is not None
    healthy, live, ready, table, document = eagle.cost.said
    assert healthy.startswith("healthy: validate, 1 ranks, ")
    assert ready.startswith("healthy: validate, 1 ranks, ")
    assert live == "live: validate, 1 of 1 ranks report\n"
    assert "dp0-pp0-tp0" in table
    assert '"state_since"' in document
