"""ci/wheelhouse.py against an index of the test's own making: a folder of small wheels, and real pip."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import wheelhouse


def wheel(folder: Path, name: str, version: str = "1.0", content: str = "") -> str:
    """Writes a wheel with one module; returns its sha256."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip looks at; the wheelhouse under test is tmp_path/house."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setattr(wheelhouse, "WHEELHOUSE", tmp_path / "house")
    monkeypatch.setattr(wheelhouse, "PIP_VENV", wheelhouse.BUILD / "pip")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What pins.toml's set `some` locks; filled by the test."""
    entries: dict[str, str] = {}
    table: dict[str, Any] = {"python": {"test": "3.11"}, "wheels": {"some": {"lock": entries}}}
    monkeypatch.setattr(wheelhouse.lockfile, "load", lambda: table)
    return entries


def test_downloads_what_is_missing_and_only_that(
    index: Path, lock: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock |= {"one==1.0": wheel(index, "one"), "two==1.0": wheel(index, "two")}
    assert wheelhouse.main(["some"]) == 0
    assert {path.name for path in (tmp_path / "house").glob("*.whl")} == {path.name for path in index.iterdir()}
    monkeypatch.setattr(wheelhouse, "_pip", lambda *_: pytest.fail("pip was asked again"))
    assert wheelhouse.main(["some"]) == 0


def test_a_damaged_file_is_fetched_again(index: Path, lock: dict[str, str], tmp_path: Path) -> None:
    lock["one==1.0"] = wheel(index, "one")
    file = tmp_path / "house" / "one-1.0-py3-none-any.whl"
    assert wheelhouse.main(["some"]) == 0
    file.write_bytes(file.read_bytes()[:-1])
    assert wheelhouse.main(["some"]) == 0
    assert hashlib.sha256(file.read_bytes()).hexdigest() == lock["one==1.0"]


def test_a_wheel_that_cannot_be_had_is_named_and_the_rest_kept(
    index: Path, lock: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lock |= {"one==1.0": wheel(index, "one"), "two==1.0": "0" * 64}
    assert wheelhouse.main(["some"]) == 69
    (line,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("kdtree:"))
    assert "two==1.0" in line
    assert "Fix: " in line
    assert [path.name for path in (tmp_path / "house").glob("*.whl")] == ["one-1.0-py3-none-any.whl"]


def test_an_index_that_does_not_answer_is_the_reason_given(
    lock: dict[str, str], index: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lock["one==1.0"] = "0" * 64
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert wheelhouse.main(["some"]) == 69
    error = capfd.readouterr().err
    assert "one==1.0: the index does not answer" in error
    assert "Connection refused" in error


def test_a_wheel_of_another_content_is_refused(index: Path, lock: dict[str, str], tmp_path: Path) -> None:
    lock["one==1.0"] = wheel(index, "one")
    wheel(index, "one", content="evil = True")
    assert wheelhouse.main(["some"]) == 69
    assert not list((tmp_path / "house").glob("*.whl"))


def test_torch_for_a_cpu_says_which_variable_helps(
    index: Path, lock: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    lock["torch==1.0+cpu"] = "0" * 64
    assert wheelhouse.main(["some"]) == 69
    assert "KDTREE_TORCH_INDEX" in capfd.readouterr().err


def test_a_set_installs_into_a_folder(index: Path, lock: dict[str, str], tmp_path: Path) -> None:
    lock["one==1.0"] = wheel(index, "one", content="value = 1")
    folder = tmp_path / "into"
    folder.mkdir()
    (folder / "stale").touch()
    assert wheelhouse.main(["--into", str(folder), "some"]) == 0
    assert (folder / "one.py").read_text() == "value = 1"
    assert not (folder / "stale").exists()


@pytest.mark.parametrize("arguments", [[], ["--no-such"], ["--into", "only-a-folder"]])
def test_usage(arguments: list[str]) -> None:
    assert wheelhouse.main(arguments) == 64


def test_pips_own_environment_is_whole_or_not_there(
    index: Path, lock: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock["one==1.0"] = wheel(index, "one")
    own = tmp_path / "pip"
    monkeypatch.setattr(wheelhouse, "PIP_VENV", own)
    create = wheelhouse.venv.create

    def interrupted(folder: Path, **options: Any) -> None:
        create(folder, **options | {"with_pip": False})
        raise KeyboardInterrupt

    monkeypatch.setattr(wheelhouse.venv, "create", interrupted)
    assert wheelhouse.main(["some"]) == 130
    assert not own.exists()
    monkeypatch.setattr(wheelhouse.venv, "create", create)
    assert wheelhouse.main(["some"]) == 0


def test_a_folder_that_cannot_be_made_is_one_line(
    index: Path, lock: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheelhouse, "WHEELHOUSE", Path("/proc/wheelhouse"))
    assert wheelhouse.main(["some"]) == 69
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kdtree: ")
    assert " Fix: " in line
