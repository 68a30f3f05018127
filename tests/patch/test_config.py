"""The environment: defaults, values, and one line for each that is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kdtree_verify import config
from kdtree_verify.config import Device, Mode, from_environment
from kdtree_verify.errors import UsageError


def test_nothing_set_is_off() -> None:
    found = from_environment({})
    assert (found.mode, found.device) == (Mode.OFF, Device.CUDA)
    assert found.library_dir == Path("/opt/kdtree/lib")
    assert found.log_interval == 60.0


def test_everything_set() -> None:
    found = from_environment(
        {
            "KDTREE_VERIFY": "validate",
            "KDTREE_DEVICE": "cpu",
            "KDTREE_LIBRARY_DIR": "/lib",
            "KDTREE_STATE_DIR": "/state",
            "KDTREE_LOG_INTERVAL": "2.5",
            "KDTREE_EVIDENCE_DIR": "/evidence",
            "KDTREE_SAMPLE": "1000",
            "KDTREE_CAPTURES": "0",
        }
    )
    assert found == config.Config(
        mode=Mode.VALIDATE,
        device=Device.CPU,
        library_dir=Path("/lib"),
        state_dir=Path("/state"),
        log_interval=2.5,
        evidence_dir=Path("/evidence"),
        sample_every=1000,
        captures=0,
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("KDTREE_VERIFY", "On", "KDTREE_VERIFY is not one of off, validate, on: 'On'"),
        ("KDTREE_VERIFY", "true", "off, validate, on"),
        ("KDTREE_DEVICE", "tpu", "KDTREE_DEVICE is not one of cuda, cpu: 'tpu'"),
        ("KDTREE_LOG_INTERVAL", "0", "KDTREE_LOG_INTERVAL is not a number of seconds: '0'"),
        ("KDTREE_LOG_INTERVAL", "soon", "'soon'"),
        ("KDTREE_LOG_INTERVAL", "nan", "'nan'"),
        ("KDTREE_SAMPLE", "-1", "KDTREE_SAMPLE is not a count: '-1'"),
        ("KDTREE_SAMPLE", "1e3", "'1e3'"),
        ("KDTREE_SAMPLE", "9" * 5000, f"'{'9' * 40}'. Fix: "),
        ("KDTREE_SAMPLE", "\uff14", "is not a count"),
        ("KDTREE_CAPTURES", "off", "KDTREE_CAPTURES is not a count: 'off'"),
    ],
)
def test_what_is_no_value(name, value, words) -> None:
    with pytest.raises(UsageError) as refused:
        from_environment({name: value})
    assert words in str(refused.value)
    assert " Fix: set " in str(refused.value)
    assert refused.value.code == 64


def test_the_state_folder_where_nothing_names_one(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(config, "IMAGE_STATE_DIR", tmp_path)
    assert from_environment({}).state_dir == tmp_path
    monkeypatch.setattr(config, "IMAGE_STATE_DIR", tmp_path / "none")
    assert from_environment({"XDG_RUNTIME_DIR": "/run/user/7"}).state_dir == Path(f"/run/user/7/kdtree-{os.getuid()}")
    assert from_environment({}).state_dir == Path(f"/tmp/kdtree-{os.getuid()}")


def test_the_evidence_folder_where_nothing_names_one(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(config, "IMAGE_EVIDENCE_DIR", tmp_path)
    assert from_environment({}).evidence_dir == tmp_path
    monkeypatch.setattr(config, "IMAGE_EVIDENCE_DIR", tmp_path / "none")
    assert from_environment({"XDG_STATE_HOME": "/s", "HOME": "/h"}).evidence_dir == Path("/s/kdtree")
    assert from_environment({"HOME": "/h"}).evidence_dir == Path("/h/.local/state/kdtree")
