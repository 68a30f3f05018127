"""Fail closed: with validate and on a server that would not be what was asked for ends before it serves, and says so
in one line; off serves all the same."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sglang

from proof.server import started
from serving import SGLANG, Launch, run_to_end

pytestmark = [pytest.mark.server, pytest.mark.slow]

USAGE, LIBRARY, CONTRACT = 64, 70, 78
LINE = re.compile(r"^kdtree: .+: .+\. Fix: .+$", re.MULTILINE)


def refusal(launch: Launch) -> tuple[int, str]:
    """Exit status and the one line; fails where there is none, or several different ones."""
    status, log = run_to_end(launch)
    lines = set(LINE.findall(log))
    assert len(lines) == 1, log[-3000:]
    return status, lines.pop()


@pytest.fixture(scope="module")
def drifted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment with an SGLang that is the installed one, but for the name of its attention call."""
    folder = tmp_path_factory.mktemp("drifted")
    installed = Path(sglang.__file__).parent
    changed = Path("srt/layers/attention/triton_backend.py")
    mirror(installed, folder / "sglang", changed)
    source = (installed / changed).read_text()
    assert "self.extend_attention_fwd" in source
    renamed = source.replace("self.extend_attention_fwd", "self.extend_attention_forward")
    (folder / "sglang" / changed).write_text(renamed)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)}


def mirror(source: Path, target: Path, changed: Path) -> None:
    """`target` holds links to all that `source` holds, but real folders on the way to `changed`, and not it."""
    target.mkdir()
    first, *rest = changed.parts
    for entry in source.iterdir():
        if entry.name != first:
            (target / entry.name).symlink_to(entry)
    if rest:
        mirror(source / first, target / first, Path(*rest))


@pytest.mark.parametrize("mode", ["validate", "on"])
def test_a_renamed_attention_call_is_refused(
    new_launch: Callable[..., Launch], drifted: dict[str, str], mode: str
) -> None:
    status, line = refusal(new_launch(mode, environment=drifted))
    assert status == CONTRACT
    assert "extend_attention_fwd" in line


def test_a_rank_refuses_it_too(new_launch: Callable[..., Launch], drifted: dict[str, str]) -> None:
    """Without the launcher: the plugin alone, in the scheduler's process."""
    status, line = refusal(new_launch("on", module=SGLANG, environment=drifted))
    assert status != 0
    assert "extend_attention_fwd" in line


def test_off_serves_it(new_launch: Callable[..., Launch], drifted: dict[str, str]) -> None:
    with started(new_launch("off", environment=drifted)) as server:
        server.wait_ready()
        assert [rank["state"] for rank in server.ranks().values()] == ["off"]


def test_a_missing_library_is_refused(new_launch: Callable[..., Launch], tmp_path: Path) -> None:
    status, line = refusal(new_launch("on", environment={"KDTREE_LIBRARY_DIR": str(tmp_path)}))
    assert status == LIBRARY
    assert str(tmp_path) in line


def test_a_plugin_filtered_out_is_refused(new_launch: Callable[..., Launch]) -> None:
    status, line = refusal(new_launch("on", environment={"SGLANG_PLUGINS": "kdtree_cpu_shim"}))
    assert status == CONTRACT
    assert "SGLANG_PLUGINS" in line


def test_another_attention_backend_is_refused(new_launch: Callable[..., Launch]) -> None:
    status, line = refusal(new_launch("validate", attention="torch_native"))
    assert status == CONTRACT
    assert "--attention-backend triton" in line


def test_another_attention_backend_is_refused_by_the_rank(new_launch: Callable[..., Launch]) -> None:
    status, line = refusal(new_launch("validate", module=SGLANG, attention="torch_native", arguments=()))
    assert status != 0
    assert "--attention-backend triton" in line


@pytest.mark.parametrize("module", ["kdtree_verify.launch", SGLANG])
def test_an_unknown_mode_is_refused(new_launch: Callable[..., Launch], module: str) -> None:
    status, line = refusal(new_launch("bogus", module=module))
    assert status == USAGE
    assert all(mode in line for mode in ("off", "validate", "on"))
