"""The doctor's checks of what the server's user may read and write, as a user that is not root."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kdtree_verify.doctor import arguments, folders
from kdtree_verify.errors import KdtreeError

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that everybody may enter, and root alone may write."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == 0 and folder != Path("/tmp"):
            folder.chmod(0o755)
    return tmp_path


def ask(*server: str, **env: str) -> list[Any]:
    """What check_model, or with no arguments check_caches, says to a user without rights; code and line of a refusal.

    In a fork: this Python itself may lie where that user may not look.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(writer, json.dumps(_said(server, env)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = json.load(answer)
    os.waitpid(child, 0)
    return said


def _said(server: tuple[str, ...], env: Mapping[str, str]) -> list[Any]:
    try:
        found = folders.check_model(arguments.read(server), env) if server else folders.check_caches(env)
    except KdtreeError as error:
        return [int(error.code), str(error), error.fix]
    return [str(found.status), found.text, found.fix]


def test_caches_of_another_user_are_refused_with_who_and_whose(place: Path) -> None:
    code, line, fix = ask(HOME=str(place))
    assert code == 77
    assert f"{place} is 0:0's, mode 755; this is user {NOBODY}:{NOBODY}" in line
    assert fix.startswith(f"as root: chown -R {NOBODY}:{NOBODY} {place} ")


def test_caches_that_are_this_user_s_or_open_to_all(place: Path) -> None:
    place.chmod(0o2777)
    assert ask(HOME=str(place))[0] == "ok"
    assert ask(HOME="/nowhere", SGLANG_CACHE_DIR=str(place / "new" / "one"))[0] == "ok"


@pytest.mark.parametrize("closed", ["triton", "inductor/ab", "jit/sm_120/module"])
def test_a_folder_of_another_user_among_the_caches(place: Path, closed: str) -> None:
    caches = place / ".cache" / "sglang"
    (caches / closed).mkdir(parents=True)
    for folder in (caches, *caches.rglob("*")):
        folder.chmod(0o777)
    assert ask(HOME=str(place))[0] == "ok"
    (caches / closed).chmod(0o755)
    code, line, _ = ask(HOME=str(place))
    assert code == 77
    assert str(caches / closed) in line


def test_each_variable_that_moves_a_cache_counts(place: Path) -> None:
    (place / "open").mkdir(mode=0o777)
    (place / "open").chmod(0o777)
    moved = {"SGLANG_CACHE_DIR": str(place / "open")}
    for name in ("SGLANG_JIT_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"):
        assert ask(**moved)[0] == "ok"
        assert ask(**moved, **{name: str(place / "closed")})[0] == 77


def test_a_model_that_can_be_read(place: Path) -> None:
    (place / "config.json").write_text("{}")
    (place / "nowhere").symlink_to(place / "gone")
    assert ask("--model-path", str(place))[0] == "ok"


@pytest.mark.parametrize("closed", [".", "weights.safetensors", "blob"])
def test_a_model_of_another_user(place: Path, closed: str) -> None:
    model = place / "model"
    model.mkdir()
    (model / "weights.safetensors").write_text("")
    (place / "blob").write_text("")
    (model / "link").symlink_to(place / "blob")
    assert ask("--model-path", str(model))[0] == "ok"
    ((place if closed == "blob" else model) / closed).chmod(0o700 if closed == "." else 0o600)
    code, line, fix = ask("--model-path", str(model))
    assert code == 77
    assert "the model cannot be read" in line
    assert "Permission denied" in line
    assert f"user {NOBODY}:{NOBODY} must be able to read it" in fix


def test_a_model_that_is_not_there(place: Path) -> None:
    code, line, _ = ask("--model-path", str(place / "model"))
    assert code == 77
    assert "No such file" in line


def test_a_model_that_has_yet_to_be_downloaded(place: Path) -> None:
    code, line, _ = ask("--model-path", "a/b", HF_HOME=str(place))
    assert code == 77
    assert "a/b is not there" in line
    (place / "hub" / "models--a--b" / "snapshots" / "main").mkdir(parents=True)
    assert ask("--model-path", "a/b", HF_HOME=str(place))[0] == "ok"
