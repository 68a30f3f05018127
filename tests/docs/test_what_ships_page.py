"""docs/supply-chain/what-ships.md: its commands are those that there are, its labels those that are checked."""

from __future__ import annotations

import os
import re

import pytest

import documents
from shipping import errors, verify

PAGE = documents.ROOT / "docs" / "supply-chain" / "what-ships.md"
COMMANDS = [words for block in documents.blocks(PAGE) for words in documents.commands(block)]


@pytest.mark.parametrize("program", sorted({words[0] for words in COMMANDS}))
def test_each_command_is_there_and_takes_what_it_is_given(program: str) -> None:
    given = {word for words in COMMANDS if words[0] == program for word in words[1:] if word.startswith("--")}
    assert given <= documents.options(program)


def test_the_page_shows_how_to_verify_either_way() -> None:
    verified = [words for words in COMMANDS if words[0] == "ci/verify"]
    assert {words[2] for words in verified} == {"--source", "--key"}
    assert all(re.fullmatch(r"REGISTRY/kdtree@sha256:DIGEST", words[1]) for words in verified)


def test_each_label_that_is_checked_is_told() -> None:
    told = {name.removeprefix("org.opencontainers.image") for name in documents.inline_code(PAGE)}
    assert {name.removeprefix("org.opencontainers.image") for name in verify.LABELS} <= told


def test_the_exit_codes_are_the_commands() -> None:
    codes = {int(cell) for cell, _ in documents.rows(documents.section(PAGE, "Verify an image"))}
    assert codes == {0, errors.EXIT_FAILED, os.EX_USAGE, os.EX_UNAVAILABLE}
    told = {int(code) for code in re.findall(r"\b\d\d?\b(?=\sfor\s)", documents.section(PAGE, "Make them"))}
    assert told >= {errors.EXIT_FAILED, 64, 69, os.EX_CANTCREAT, errors.EXIT_SKIPPED}


def test_the_workflow_that_is_believed_is_there() -> None:
    assert f"`{verify.WORKFLOW}`" in PAGE.read_text()
    workflow = (documents.ROOT / ".github" / "workflows" / verify.WORKFLOW).read_text()
    for command in ("ci/sbom", "ci/provenance", "ci/scan", "ci/push", "ci/sign", "ci/verify"):
        assert command in workflow
