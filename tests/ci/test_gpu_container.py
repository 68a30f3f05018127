"""ci/gpu-container without an engine: what it refuses, its packs, the base's root filesystem, the CDI specification."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import threading
from argparse import Namespace
from pathlib import Path

import pytest

from gpu_container import base, engine, pack, packs, profiles, run
from gpu_container.errors import ContainerError, Unavailable
from gpu_container.steps import Record

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable}
    return subprocess.run(
        [ROOT / "ci" / "gpu-container", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        user=user,
        timeout=60,
        check=False,
    )


# ---- Refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("run", "--nonsense"), ("run", "--seconds", "5")])
def test_bad_usage_is_one_line(arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert done.returncode == 64
    (line,) = done.stderr.splitlines()
    assert line.startswith("kdtree: ")
    assert "Fix: " in line


@pytest.mark.skipif(os.geteuid() != 0, reason="only root finds no engine; others are refused before")
def test_without_an_engine_it_is_refused(tmp_path: Path) -> None:
    done = command("run", "--engine", str(tmp_path), "--work", str(tmp_path / "work"))
    assert done.returncode == 69
    assert done.stderr.startswith(f"kdtree: no engine: no dockerd in {tmp_path}")
    assert not (tmp_path / "work").exists()


def options(folder: Path) -> Namespace:
    """Of `run`, with a folder that looks like an unpacked engine."""
    daemon = folder / "engine" / "usr" / "sbin" / "dockerd"
    daemon.parent.mkdir(parents=True)
    daemon.touch()
    return Namespace(
        engine=folder / "engine", work=folder / "work", results=folder / "results", seconds=60, rehearse=False
    )


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_only_root_may_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="needs root"):
        run.main(options(tmp_path))


@pytest.mark.usefixtures("as_root")
def test_without_the_image_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "IMAGE", tmp_path / "image.tar.xz")
    with pytest.raises(Unavailable, match="no image"):
        run.main(options(tmp_path))


@pytest.mark.usefixtures("as_root")
def test_without_a_gpu_it_is_refused_and_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(pack, "IMAGE", Path(__file__))
    with pytest.raises(Unavailable, match="no GPU can be seen"):
        run.main(options(tmp_path))
    assert not (tmp_path / "work").exists()


def test_without_the_bundle_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no GPU bundle"):
        profiles.bundle(tmp_path / "site", tmp_path / "install")


def test_what_the_bundle_asks_for(tmp_path: Path) -> None:
    installer = tmp_path / "install"
    environment = ROOT / "ci" / "gpu_bundle" / "environment"
    installer.write_text(f'#!/bin/sh\nmkdir "$1" && cp "{environment}" "$1/"\n')
    installer.chmod(0o755)
    variables, flags = profiles.bundle(tmp_path / "site", installer)
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert "PYTHONPATH" not in variables
    assert flags[:2] == ("--attention-backend", "triton")


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(Unavailable, match="not this program's to remove"), run.own_folder(tmp_path):
        pass
    assert (tmp_path / "precious").exists()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with (
        run.own_folder(tmp_path / "work"),
        pytest.raises(Unavailable, match="another run's"),
        run.own_folder(tmp_path / "work"),
    ):
        pass


# ---- Packs -----------------------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    program = tmp_path / "whole" / "usr" / "bin" / "program"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    packs.write(tmp_path / "whole", tmp_path / "pack.tar.xz")
    return tmp_path / "pack.tar.xz"


def test_a_pack_is_unpacked_once(packed: Path, tmp_path: Path) -> None:
    packs.unpack(packed, tmp_path / "here")
    program = tmp_path / "here" / "usr" / "bin" / "program"
    assert os.access(program, os.X_OK)
    program.write_text("kept")
    packs.unpack(packed, tmp_path / "here")
    assert program.read_text() == "kept"


def test_the_same_content_is_the_same_pack(packed: Path, tmp_path: Path) -> None:
    os.utime(tmp_path / "whole" / "usr" / "bin" / "program", (1, 1))
    packs.write(tmp_path / "whole", tmp_path / "again.tar.xz")
    assert (tmp_path / "again.tar.xz").read_bytes() == packed.read_bytes()


def test_a_pack_that_was_cut_short_is_refused(packed: Path, tmp_path: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:-8])
    with pytest.raises(Unavailable, match="not whole"):
        packs.unpack(packed, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_missing_pack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no pack"):
        packs.unpack(tmp_path / "pack.tar.xz", tmp_path / "here")


def test_a_folder_that_is_no_packs_is_left_alone(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not a pack's"):
        packs.unpack(packed, tmp_path / "whole")


# ---- The base --------------------------------------------------------------------------------------------


def test_what_has_files_of_the_image_is_copied_and_the_rest_mounted() -> None:
    mounts = base.machine().mounts()
    for copied in base.COPIED:
        assert not any(Path(copied).is_relative_to(mount) for mount in mounts)
    assert Path("/usr/lib") in mounts
    assert not any(mount.is_relative_to("/opt/sglang") or mount == engine.DRIVER for mount in mounts)
    inside = [a for a in mounts for b in mounts if a != b and a.is_relative_to(b)]
    assert inside == []


def test_what_a_package_needs_beside_the_system_is_mounted(tmp_path: Path) -> None:
    assert base.machine().mounts(tmp_path)[-1] == tmp_path


def test_the_root_has_a_virtual_environment_of_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "COPIED", ())
    here = base.machine()
    ours = f"/opt/sglang/lib/python{here.version}/site-packages"
    base.write_root(tmp_path / "root.tar", here, [ours, "/bundle"], [Path("/usr/lib")])
    with tarfile.open(tmp_path / "root.tar") as tar:
        assert tar.getmember("usr/lib").isdir()
        assert tar.getmember("opt/sglang/bin/python").linkname == str(here.executable)
        content = tar.extractfile(f"{ours[1:]}/base.pth")
        assert content is not None
        assert content.read().decode() == "import site; site.addsitedir('/bundle')\n"


def test_the_configuration_is_the_dockerfiles_on_the_bases_environment(tmp_path: Path) -> None:
    config = {
        "Env": ["PATH=/stand-in", "NVIDIA_DISABLE_REQUIRE=1"],
        "Labels": {"revision": "1", "ai.sglang.build.commit": "2"},
        "Entrypoint": ["/usr/bin/tini"],
        "Healthcheck": {"Test": ["CMD", "kdtree"]},
    }
    below = {"Env": ["PATH=/stand-in"], "Labels": {"revision": "2", "ai.sglang.build.commit": "2"}}
    layers = base.Layers(tmp_path, {"config": config}, {"layers": 1, "config": below})
    assert layers.on({"PATH": "/this"}) == {
        **config,
        "Env": ["PATH=/this", "NVIDIA_DISABLE_REQUIRE=1"],
        "Labels": {"revision": "1"},
    }


# ---- CDI -------------------------------------------------------------------------------------------------


def test_the_specification_has_the_gpus_their_controls_and_the_driver(tmp_path: Path) -> None:
    devices, driver = tmp_path / "dev", tmp_path / "nvidia"
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (devices / name).mkdir(parents=True)
    driver.mkdir()
    engine.write_specification(tmp_path, *engine.gpu_nodes(devices), driver)
    document = json.loads((tmp_path / "nvidia.json").read_text())
    (device,) = document["devices"]
    assert f"{document['kind']}={device['name']}" == engine.DEVICE
    assert [node["path"] for node in device["containerEdits"]["deviceNodes"]] == ["/dev/nvidia0", "/dev/nvidia1"]
    common = document["containerEdits"]
    assert [node["path"] for node in common["deviceNodes"]] == ["/dev/nvidia-uvm", "/dev/nvidiactl"]
    assert [mount["containerPath"] for mount in common["mounts"]] == [str(driver)]


# ---- Steps -----------------------------------------------------------------------------------------------


def test_a_step_that_raises_has_failed_and_the_next_is_done(tmp_path: Path) -> None:
    record = Record(tmp_path)
    with record.step("first", "nothing"):
        raise ContainerError("it broke")
    with record.step("second", "nothing") as step:
        step.check(True, "good")
    assert not record.ok
    document = json.loads(record.write().read_text())
    assert [step["ok"] for step in document["steps"]] == [False, True]
    assert "it broke" in record.summary()


def test_a_step_that_nobody_checked_has_failed(tmp_path: Path) -> None:
    record = Record(tmp_path)
    with record.step("forgotten", "something"):
        pass
    assert not record.ok


def test_an_interrupt_is_no_failed_step(tmp_path: Path) -> None:
    record = Record(tmp_path)
    with pytest.raises(KeyboardInterrupt), record.step("long", "it ends"):
        raise KeyboardInterrupt
    assert not record.ok


def test_steps_of_several_servers_are_all_kept(tmp_path: Path) -> None:
    record = Record(tmp_path)

    def work() -> None:
        for _ in range(50):
            with record.step("one", "good") as step:
                step.check(True, "good")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(record.steps) == 200
