"""The monitoring page's tables are the code's metrics and the file of alerts; its probes are checks that there are."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

import documents
from kdtree_verify import cli
from kdtree_verify.metrics.catalogue import ARMED_STATES, METRICS, RANK_LABELS

PAGE = documents.OPERATING / "monitoring.md"
RULES = documents.ROOT / "deploy" / "monitoring" / "prometheus" / "kdtree-alerts.yml"


def codes(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def metric_rows() -> list[list[str]]:
    return documents.rows(documents.section(PAGE, "Metrics"))


def test_the_table_is_the_catalogue() -> None:
    told = [(codes(name)[0], kind, codes(labels)) for name, kind, _, labels, _ in metric_rows()]
    assert told == [(metric.name, str(metric.kind), metric.labels) for metric in METRICS]


def test_units_are_those_of_the_names() -> None:
    for name, kind, unit, _, meaning in metric_rows():
        words = set(codes(name)[0].split("_"))
        assert meaning
        if kind == "gauge":
            assert unit in words or (unit == "-" and words & {"info", "state"}), name
        else:
            assert unit in words or unit in ("calls", "indices", "files"), name


def test_the_labels_of_every_series_and_the_states_are_told() -> None:
    text = documents.section(PAGE, "Metrics")
    assert all(f"`{label}`" in text for label in RANK_LABELS)
    (row,) = (row for row in metric_rows() if "kdtree_rank_state`" in row[0])
    assert codes(row[4]) == tuple(str(state) for state in ARMED_STATES)


def series(layers: int, prefixes: int) -> int:
    """Series of a rank with validate, nothing declined, no draft model that is MLA."""
    layer = {"model": "target", "compare_calls": 1}
    figures = ("kernel_calls", "out_of_range", "nonfinite", "exceeded_calls", "worst_rel_l2", "last_rel_l2")
    document: dict[str, Any] = {
        **dict.fromkeys(("started_at", "state_since", "updated_at", "captures"), 1),
        **dict.fromkeys(("mode", "state"), ""),
        **{name: {} for name in ("versions", "library", "device")},
        "counters": {"verify_calls": 1, "declined": {}},
        "layers": [layer | dict.fromkeys(figures, 0) | {"layer": number} for number in range(layers)],
        "pool_dtype": "bf16",
        "bound": {"bf16": 1},
        "shapes": [{"prefix_from": n, "timed_calls": 1, "stock_ns": 1, "kernel_ns": 1} for n in range(prefixes)],
        "sampled": None,
    }
    return sum(len(list(metric.read(document))) for metric in METRICS)


def test_the_number_of_series_is_right() -> None:
    largest = series(layers=61, prefixes=9)
    text = " ".join(documents.prose(PAGE).split())
    assert f"61 layers makes at most {largest} series a rank and {8 * largest:,} on eight ranks" in text


def test_the_alerts_are_the_files() -> None:
    told = [(codes(name)[0], severity) for name, severity, _, _ in documents.rows(documents.section(PAGE, "Alerts"))]
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert told == [(rule["alert"], rule["labels"]["severity"]) for rule in group["rules"]]


@pytest.fixture(scope="module")
def container() -> dict[str, Any]:
    (block,) = (block for block in documents.blocks(PAGE) if block.value("name") == "probes")
    (found,) = yaml.safe_load(block.text)["containers"]
    return dict(found)


def test_the_probes_ask_checks_that_there_are(container: dict[str, Any]) -> None:
    asked = {}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[name]
        assert set(probe) == {"exec", "periodSeconds", "timeoutSeconds", "failureThreshold"}
        program, *words = probe["exec"]["command"]
        assert program == "kdtree"
        parsed = cli._parser().parse_args(words)
        asked[name] = (parsed.live, parsed.url)
        # The check's own limit ends it first, with a line that says why.
        assert probe["timeoutSeconds"] > parsed.timeout
    assert asked == {"startupProbe": (False, "auto"), "readinessProbe": (False, "auto"), "livenessProbe": (True, None)}


def test_a_load_has_half_an_hour_before_it_is_killed(container: dict[str, Any]) -> None:
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1800
