"""A real rank's evidence: SGLang's backend serves verify calls, a file says what was measured, the report judges it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdtree_verify import cli
from kdtree_verify.config import from_environment
from kdtree_verify.evidence import follower, read
from kdtree_verify.verdict import command
from kdtree_verify.verdict.judge import Status, Verdict
from rig import Rig

sys.path.insert(0, str(Path(__file__).parents[1] / "verdict"))
import made


@pytest.fixture
def measured(arm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """`measured(mode, steps, **rig)` serves some steps and returns the folder of evidence, with the last of them in."""
    made_followers: list[follower.Follower] = []
    make = follower.Follower.__init__

    def remember(self: follower.Follower, *arguments: Any) -> None:
        make(self, *arguments)
        made_followers.append(self)

    def serve(mode: str = "validate", steps: int = 3, **options: Any) -> Path:
        arm(mode)
        rig = Rig(**options)
        made_followers[-1]()
        for _ in range(steps):
            rig.run(rig.step())
        made_followers[-1].close()
        return tmp_path / "evidence"

    monkeypatch.setattr(follower.Follower, "__init__", remember)
    return serve


def test_validate_leaves_what_it_measured(measured: Callable[..., Path]) -> None:
    (entry,), unreadable = read.folder(measured(prefixes=(33, 70), draft_tokens=8, heads=4))
    assert unreadable == []
    assert (entry.setup.heads, entry.setup.draft_tokens, entry.setup.pool_dtype) == (4, 8, "bf16")
    assert (entry.setup.library_kind, entry.setup.device) == ("host", "cpu")
    (layer,) = entry.layers
    assert layer.compare_calls == 3
    assert 0 < layer.worst_rel_l2 < entry.bounds["bf16"] == 0.02
    (cell,) = entry.cells
    assert (cell.prefix_from, cell.prefix_below, cell.batch_from, cell.batch_below) == (0, 1024, 2, 4)
    assert cell.calls == 3
    (point,) = entry.points
    assert (point.calls, point.exceeded) == (3, 0)
    assert point.worst == pytest.approx(layer.worst_rel_l2, rel=0.01)
    assert point.mean == pytest.approx(cell.mean_rel_l2, rel=0.01)


def test_a_processors_evidence_is_never_a_yes(measured: Callable[..., Path]) -> None:
    found = command.make(measured(), from_environment())
    assert found.verdict is Verdict.NOT_YET
    (card,) = [criterion for criterion in found.criteria if criterion.name == "card"]
    assert (card.status, card.found) == (Status.MISSING, "measured on cpu, with the host library")
    assert found.times == []
    (installation,) = [criterion for criterion in found.criteria if criterion.name == "installation"]
    assert installation.status is Status.MET, installation.found


def test_on_leaves_that_nothing_was_compared(measured: Callable[..., Path]) -> None:
    (entry,), _ = read.folder(measured("on"))
    assert (entry.mode, entry.compared, entry.points) == ("on", 0, ())
    assert entry.layers[0].kernel_calls == 3


def keys(document: Any, place: str = "") -> set[str]:
    """The places of a document's values, a list's by its first item."""
    if isinstance(document, dict):
        return {place, *(key for name, each in document.items() for key in keys(each, f"{place}.{name}"))}
    if isinstance(document, list) and document:
        return {place, *keys(document[0], f"{place}[]")}
    return {place}


def test_the_evidence_that_other_tests_make_up_has_this_form(measured: Callable[..., Path]) -> None:
    (path,) = measured().iterdir()
    # A processor has no name and no capability, and its library no architectures.
    only_gpu = (".rank.device.", ".rank.library.archs[", ".rank.yardstick.")
    imagined = {place for place in keys(made.evidence()) if not place.startswith(only_gpu)}
    assert imagined - keys(json.loads(path.read_text())) == set()


def test_the_command_needs_neither_torch_nor_sglang(measured: Callable[..., Path]) -> None:
    """It is asked in a container beside a server: no second of imports, no memory."""
    script = (
        "import sys; from kdtree_verify import cli; code = cli.main(sys.argv[1:]); "
        "print([m for m in ('torch', 'sglang', 'numpy') if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    arguments = ["report", "--json", "--dir", str(measured())]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (2, "[]")


def test_the_command_writes_a_page(measured: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = measured()
    page = folder.parent / "deep" / "report.html"
    assert cli.main(["report", "--dir", str(folder), "--html", str(page)]) == 2
    assert "not yet" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    device = folder.parent / "null"
    device.symlink_to(os.devnull)
    assert cli.main(["report", "--dir", str(folder), "--html", str(device)]) == 2
    assert device.is_char_device(), "a device is written to, not replaced: it is everybody's"
    assert cli.main(["report", "--dir", str(folder), "--html", "/proc/none/report.html"]) == 64
    assert "the page cannot be written" in capsys.readouterr().err
    assert cli.main(["report", "--dir", str(folder / "none")]) == 64
    assert cli.main(["report", "--nonsense"]) == 64
