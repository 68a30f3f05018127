"""renovate.json finds every pin that it is to keep up to date, in the lock and in what repeats it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pinning import lockfile

ROOT = Path(__file__).resolve().parents[2]
CONFIG = json.loads((ROOT / "renovate.json").read_text())
PINS = lockfile.load()
MANAGERS = {manager["datasourceTemplate"]: manager for manager in CONFIG["customManagers"]}


def pattern(javascript: str) -> re.Pattern[str]:
    """The same expression for Python, which writes a named group with a P."""
    return re.compile(re.sub(r"\(\?<(?=[a-zA-Z])", "(?P<", javascript))


def found(datasource: str) -> list[dict[str, str]]:
    """What a manager finds, by its groups."""
    manager = MANAGERS[datasource]
    (place,) = manager["managerFilePatterns"]
    assert re.search(place.strip("/"), "ci/pins.toml")
    (expression,) = manager["matchStrings"]
    return [match.groupdict() for match in pattern(expression).finditer(lockfile.PINS_FILE.read_text())]


def test_every_image_is_found() -> None:
    wanted = [(image["name"], image["tag"], image["digest"]) for image in PINS["images"].values()]
    assert [(each["depName"], each["currentValue"], each["currentDigest"]) for each in found("docker")] == wanted


def test_every_action_is_found() -> None:
    wanted = [(name, action["tag"], action["commit"]) for name, action in PINS["actions"].items()]
    assert [(each["depName"], each["currentValue"], each["currentDigest"]) for each in found("github-tags")] == wanted


def test_every_root_of_a_wheel_set_is_found_and_no_locked_wheel() -> None:
    roots = [
        root for table in PINS["wheels"].values() for key in ("roots", "roots-without-dependencies")
        for root in table.get(key, [])
    ]  # fmt: skip
    assert [f"{each['depName']}=={each['currentValue']}" for each in found("pypi")] == roots


def test_what_only_builds_and_tests_is_kept_up_to_date() -> None:
    (rule,) = [rule for rule in CONFIG["packageRules"] if rule.get("groupName") == "tools"]
    sets = ("tools", "image-test", "workflow-lint", "sbom", "spdx")
    roots = {root.partition("==")[0] for name in sets for root in PINS["wheels"][name]["roots"]}
    assert (rule["enabled"], rule["matchPackageNames"]) == (True, sorted(roots))


def test_an_images_new_entry_has_the_shape_of_the_old_one() -> None:
    manager = MANAGERS["docker"]
    entry = manager["autoReplaceStringTemplate"]
    for name, value in (("depName", "a/b"), ("newValue", "v1"), ("newDigest", "sha256:" + "0" * 64)):
        entry = entry.replace(f"{{{{{{{name}}}}}}}", value)
    assert pattern(manager["matchStrings"][0]).fullmatch(entry)


@pytest.mark.parametrize("rule", [rule for rule in CONFIG["packageRules"] if "matchPackageNames" in rule])
def test_a_rule_is_for_pins_that_there_are(rule: dict[str, Any]) -> None:
    names = {each["depName"] for datasource in MANAGERS for each in found(datasource)}
    assert set(rule["matchPackageNames"]) <= names
