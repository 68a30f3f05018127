"""`ci/gpu-container run`: checks, the engine, the image, the steps; and nothing is left of it but the results."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from . import base, pack, packs, profiles
from .containers import Docker
from .engine import CarriedEngine, write_specification
from .errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, Unavailable
from .profiles import Profile
from .scenario import Scenario
from .steps import Record

BUNDLE = pack.ROOT / "build" / "gpu-bundle" / "install"
MARK = ".kdtree-container"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


def main(asked: argparse.Namespace) -> int:
    """The verb; its exit code. Raises ContainerError, KeyboardInterrupt."""
    if not 30 <= asked.seconds <= 3600:
        print(f"kdtree: --seconds is out of range: {asked.seconds}. Fix: give 30 .. 3600", file=sys.stderr)
        return EXIT_USAGE
    check(asked.engine)
    profile = profiles.on_cpu() if asked.rehearse else profiles.on_gpus()
    record = Record(asked.results)
    engine = CarriedEngine(asked.engine, asked.work, asked.work / "cdi")
    interrupted = False
    with own_folder(asked.work):
        signal.signal(signal.SIGALRM, out_of_time)
        signal.alarm(asked.seconds)
        try:
            engine.stop()  # what a killed run may have left
            play(record, engine, profile)
        except KeyboardInterrupt as interrupt:
            interrupted = not isinstance(interrupt, OutOfTime)
            with record.step("all of it", f"done within {asked.seconds} s, uninterrupted") as step:
                step.check(False, "interrupted" if interrupted else "out of time")
        finally:
            for number in ENDING:
                signal.signal(number, signal.SIG_IGN)
            clean_up(record, engine, asked.work)
            path = record.write()
    print(record.summary())
    print(f"{path}{'' if record.ok else f'; logs in {record.logs}'}")
    if interrupted:
        return EXIT_INTERRUPTED
    return 0 if record.ok else EXIT_FAILED


class OutOfTime(KeyboardInterrupt):
    """The time for all of it is over."""


def out_of_time(_number: int, _frame: object) -> NoReturn:
    raise OutOfTime


def check(engine: Path) -> None:
    """Raises Unavailable where something is missing, before anything is made."""
    if os.geteuid() != 0:
        raise Unavailable("a Docker engine needs root: you are not. Fix: run it as root")
    if not (engine / "usr/sbin/dockerd").is_file():
        raise Unavailable(f"no engine: no dockerd in {engine}. Fix: carry its pack here; ci/gpu-container engine")
    if not pack.IMAGE.is_file():
        raise Unavailable(f"no image: no {pack.IMAGE}. Fix: make it with ci/gpu-container pack, and carry it here")


@contextmanager
def own_folder(work: Path) -> Iterator[None]:
    """The folder that is removed at the end, for one run at a time. Raises Unavailable where it is another's."""
    mark = work / MARK
    if work.exists() and not mark.exists() and any(work.iterdir()):
        raise Unavailable(f"{work} is not this program's to remove: it has no {MARK}. Fix: name another with --work")
    work.mkdir(parents=True, exist_ok=True)
    with mark.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"{work} is another run's. Fix: wait for it, or name another with --work") from None
        yield


