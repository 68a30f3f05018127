"""deploy/monitoring: Prometheus takes its configuration, each alert fires when it should and only then, every query
of the dashboard finds data, and compose's profile opens nothing. Grafana itself is not at hand: nothing here loads it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

import prometheus_server
from engine_clients import compose
from engine_private import EngineError
from kdtree_verify.config import Mode
from kdtree_verify.metrics.catalogue import METRICS
from kdtree_verify.reporting.state import Identity, State, Verdict, rank_document
from prometheus_server import CONFIG, DASHBOARD, MONITORING, ROOT

RULES = MONITORING / "prometheus" / "kdtree-alerts.yml"
ALERTS_TEST = Path(__file__).with_name("alerts.yml")
PROVISIONING = MONITORING / "grafana" / "provisioning"


def promtool(*arguments: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    binary = prometheus_server.tool("promtool")
    if binary is None:
        pytest.skip("no promtool: ci/prometheus fetches it")
    return subprocess.run([binary, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=120)


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def dashboard() -> dict[str, Any]:
    return dict(json.loads(DASHBOARD.read_text()))


# ---- Prometheus


def test_prometheus_takes_the_configuration() -> None:
    done = promtool("check", "config", "--lint=all", "--lint-fatal", CONFIG)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_asks_composes_server() -> None:
    (job,) = yaml.safe_load(CONFIG.read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["server:30000"]}]
    assert job.get("metrics_path", "/metrics") == "/metrics"


def check_alerts(folder: Path, rule_file: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Runs the unit tests on rules without their texts, which the tests do not repeat."""
    for rule in rule_file["groups"][0]["rules"]:
        rule.pop("annotations")
    (folder / "rules.yml").write_text(yaml.safe_dump(rule_file))
    tests = ALERTS_TEST.read_text().replace("[RULES]", f"[{folder / 'rules.yml'}]")
    (folder / "tests.yml").write_text(tests)
    return promtool("test", "rules", folder / "tests.yml")


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    done = check_alerts(tmp_path, yaml.safe_load(RULES.read_text()))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", [rule["alert"] for rule in rules()])
def test_an_alert_that_never_fires_would_be_noticed(tmp_path: Path, alert: str) -> None:
    changed = yaml.safe_load(RULES.read_text())
    (rule,) = (rule for rule in changed["groups"][0]["rules"] if rule["alert"] == alert)
    rule["expr"] = f"({rule['expr']}) and on () vector(0) > 1"
    done = check_alerts(tmp_path, changed)
    assert done.returncode != 0
    assert f"alertname: {alert}" in done.stdout + done.stderr


def test_each_alert_is_tried_silent_too() -> None:
    tried = Counter(
        (case["alertname"], bool(case["exp_alerts"]))
        for test in yaml.safe_load(ALERTS_TEST.read_text())["tests"]
        for case in test.get("alert_rule_test", [])
    )
    for rule in rules():
        assert tried[rule["alert"], True], rule["alert"]
        assert tried[rule["alert"], False], rule["alert"]


