"""The long quiet steps of the stand-in bases: they show that they live, and say why they failed."""

from __future__ import annotations

import subprocess

import pytest

import standin


def test_a_long_step_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(standin, "SIGN_OF_LIFE", 0.05)
    standin.checked("Debian", ["sh", "-c", "echo quiet; sleep 0.5"])
    said = capfd.readouterr().err
    assert "standin: Debian: 0 s so far" in said
    assert "quiet" not in said


def test_a_failed_step_shows_the_end_of_its_output(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(standin.StandinError, match="failed with status 3"):
        standin.checked("Debian", ["sh", "-c", "echo no space left; exit 3"])
    assert "no space left" in capfd.readouterr().err


def test_an_interrupt_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(process: subprocess.Popen[bytes]) -> bool:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(standin, "ended", interrupt)
    with pytest.raises(KeyboardInterrupt):
        standin.checked("Debian", ["sleep", "60"])
    assert started[0].returncode == -9