def play(record: Record, engine: CarriedEngine, profile: Profile) -> None:
    """Engine, image, steps."""
    write_specification(engine.specs, *profile.nodes)
    with record.step("the engine", "it answers") as step:
        engine.start()
        client = engine.client_environment()
        version = Docker(client, "", []).call("version", "--format={{.Server.Version}}").strip()
        step.check(True, version)
    if not step.ok:
        return
    site: list[Path] = []
    variables: dict[str, str] = {}
    if profile.bundled:
        with record.step("the bundle", "installed") as step:
            site = [engine.folder / "sglang"]
            variables, flags = profiles.bundle(site[0], BUNDLE)
            profile = replace(profile, arguments=(*profile.arguments, *flags))
            step.check(True, " ".join(flags))
        if not step.ok:
            return
    here = base.machine()
    mounts = here.mounts(*site)
    with record.step("the image's layers on a base of this machine's Python", "loaded, configured as built") as step:
        layers = unpacked_layers(engine)
        config = layers.on(base.environment_of(here, variables))
        packages = [layers.site_packages(), *map(str, [*site, *here.packages])]
        put_together(engine, here, layers, config, packages, mounts, client)
        image = inspect(client)
        step.check(*as_built(image, layers, config))
    if not step.ok:
        return
    record.facts |= facts(profile, layers, image, mounts, version)
    with record.step("the image is of these sources", "its kernel's source hash is this tree's") as step:
        script = ["sh", "kernel/build.sh", "hash", "cuda"]
        tree = subprocess.run(script, cwd=pack.ROOT, capture_output=True, text=True, check=True).stdout.strip()
        built = layers.labels.get("kdtree.kernel.source-hash", "")
        step.check(built == tree, built)
    scenario = Scenario(Docker(client, pack.TAG, mounts, profile.settings), profile, record, engine.folder)
    try:
        scenario.play()
    finally:
        record.facts["servers"] = {name: list(run.ranks.values()) for name, run in scenario.runs.items()}


def unpacked_layers(engine: CarriedEngine) -> base.Layers:
    folder = engine.folder / "image"
    packs.unpack(pack.IMAGE, folder)
    return base.Layers.read(folder)


def put_together(
    engine: CarriedEngine,
    here: base.Machine,
    layers: base.Layers,
    config: dict[str, Any],
    packages: list[str],
    mounts: list[Path],
    client: dict[str, str],
) -> None:
    """Loads the image into the engine."""
    root, image = engine.folder / "root.tar", engine.folder / "image.tar"
    base.write_root(root, here, packages, mounts)
    base.write_image(image, pack.TAG, root, layers, config)
    Docker(client, "", []).call("load", f"--input={image}", seconds=120)
    root.unlink()
    image.unlink()


def inspect(client: dict[str, str]) -> dict[str, Any]:
    (found,) = json.loads(Docker(client, "", []).call("image", "inspect", pack.TAG))
    return dict(found)


def as_built(image: dict[str, Any], layers: base.Layers, config: dict[str, Any]) -> tuple[bool, str]:
    """Whether the engine's image has the Dockerfile's configuration and layers."""
    names = ("Entrypoint", "Healthcheck", "StopSignal", "User", "Env")
    differ = [name for name in names if (image["Config"].get(name) or None) != (config.get(name) or None)]
    if image["RootFS"]["Layers"][1:] != layers.diff_ids:
        differ.append("layers")
    shown = f"{image['Config']['Entrypoint']}, {len(layers.diff_ids)} layers on 1"
    return not differ, f"{shown}; not as built: {', '.join(differ)}" if differ else shown


def facts(
    profile: Profile, layers: base.Layers, image: dict[str, Any], mounts: list[Path], engine: str
) -> dict[str, Any]:
    """What it is done with."""
    return {
        "on": profile.name,
        "card": profile.card,
        "engine": engine.strip(),
        "python": platform.python_version(),
        "commit": layers.labels.get("org.opencontainers.image.revision", "unknown"),
        "image": {
            "id": image["Id"],
            "layers": image["RootFS"]["Layers"],
            **{name.lower(): image["Config"].get(name) for name in ("Entrypoint", "Env", "Healthcheck", "StopSignal")},
            "labels": image["Config"]["Labels"],
        },
        "mounts": list(map(str, mounts)),
    }


def clean_up(record: Record, engine: CarriedEngine, work: Path) -> None:
    """Ends the engine and its containers, however they were left, and removes the work folder."""
    with record.step("nothing is left", "no process of the engine, no mount, no work folder") as step:
        if engine.log.exists():
            record.keep("dockerd", engine.log.read_text(errors="replace"))
        engine.stop()
        shutil.rmtree(work)
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        left = [mount for mount in mounts if Path(mount).is_relative_to(work)]
        step.check(not left and not engine.run.exists(), f"{len(left)} mounts")