def test_alerts_say_what_and_how_bad() -> None:
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:kdtree|sglang:)\w*", re.sub(r'"[^"]*"', '""', expression)))


def test_alerts_and_panels_name_metrics_that_exist() -> None:
    ours = {metric.name for metric in METRICS}
    named = {name for rule in rules() for name in metrics_of(rule["expr"])}
    named |= {name for query in prometheus_server.dashboard_queries(dashboard()) for name in metrics_of(query)}
    assert {name for name in named if not name.startswith("sglang:")} <= ours
    # All but the rank's own times are looked at by somebody.
    assert ours - named == {"kdtree_rank_start_time_seconds"}


# ---- every query, on what the product publishes

PUBLISH = """
import json, os, sys
from pathlib import Path
from kdtree_verify.metrics.publisher import FOLDER, Series
Series(Path(os.environ[FOLDER])).publish(json.loads(sys.stdin.read()))
"""
SCRAPE = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def full_document(tp: int) -> dict[str, Any]:
    """A rank's, with something in every field."""
    layer = {"kernel_calls": 9, "compare_calls": 9, "exceeded_calls": 1, "nonfinite": 2, "out_of_range": 3}
    layer |= {"worst_rel_l2": 0.5, "last_rel_l2": 0.25}
    cell = {"timed_calls": 4, "stock_ns": 2_000_000, "kernel_ns": 1_000_000}
    return rank_document(Mode.VALIDATE, Identity(tp, 0, 0, os.getpid()), Verdict(State.SERVING)) | {
        "device": {"kind": "cuda", "name": "NVIDIA RTX PRO 6000"},
        "library": {"version": "1", "sha256": "ab" * 32},
        "counters": {"verify_calls": 40, "declined": {"batch": 3, "draft:sinks": 1}},
        "layers": [layer | {"model": model, "layer": number} for model in ("target", "draft") for number in range(2)],
        "pool_dtype": "bf16",
        "bound": {"bf16": 0.02},
        "shapes": [cell | {"prefix_from": start} for start in (0, 1024)],
        "sampled": {"every": 100, "calls": 5, "exceeded_calls": 1},
        "captures": 2,
    }


@pytest.fixture(scope="module")
def full_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """/metrics of a server with two ranks that has every series of ours."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path_factory.mktemp("multiproc"))}

    def python(program: str, text: str = "") -> str:
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, input=text, check=True, capture_output=True, text=True).stdout

    for tp in range(2):
        python(PUBLISH, json.dumps(full_document(tp)))
    return python(SCRAPE)


def test_the_exposition_is_prometheus_style(full_text: str) -> None:
    done = promtool("check", "metrics", text=full_text)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_every_metric_is_in_it(full_text: str) -> None:
    for metric in METRICS:
        assert f"\n{metric.name}{{" in full_text


def test_every_query_finds_data_and_every_rule_is_evaluated(full_text: str, tmp_path: Path) -> None:
    if prometheus_server.tool("prometheus") is None:
        pytest.skip("no Prometheus: ci/prometheus fetches it")
    queries = [query for query in prometheus_server.dashboard_queries(dashboard()) if "sglang:" not in query]
    assert len(queries) > 15
    with prometheus_server.running(tmp_path, full_text) as prometheus:
        assert {query: bool(prometheus.query(query)) for query in queries} == dict.fromkeys(queries, True)
        found = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        assert {rule["name"]: rule["health"] for rule in found} == {rule["alert"]: "ok" for rule in rules()}
        firing = {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}
        assert {"KDTreeBeyondBound", "KDTreeSampledBeyondBound", "KDTreeNonfinite", "KDTreeOutOfRange"} <= firing
        assert "KDTreeServerDown" not in firing


# ---- Grafana's files


def test_the_dashboard_is_one_that_grafana_provisions() -> None:
    found = dashboard()
    assert (found["uid"], found["id"], found["editable"]) == ("kdtree", None, False)
    assert found["schemaVersion"] >= 39
    assert "__inputs" not in found
    assert {variable["name"]: variable["type"] for variable in found["templating"]["list"]} == {
        "datasource": "datasource",
        "instance": "query",
    }
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))


def test_its_panels_fit_and_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for a, b in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, (a, b)


def test_its_panels_ask_the_chosen_datasource_about_the_chosen_servers() -> None:
    for panel in dashboard()["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("stat", "table", "timeseries")
        assert panel["title"]
        assert panel["description"], panel["title"]
        chosen = {"type": "prometheus", "uid": "${datasource}"}
        assert panel["datasource"] == chosen
        letters = [target["refId"] for target in panel["targets"]]
        assert len(letters) == len(set(letters))
        for target in panel["targets"]:
            assert target["datasource"] == chosen
            assert 'instance=~"$instance"' in target["expr"] or "ALERTS" in target["expr"]
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= {
                *("instance", "tp_rank", "pp_rank", "dp_rank", "model", "layer", "reason", "mode", "state"),
                *("pool_dtype", "prefix_from"),
            }


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    scraped = yaml.safe_load(CONFIG.read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "kdtree.yml").read_text())["providers"]
    mounts = {volume["target"]: Path(volume["source"]) for volume in project()["services"]["grafana"]["volumes"]}
    assert mounts[provider["options"]["path"]] == DASHBOARD.parent
    assert mounts["/etc/grafana/provisioning"] == PROVISIONING
    home = project()["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{DASHBOARD.name}"


# ---- compose's profile


def project(*arguments: str, **variables: str) -> dict[str, Any]:
    """The project with the profile, as Compose resolves it."""
    try:
        binary = compose(ROOT / "build")
    except EngineError as error:
        pytest.skip(str(error))
    environment = {"PATH": os.environ["PATH"], "DOCKER_HOST": "tcp://127.0.0.1:9", "KDTREE_MODEL": "m", **variables}
    command = [
        binary,
        "--env-file=/dev/null",
        f"--file={ROOT / 'compose.yaml'}",
        *(arguments or ("--profile=monitoring",)),
    ]
    done = subprocess.run([*command, "config", "--format=json"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_without_the_profile_there_is_the_server_alone() -> None:
    found = project("--profile=")
    assert set(found["services"]) == {"server"}


def test_the_profile_opens_nothing_and_can_change_nothing() -> None:
    found = project()
    assert set(found["services"]) == {"server", "prometheus", "grafana"}
    for name, port in (("prometheus", 9090), ("grafana", 3000)):
        service = found["services"][name]
        assert re.fullmatch(r"\S+:[^:@]+@sha256:[0-9a-f]{64}", service["image"])
        assert [(each["host_ip"], each["target"]) for each in service["ports"]] == [("127.0.0.1", port)]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service["user"].startswith("0:")
        for volume in service["volumes"]:
            if volume["type"] == "bind":
                assert volume["read_only"]
                assert Path(volume["source"]).is_dir()
        assert [volume["type"] for volume in service["volumes"]].count("volume") == 1


def test_grafana_has_no_password_to_guess() -> None:
    environment = project()["services"]["grafana"]["environment"]
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert not [name for name in environment if "PASSWORD" in name]
