"""The walk through the steps, its files, and what of this host may be in them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import standin
from first_building import journal, report, running
from first_building.private import Privacy
from first_building.site import ROOT, Site
from first_building.step import Found, NotRun, NotSo, Outcome, Status, Step, walk
from first_building.steps import steps

ABOUT = {
    "stand_in": False,
    "revision": "0123",
    "sglang": "cae69be5",
    "host": "Linux",
    "started": "2026-12-01 10:00 UTC",
    "seconds": 61,
}


def ok(site: Site) -> Found:
    return Found("found", "as printed", {"n": 1})


def wrong(site: Site) -> Found:
    raise NotSo("it is not", "another", "mend it", "what it said")


def absent(site: Site) -> Found:
    raise NotRun("no NVIDIA GPU")


def walked(site: Site, *made: Step, until: str = "") -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    walk(made, site, outcomes, lambda step: None, until)
    return outcomes


def test_a_step_that_fails_stops_what_needs_it_and_nothing_else(site: Site) -> None:
    found = walked(
        site,
        Step("a", "", wrong),
        Step("b", "", ok, ("a",)),
        Step("c", "", ok),
        Step("d", "", absent),
        Step("e", "", ok, ("c", "d")),
        Step("f", "", ok, ("e",)),
    )
    assert {name: outcome.status for name, outcome in found.items()} == {
        "a": Status.NOT_SO,
        "b": Status.NOT_RUN,
        "c": Status.OK,
        "d": Status.NOT_RUN,
        "e": Status.NOT_RUN,
        "f": Status.NOT_RUN,
    }
    assert found["a"].summary == "it is not: another. Fix: mend it"
    assert found["b"].summary == "because a is not so"
    assert found["e"].summary == "because d: no NVIDIA GPU"
    assert found["f"].summary == found["e"].summary, "the first reason"
    assert site.data["c"] == {"n": 1}


def test_a_run_ends_where_it_is_told_to(site: Site) -> None:
    found = walked(site, Step("a", "", ok), Step("b", "", ok), until="a")
    assert found["b"] == Outcome(Status.NOT_RUN, "--until a")


def test_what_was_ok_is_not_done_again(tmp_path: Path, site: Site) -> None:
    file = tmp_path / "first-build.json"
    outcomes = walked(site, Step("a", "", ok), Step("b", "", wrong))
    file.write_text(journal.as_text(journal.document(ABOUT, "these sources", outcomes)))
    again = journal.kept(file, "these sources")
    assert again.keys() == {"a"}
    walk([Step("a", "", wrong), Step("b", "", ok)], site, again, lambda step: None)
    assert {outcome.status for outcome in again.values()} == {Status.OK}
    once_more = journal.kept(file, "these sources")
    walk([Step("a", "", wrong, anew=True)], site, once_more, lambda step: None)
    assert once_more["a"].status is Status.NOT_SO
    assert journal.kept(file, "others") == {}


def test_what_git_has_not_makes_other_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (journal, running, standin):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    assert journal.identity(stand_in=False) == "", "no repository"
    identity = ("-c", "user.name=x", "-c", "user.email=x")
    (tmp_path / ".gitignore").write_text("ignored\n")
    (tmp_path / "patch").mkdir()
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    found = [journal.identity(stand_in=True), journal.identity(stand_in=False)]
    for name, content in (("patch/new ü.py", "1"), ("patch/new ü.py", "2"), (".gitignore", "ignored\n#\n")):
        (tmp_path / name).write_text(content)
        found.append(journal.identity(stand_in=False))
    assert len(set(found)) == len(found)
    (tmp_path / "patch" / "ignored").touch()
    (tmp_path / "notes").touch()
    assert journal.identity(stand_in=False) == found[-1]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1, "identity": "x", "steps": {"a": {"status": "ok"}}}'])
def test_a_file_that_is_no_journal_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "first-build.json").write_text(content)
    assert journal.kept(tmp_path / "first-build.json", "x") == {}


def test_what_needs_what_is_in_order() -> None:
    for stand_in in (False, True):
        before: set[str] = set()
        for step in steps(stand_in=stand_in):
            assert set(step.needs) <= before, step.name
            before.add(step.name)


def test_the_longest_report_fits_an_issue(site: Site) -> None:
    made = steps(stand_in=False)
    outcomes = {step.name: Outcome(Status.NOT_SO, "x" * 300, 1.0, "y|`<@" * 9000) for step in made}
    assert len(report.markdown(ABOUT, made, outcomes).encode()) < 65_536


def test_what_programs_said_breaks_neither_the_table_nor_its_fence() -> None:
    (step,) = (Step("a", "", ok),)
    text = report.markdown(ABOUT, (step,), {"a": Outcome(Status.OK, "a | b\n@team <b>", 1.0, "x\n```\n# y")})
    (row,) = (line for line in text.splitlines() if line.startswith("| a "))
    assert row.replace("\\|", "").count("|") == 5
    assert "@team" not in row
    assert text.count("```") == 2


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        ({"a": Status.OK}, "ok"),
        ({"a": Status.OK, "b": Status.NOT_RUN}, "ok as far as it was run; not run: b"),
        ({"a": Status.NOT_SO, "b": Status.NOT_RUN}, "not so: a"),
        ({"a": Status.NOT_SO, "b": Status.INTERRUPTED}, "interrupted: at b"),
        ({"a": Status.UNDER_WAY}, "under way: at a"),
    ],
)
def test_the_verdict(statuses: dict[str, Status], told: str) -> None:
    assert report.verdict({name: Outcome(status, "") for name, status in statuses.items()}) == told


@pytest.fixture
def hidden() -> Callable[[str], str]:
    environment = {"HF_TOKEN": "hf_abcdef", "API_KEY": "k", "HOSTKEYS": "plain", "PATH": "/usr/bin"}
    environment |= {"OTHER_TOKEN": "hf_abc"}  # begins another one
    environment |= {"GH_PAT": "ghp_abc", "DB_PASS": "hunter2", "HTTPS_PROXY": "http://me:pa/ss@proxy:8080"}
    return Privacy(environment, ("gpu-box-7", "10.1.2.3")).text


@pytest.mark.parametrize(
    ("private", "shown"),
    [
        ("token hf_abcdef.", "token ***."),
        ("https://me:pass@proxy:8080/v2", "https://***@proxy:8080/v2"),
        ("https://me:p@ss@proxy:8080/v2", "https://***@proxy:8080/v2"),
        ("proxy http://me:pa/ss@proxy:8080, ghp_abc, hunter2", "proxy http://***@proxy:8080, ***, ***"),
        ("https://cdn/x?Expires=1&Signature=abc~def&z=1", "https://cdn/x?Expires=1&Signature=***&z=1"),
        ('"Authorization: Bearer eyJhbGciOi.x_y"', '"Authorization: Bearer ***"'),
        ("oci://x/y@sha256:0 https://x/y@sha256:0", "oci://x/y@sha256:0 https://x/y@sha256:0"),
        ("gpu-box-7: at 10.1.2.3, not 110.1.2.34", "<host>: at <host>, not 110.1.2.34"),
        (f"{ROOT}/ci/image", "<checkout>/ci/image"),
        ("GPU-01234567-89ab-cdef-0123-456789abcdef", "GPU-***"),
        ("/usr/bin plain k", "/usr/bin plain k"),
        ("the home folder is /root", "the home folder is /root"),
    ],
)
def test_what_is_private_is_hidden(hidden: Callable[[str], str], private: str, shown: str) -> None:
    assert hidden(private) == shown


def test_a_document_keeps_its_keys() -> None:
    hides = Privacy({"A_TOKEN": "docker"}, ())
    assert hides.document({"docker": ["docker", 1, None]}) == {"docker": ["***", 1, None]}


def test_the_page_tells_of_every_step_and_option() -> None:
    page = (ROOT / "docs" / "first-build.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (`.*?) \|.*\| (.*?) ?\|$", page, re.M)
    named = [name for cell, _ in table for name in re.findall(r"`(.+?)`", cell)]
    real = {step.name: step for step in steps(stand_in=False)}
    assert named == list(real)
    for cell, needs in table:
        row, told = re.findall(r"`(.+?)`", cell), set(re.findall(r"`(.+?)`", needs))
        # What it needs by way of those, in its own row, or of the engine, is not told again.
        known = told | set(row) | {"docker"} | {need for name in told for need in real[name].needs}
        for name in row:
            assert told <= set(real[name].needs) <= known, name
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page)) <= {"--until", "--anew", "--stand-in"}
    assert set(re.findall(r"--until (\w+)", page)) <= set(real)
