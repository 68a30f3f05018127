"""ci/engine_debs.py: packages of this machine's own Debian mirror."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from engine_debs import Debs, DebsError, codename

ROOT = Path(__file__).parents[2]


def test_two_commands_that_want_the_same_at_once_both_get_it(tmp_path: Path) -> None:
    try:
        release = codename()
    except DebsError as error:
        pytest.skip(str(error))
    program = f"from engine_debs import *; print(Debs(Path({str(tmp_path)!r})).unpack({{'hostname': {release!r}}}))"
    command = [sys.executable, "-c", program]
    both = [subprocess.Popen(command, cwd=ROOT / "ci", stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert said == [f"{tmp_path}/root\n"] * 2
    assert (tmp_path / "root" / "bin" / "hostname").exists()


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that comes first: an apt-get that has every package of a Debian named x."""
    folder = tmp_path / "bin"
    folder.mkdir()
    listed = "[ $1 = indextargets ] && printf 'file:/none\\tx\\tmain\\t$(SIGNED_BY)\\n'"
    program(folder, "apt-get", f'{listed}\n[ "$2" = download ] && : >"${{3%/*}}_1.deb"\nexit 0')
    program(folder, "dpkg", 'mkdir -p "$3" && : >"$3/${2##*/}"')
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian", "VERSION_CODENAME": "x"})
    return folder


@pytest.mark.parametrize("name", ["apt-get", "dpkg"])
def test_what_fails_is_said_in_its_own_words(name: str, fakes: Path, tmp_path: Path) -> None:
    program(fakes, name, "echo first >&2; echo no room >&2; exit 100")
    with pytest.raises(DebsError, match=f"^{name} .* failed: no room$"):
        Debs(tmp_path / "debs").unpack({"a": "x"})


def test_half_of_another_set_is_not_taken_for_the_one_before(fakes: Path, tmp_path: Path) -> None:
    debs = Debs(tmp_path / "debs")
    assert [path.name for path in debs.unpack({"a": "x"}).iterdir()] == ["a_1.deb"]
    whole = (fakes / "dpkg").read_text()
    program(fakes, "dpkg", "exit 1")
    with pytest.raises(DebsError):
        debs.unpack({"b": "x"})
    (fakes / "dpkg").write_text(whole)
    assert [path.name for path in debs.unpack({"a": "x"}).iterdir()] == ["a_1.deb"]
