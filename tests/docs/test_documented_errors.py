"""Troubleshooting names each refusal, reason and status of this repository, no others; SGLang's texts are SGLang's."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import documents
import sources
from kdtree_verify.rank.eligibility import Reason

PAGE = documents.OPERATING / "troubleshooting.md"
NEIGHBOUR = documents.ROOT / "build" / "sglang-0.5.21"


def first_cells(table: str) -> list[str]:
    """What the first cells of a table's rows quote."""
    return [code for row in documents.rows(table) for code in re.findall(r"`([^`]+)`", row[0])]


def own_sections() -> dict[str, list[str]]:
    """Exit code (or none) to the lines that are documented under it."""
    found: dict[str, list[str]] = {}
    for title in re.findall(r"^### (.+)$", documents.section(PAGE, "KDTree's own lines"), re.M):
        rows = documents.section(PAGE, title).partition("The library's own words")[0]
        found[title] = first_cells(rows)
    return found


def test_every_refusal_is_documented_and_no_other() -> None:
    documented = {line for lines in own_sections().values() for line in lines}
    said = sources.refusals()
    missing = {text: refusal.places for text, refusal in said.items() if text not in documented}
    assert missing == {}, f"{PAGE.name} lacks what the sources say"
    assert documented - said.keys() == set(), f"{PAGE.name} quotes what no source says"


def test_each_stands_under_its_exit_code() -> None:
    said = sources.refusals()
    for title, lines in own_sections().items():
        codes = {int(code) for code in re.findall(r"\d+", title.partition(":")[0])}
        for line in lines:
            known = {sources.CODES[kind] for kind in said[line].kinds & sources.CODES.keys()}
            assert not known or known & codes, f"{line!r} is under {title!r}, and ends with {known}"


def test_every_exit_code_has_a_section() -> None:
    titles = " ".join(title.partition(":")[0] for title in own_sections())
    assert set(sources.CODES.values()) <= {int(code) for code in re.findall(r"\d+", titles)}


def test_every_reason_is_documented_and_no_other() -> None:
    cells = first_cells(documents.section(PAGE, "Declined calls"))
    assert sorted(cells) == sorted(str(reason) for reason in Reason)


def test_every_status_of_the_library_is_documented_and_no_other() -> None:
    table = documents.section(PAGE, "70: the kernel library").partition("The library's own words")[2]
    quoted = [cell.removesuffix(sources.HOLE) for cell in first_cells(table)]
    statuses = sources.library_statuses()
    assert len(quoted) == len(statuses)
    for status in statuses:
        assert any(status.startswith(text) for text in quoted), status


def trees() -> list[Path]:
    """The SGLang packages to look into: the installed one, and the one that ci/venv unpacks beside it."""
    spec = importlib.util.find_spec("sglang")
    installed = [Path(spec.origin).parent] if spec and spec.origin else []
    return [*installed, *([NEIGHBOUR / "sglang"] if NEIGHBOUR.is_dir() else [])]


@pytest.mark.parametrize("row", documents.rows(documents.section(PAGE, "SGLang's own")), ids=lambda row: row[0][:40])
def test_sglang_says_so(row: list[str]) -> None:
    (file,) = re.findall(r"`([^`]+)`", row[3])
    for tree in trees():
        for text in re.findall(r"`([^`]+)`", row[0]):
            assert sources.says(tree / "srt" / file, text), f"{text!r} is not in {tree.parent.name}'s {file}"


def test_both_versions_are_looked_into() -> None:
    if not NEIGHBOUR.is_dir():
        pytest.skip("ci/venv has not unpacked SGLang 0.5.21")
    assert len(trees()) == 2


def test_texts_are_read_with_their_values_left_out(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("LIMIT = 7\ndef f(x):\n    raise E(f'more than {LIMIT} of {x}' ' here')\n")
    assert sources.says(module, "more than 7 of … here")
    assert sources.says(module, "than 7")
    assert not sources.says(module, "less than 7")
