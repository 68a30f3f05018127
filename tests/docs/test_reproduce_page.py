"""docs/supply-chain/reproduce.md: its commands are those that there are, its numbers those of the code."""

from __future__ import annotations

import re
import tomllib

import pytest

import documents
from command_line import EXIT_USAGE
from imaging import errors
from reproducing import twice

PAGE = documents.ROOT / "docs" / "supply-chain" / "reproduce.md"
COMMANDS = [words for block in documents.blocks(PAGE) for words in documents.commands(block)]


@pytest.mark.parametrize("program", ["ci/reproduce", "ci/image"])
def test_each_option_is_there(program: str) -> None:
    named = {word for words in COMMANDS if words[0] == program for word in words if word.startswith("--")}
    if program == "ci/reproduce":
        named |= {code.split()[0] for code in documents.inline_code(PAGE) if code.startswith("--") and "=" not in code}
        assert named >= {"--stand-in", "--real", "--archs", "--keep", "--explain"}
    assert named
    assert named <= documents.options(program)


def test_each_program_is_there() -> None:
    first = [next(word for word in words if "=" not in word) for words in COMMANDS]
    programs = {word for word in first if "/" in word}
    assert programs == {"ci/reproduce", "ci/image", "ci/kernel", "kernel/hashes.py"}
    assert all((documents.ROOT / program).exists() for program in programs)
    assert ["make", "reproduce"] in COMMANDS


def test_the_exit_codes_are_the_command_s() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+)", PAGE.read_text(), re.M)}
    assert codes == {0, errors.EXIT_FAILED, EXIT_USAGE, errors.EXIT_UNAVAILABLE, 130}


def test_the_two_builds_differ_as_the_page_says() -> None:
    a, b = twice.WAYS
    text = PAGE.read_text()
    assert f"| umask | {a.umask:03o} | {b.umask:03o} |" in text
    assert f"`build/reproduce/{a.folder}`" in text
    assert " " in b.folder
    assert b.mtime == 1_000_000_000  # of 2001


def test_while_the_pinned_image_is_unknown_the_page_says_so() -> None:
    rows = tomllib.loads((documents.ROOT / "kernel" / "hashes.toml").read_text())["toolchain"]
    unknown = any(row["of"].startswith("nvidia/cuda:") and row["cuda"] == "unknown" for row in rows)
    assert unknown == ("The pinned image's row reads `unknown`" in PAGE.read_text())
