"""The example of docs/operating/replay.md is what `kdtree replay` prints of such a call, numbers and names aside."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from kdtree_verify import cli
from kdtree_verify.replay import folder
from kdtree_verify.replay.folder import FOLDER_LIMIT
from kdtree_verify.replay.keeper import AGAIN_AFTER
from rig import Rig

PAGE = (Path(__file__).parents[2] / "docs" / "operating" / "replay.md").read_text(encoding="utf-8")


def shape(line: str) -> str:
    """The line with numbers, hashes, paths and blanks made alike."""
    line = re.sub(r"\S*/\S*", "PATH", line)
    line = re.sub(r"\b[0-9a-f]{12}\b|\d[\d.:]*(e[+-]\d+)?", "N", line)
    return re.sub(r"\s+", " ", re.sub(r"pidN|dpN-ppN-tpN", "RANK", line)).strip()


def test_the_example(arm, defective_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    arm("validate", library_dir=defective_dir, evidence_dir=tmp_path)
    rig = Rig()
    monkeypatch.setenv("KDTREE_DEFECT", "heads-swapped")
    rig.run(rig.step())
    until = time.monotonic() + 30
    while not (found := folder.paths(tmp_path / "captures")):
        assert time.monotonic() < until
        time.sleep(0.1)
    capsys.readouterr()
    monkeypatch.setenv("KDTREE_LIBRARY_DIR", str(defective_dir))
    assert cli.main(["replay", str(found[0]), "--device", "cpu"]) == 1
    printed = capsys.readouterr().out
    example = re.search(r"```text name=replay\n(.*?)```", PAGE, re.S)
    assert example, printed
    assert [shape(line) for line in example[1].splitlines()] == [shape(line) for line in printed.splitlines()], printed


def test_figures_on_the_page() -> None:
    assert f"{FOLDER_LIMIT >> 30} GiB in the folder" in PAGE
    assert f"only after {AGAIN_AFTER / 60:.0f} minutes" in PAGE
