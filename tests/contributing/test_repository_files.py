"""SECURITY.md, CHANGELOG.md, the forms for issues, and pre-commit, held to what they are about."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kdtree_verify import __version__, cli

ROOT = Path(__file__).resolve().parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TYPES = {"markdown": {"value"}, "textarea": {"label", "description", "render", "placeholder", "value"}}
REQUIRED = {"markdown": {"value"}, "textarea": {"label"}}


def test_the_changelog_is_of_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.*?)\](?: - (.*))?$", text, re.M)
    assert headings[0] == ("Unreleased", "")
    assert headings[1][0] == __version__
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d|unreleased", date) for _, date in headings[1:])
    kinds = re.findall(r"^### (.*)$", text, re.M)
    assert {*kinds} <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_policy_is_for_this_version() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert f"| {__version__.rpartition('.')[0]}.x | yes" in text


def test_the_policy_and_the_security_page_agree_on_what_needs_no_key() -> None:
    policy, page = ((ROOT / name).read_text() for name in ("SECURITY.md", "docs/operating/security.md"))
    for endpoint in ("`/health*`", "`/ready*`", "`/metrics*`"):
        assert endpoint in policy
        assert endpoint in page


@pytest.mark.parametrize("path", [form for form in FORMS if form.name != "config.yml"], ids=lambda path: path.stem)
def test_a_form_is_one_that_github_takes(path: Path) -> None:
    """https://docs.github.com/communities/using-templates-to-encourage-useful-issues-and-pull-requests/syntax-for-githubs-form-schema"""
    form: dict[str, Any] = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "title", "labels", "body"}
    ids = [field["id"] for field in form["body"] if "id" in field]
    assert len(ids) == len({*ids})
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", each) for each in ids)
    assert any(field["type"] != "markdown" for field in form["body"])
    for field in form["body"]:
        assert field.keys() <= {"type", "id", "attributes", "validations"}
        assert REQUIRED[field["type"]] <= field["attributes"].keys() <= TYPES[field["type"]]
        assert field.get("validations", {}).keys() <= {"required"}
    labels = [field["attributes"].get("label") for field in form["body"] if field["type"] != "markdown"]
    assert len(labels) == len({*labels})


def test_no_issue_goes_past_the_forms() -> None:
    assert yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text()) == {
        "blank_issues_enabled": False
    }


@pytest.mark.parametrize("name", ["wrong-answer", "does-not-start"])
def test_a_form_asks_for_what_kdtree_prints(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    labels = {field["attributes"].get("label", "") for field in form["body"]}
    assert {"kdtree report", "kdtree doctor --json"} <= labels
    for label in labels:
        if label.startswith("kdtree ") and label != "kdtree replay":  # which takes a file
            cli._parser().parse_args(label.split()[1:])


def hooks() -> list[dict[str, Any]]:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    found: list[dict[str, Any]] = repo["hooks"]
    return found


def test_pre_commit_has_the_linters_of_ci() -> None:
    """By their names, which are what ci/lint is called with."""
    checks = re.findall(r'^(?:\[\[.*\|\| )?check (?:"(.*?)"|(\S+))', (ROOT / "ci" / "lint").read_text(), re.M)
    assert {hook["name"] for hook in hooks()} == {quoted or plain for quoted, plain in checks}
    for hook in hooks():
        assert hook["entry"].replace('"', "") == f"ci/lint {hook['name']}"
        assert hook["language"] == "system", "nothing is fetched"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "kdtree"
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, folder], check=True)
    (folder / "build").mkdir()
    for name in ("venv", "sglang-0.5.21"):
        (folder / "build" / name).symlink_to(ROOT / "build" / name)
    return folder


def in_clone(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command there; pre-commit keeps its things there, too, and the author is nobody."""
    own = {"PRE_COMMIT_HOME": str(folder / "build" / "pre-commit")}
    who = {f"GIT_{role}_{field}": "a@example.org" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
    return subprocess.run(command, cwd=folder, env=os.environ | own | who, capture_output=True, text=True)


def test_pre_commit_holds_a_commit_to_them(clone: Path) -> None:
    program = ROOT / "build" / "venv" / "bin" / "pre-commit"
    assert in_clone(clone, program, "install").returncode == 0
    file = clone / "ci" / "untidy"
    file.write_text("#!/bin/bash\necho $1\n")
    file.chmod(0o755)
    in_clone(clone, "git", "add", file)
    refused = in_clone(clone, "git", "commit", "--message=untidy")
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert re.search(r"^shellcheck\.+Failed$", refused.stderr, re.M), refused.stderr
    assert "SC2086" in refused.stderr
    assert re.search(r"^mypy\.+.*Skipped$", refused.stderr, re.M), "no Python is in it"
    file.write_text('#!/bin/bash\necho "$1"\n')
    in_clone(clone, "git", "add", file)
    taken = in_clone(clone, "git", "commit", "--message=tidy")
    assert taken.returncode == 0, taken.stderr
