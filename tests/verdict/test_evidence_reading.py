"""Files that are not as they should be: each is named with its reason, and none of them makes a yes."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import made
from kdtree_verify import cli
from kdtree_verify.config import Config, from_environment
from kdtree_verify.errors import UsageError
from kdtree_verify.evidence import files, read
from kdtree_verify.verdict import command, document, page, text
from kdtree_verify.verdict.judge import Verdict


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr("kdtree_verify.verdict.installed.versions", lambda: made.rank_document()["versions"])
    return from_environment({"KDTREE_LIBRARY_DIR": str(tmp_path / "none")})


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of a document's values, of its objects and of its lists; of a list's items the first."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, list) and value:
        yield from leaves(value[0], (*path, 0))


PATHS = list(leaves(made.evidence()))
HOSTILE = [
    None,
    True,
    -1,
    0,
    1 << 70,
    9e17,
    1e308,
    5e-324,
    1 << 60,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "x" * 10_000,
    "\x1b[2J<b>",
    "half of one: \ud800",
    [],
    {},
    {"half of one: \ud800": 1},
    [[]],
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_any_value_may_be_anything(tmp_path: Path, config: Config, path: tuple[Any, ...]) -> None:
    """No value ends the report with a traceback, or goes unescaped into what it prints."""
    for index, value in enumerate(HOSTILE):
        evidence = made.evidence()
        place: Any = evidence
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / "run-1.json").write_text(json.dumps(evidence))
        if not read.folder(folder)[0]:
            with pytest.raises(UsageError, match=r"run-1\.json: "):
                command.make(folder, config)
            continue
        report = command.make(folder, config)
        shown = text.text(report)
        assert all(character.isprintable() or character == "\n" for character in shown)
        shown = page.page(report)
        assert "\x1b[2J<b>" not in shown
        assert not re.search(r"[xy12r]='-?(nan|inf)|points='[^']*(nan|inf)", shown)
        shown.encode()
        json.dumps(document.document(report), allow_nan=False)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "the file is no object"),
        (b"{}", "not evidence of this version (schema 1)"),
        (b'{"kind": "kdtree evidence", "schema": 2}', "not evidence of this version (schema 1)"),
        (b'{"kind": "kdtree evidence", "schema": true}', "schema is no count"),
        (b'{"kind": "kdtree evidence", "schema": 1}', "server is no object"),
        (b" " * (5 << 20), "larger than any of ours: 5242880 bytes"),
    ],
)
def test_what_is_no_evidence_is_named(tmp_path: Path, config: Config, what: bytes, why: str) -> None:
    made.write(tmp_path, made.evidence())
    (tmp_path / "run-0.json").write_bytes(what)
    report = command.make(tmp_path, config)
    (left,) = report.evidence.not_counted
    assert (left.name, left.why) == ("run-0.json", why)
    assert report.verdict is Verdict.JUSTIFIED
    assert f"run-0.json: {why}" in text.text(report)


def test_a_file_that_was_cut_off_anywhere_does_not_count(tmp_path: Path, config: Config) -> None:
    whole = json.dumps(made.evidence())
    for end in range(0, len(whole), 97):
        (tmp_path / "run-1.json").write_text(whole[:end])
        entries, unreadable = read.folder(tmp_path)
        assert entries == []
        assert len(unreadable) == 1


def test_links_pipes_and_folders_are_not_opened(tmp_path: Path, config: Config) -> None:
    made.write(tmp_path, made.evidence())
    os.mkfifo(tmp_path / "run-a.json")
    (tmp_path / "run-b.json").symlink_to("/dev/zero")
    (tmp_path / "run-c.json").mkdir()
    (tmp_path / "run-d.json").symlink_to(files.paths(tmp_path)[0])
    entries, unreadable = read.folder(tmp_path)
    assert len(entries) == 1
    assert {each.name: each.why for each in unreadable} == {
        "run-a.json": "not a file",
        "run-b.json": "Too many levels of symbolic links",
        "run-c.json": "Is a directory",
        "run-d.json": "Too many levels of symbolic links",
    }


def test_a_copy_counts_once(tmp_path: Path, config: Config) -> None:
    """Thin evidence does not grow by `cp`."""
    half = made.evidence() | {"active_seconds": 2000.0}
    made.write(tmp_path, half)
    original = files.paths(tmp_path)[0]
    (tmp_path / "run-copy.json").write_bytes(original.read_bytes())
    report = command.make(tmp_path, config)
    assert len(report.evidence.entries) == 1
    assert [each.why for each in report.evidence.not_counted] == [f"a copy of {original.name}"]
    assert report.verdict is Verdict.NOT_YET


def test_a_page_is_written_whatever_a_file_or_a_folder_is_called(
    tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made.write(tmp_path / "folder\udcff", made.evidence())
    (folder / "run-\udcff.json").write_text("{}")
    assert cli.main(["report", "--dir", str(folder), "--html", str(tmp_path / "page.html")]) == 2
    assert "run-?.json" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert sorted(os.listdir(tmp_path)) == ["folder\udcff", "page.html"]


def test_a_folder_that_cannot_even_be_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KDTREE_EVIDENCE_DIR", str(tmp_path / ("a" * 300)))
    assert cli.main(["report"]) == 64
    assert capsys.readouterr().err.startswith("kdtree: no evidence: ")


@pytest.mark.parametrize("kind", ["missing", "a file", "empty", "only notes"])
def test_a_folder_without_evidence_is_refused(tmp_path: Path, config: Config, kind: str) -> None:
    folder = tmp_path / "folder"
    if kind == "a file":
        folder.write_text("")
    elif kind != "missing":
        folder.mkdir()
    if kind == "only notes":
        (folder / "notes.json").write_text("{}")
    with pytest.raises(UsageError, match="no evidence"):
        command.make(folder, config)


def test_another_users_server_is_found_where_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service writes to /var/lib/kdtree; who asks may only read there, so that his own folder is another."""
    service = made.write(tmp_path / "service", made.evidence())
    monkeypatch.setattr(command, "IMAGE_EVIDENCE_DIR", service)
    for name, value in {"HOME": str(tmp_path), "KDTREE_EVIDENCE_DIR": "", "XDG_STATE_HOME": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("kdtree_verify.config.IMAGE_EVIDENCE_DIR", tmp_path / "not writable")
    assert cli.main(["report"]) == 2
    assert f"in {service}" in capsys.readouterr().out
    mine = made.write(tmp_path / ".local" / "state" / "kdtree", made.evidence())
    assert cli.main(["report"]) == 2
    assert f"in {mine}" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_this_user_may_not_enter_is_refused_with_who_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """systemd's DynamicUser: /var/lib/kdtree leads into a folder that is root's alone."""
    private = tmp_path / "private"
    service = made.write(private / "kdtree", made.evidence())
    private.chmod(0o700)
    monkeypatch.setattr(command, "IMAGE_EVIDENCE_DIR", service)
    monkeypatch.setattr("kdtree_verify.config.IMAGE_EVIDENCE_DIR", tmp_path / "not writable")
    for name, value in {"HOME": "/nonexistent", "KDTREE_EVIDENCE_DIR": "", "XDG_STATE_HOME": ""}.items():
        monkeypatch.setenv(name, value)
    os.seteuid(65534)
    try:
        codes = [cli.main(["report"]), cli.main(["report", "--dir", str(service)])]
    finally:
        os.seteuid(0)
    assert codes == [64, 64]
    line = f"kdtree: no evidence: {service}: Permission denied. Fix: ask as root, or as the server's user"
    assert capsys.readouterr().err.splitlines() == [line, line]
