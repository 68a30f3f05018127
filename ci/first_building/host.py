"""What must be on the host before anything is pulled."""

from __future__ import annotations

import csv
import json
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from demo import stack
from imaging.build import buildx as find_buildx
from imaging.errors import ImageError
from oci import names
from pinning import lockfile

from .running import NO_PROGRAM, run
from .site import Site
from .step import Found, NotRun, NotSo

DOCKER, COMPOSE, TOOLKIT = (25,), (2, 24), (1, 17, 8)
"""The oldest that serve. The toolkit's is the first without CVE-2025-23266."""
CARD = "12.0"
UNPACKED = 4
"""Bytes on disk for one in the registry: the layer as it came and what it unpacks to, two to three times as much."""
ROOM = 10 << 30
"""Bytes for what the build adds and its caches."""


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, in order: "v2.24.1-desktop.1" is (2, 24, 1)."""
    found = re.search(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def at_least(version: str, minimum: tuple[int, ...]) -> bool:
    return numbers(version) >= minimum


def docker(site: Site) -> Found:
    """The engine: its version, and where it keeps images."""
    asked = run("docker", "info", "--format={{json .}}", timeout=60)
    install = "install Docker Engine 25 or newer with buildx (https://docs.docker.com/engine/install/)"
    if asked.code == NO_PROGRAM:
        raise NotSo("Docker is missing", asked.error, install)
    info = _object(asked.output)
    version = info.get("ServerVersion") or ""
    if asked.code != 0 or not version:
        fix = "start it (systemctl start docker), or set DOCKER_HOST"
        said = (info.get("ServerErrors") or [asked.last])[0]
        if "permission denied" in said:
            fix = "run this as root, or as a user of the group docker"
        raise NotSo("the Docker engine does not answer", said, fix)
    if not at_least(version, DOCKER):
        raise NotSo("the Docker engine is too old", version, install)
    kept = ("Driver", "DockerRootDir", "Runtimes", "CDISpecDirs", "DiscoveredDevices")
    data = {"version": version, **{name: info.get(name) for name in kept}}
    return Found(f"{version}, {info.get('Driver')}, on {info.get('OperatingSystem')}", data=data)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def buildx(site: Site) -> Found:
    try:
        program = find_buildx()
    except ImageError as error:
        raise NotSo.of(error) from None
    version = run(*program, "version").output.strip()
    return Found(version, data={"program": program, "version": version})


def compose(site: Site) -> Found:
    asked = run(*stack.compose(), "version", "--short")
    fix = "install Compose 2.24 or newer, docker's plugin (https://docs.docker.com/compose/install/)"
    if asked.code != 0:
        raise NotSo("Compose is missing", asked.last, fix)
    version = asked.output.strip()
    if not at_least(version, COMPOSE):
        raise NotSo("Compose is too old", version, fix)
    return Found(version, data={"version": version})


def driver(site: Site) -> Found:
    """NVIDIA's driver and the cards, by nvidia-smi, which asks NVML."""
    fields = ("index", "name", "driver_version", "compute_cap", "memory.total")
    asked = run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", timeout=60)
    if asked.code != 0:
        if site.stand_in:
            raise NotRun("no NVIDIA GPU")
        raise NotSo("no NVIDIA GPU", asked.last, "install NVIDIA's driver 580 or newer; nvidia-smi must list the cards")
    rows = csv.reader(asked.output.splitlines(), skipinitialspace=True)
    gpus = [dict(zip(fields, row, strict=True)) for row in rows]
    minimum = lockfile.get(lockfile.load(), "cuda.minimum-driver")
    version = gpus[0]["driver_version"]
    if not at_least(version, numbers(minimum)):
        raise NotSo("the driver is older than the image's CUDA", version, f"install {minimum} or newer", asked.output)
    cards = ", ".join(sorted({f"{gpu['name']} ({gpu['compute_cap']})" for gpu in gpus}))
    if CARD not in {gpu["compute_cap"] for gpu in gpus}:
        raise NotSo("no card of compute capability 12.0", cards, "run it on an RTX PRO 6000 Blackwell or RTX 5090")
    return Found(f"{version}; {len(gpus)} x {cards}", asked.output, {"version": version, "gpus": gpus})


def toolkit(site: Site) -> Found:
    """How the engine hands over GPUs: by NVIDIA's runtime, or by CDI."""
    engine = site.data["docker"]
    version = run("nvidia-ctk", "--version").output
    told = ".".join(map(str, numbers(version))) or "of unknown version"
    old = "" if at_least(version, TOOLKIT) else "; older than 1.17.8, or unknown: CVE-2025-23266, update it"
    if "nvidia" in (engine.get("Runtimes") or {}):
        return Found(f"NVIDIA's runtime, toolkit {told}{old}", data={"way": "runtime", "version": told})
    specs = [file for folder in engine.get("CDISpecDirs") or () for file in sorted(Path(folder).glob("*nvidia*"))]
    devices = [each.get("ID", "") for each in engine.get("DiscoveredDevices") or ()]
    if specs or any(device.startswith("nvidia.com/gpu") for device in devices):
        return Found(f"CDI, toolkit {told}{old}", data={"way": "cdi", "version": told})
    fix = (
        "install NVIDIA's container toolkit, then nvidia-ctk runtime configure --runtime=docker and restart docker; "
        "or nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    )
    raise NotSo("the engine cannot hand over GPUs", "neither a runtime named nvidia nor a CDI specification", fix)


def network(site: Site) -> Found:
    """Each registry answers, if only that one has to log in."""
    answered = []
    for address in sorted({names.repository(image.name).host for image in site.images}):
        loopback = address.startswith(("127.0.0.1:", "localhost:"))
        # A proxy is for what lies outside.
        opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if loopback else []))
        try:
            with opener.open(f"{'http' if loopback else 'https'}://{address}/v2/", timeout=30) as response:
                answered.append(f"{address}: {response.status}")
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise NotSo("a registry refuses", f"{address}: {error}", "ask again later, or use a mirror") from None
            answered.append(f"{address}: 401, as anonymous")
        except OSError as error:
            reason = getattr(error, "reason", error)
            fix = "the network, or a proxy in HTTPS_PROXY"
            raise NotSo("a registry does not answer", f"{address}: {reason}", fix) from None
    return Found("; ".join(answered))


def disk(site: Site) -> Found:
    """Room for the bases that are not here yet, where the engine keeps them, and for the report."""
    images = site.data["digests"]["images"]
    missing = [
        image for image in site.bases() if run("docker", "image", "inspect", image.by_digest, timeout=60).code != 0
    ]
    needed = sum(images[image.key]["bytes"] for image in missing) * UNPACKED
    needed += 0 if site.stand_in else ROOM
    root = Path(site.data["docker"]["DockerRootDir"] or "/")
    if not root.exists():
        raise NotRun(f"the engine's folder is not on this host; {needed / 1e9:.1f} GB are needed there")
    free = shutil.disk_usage(root).free
    if free < needed:
        fix = "free some (docker system df), or move the engine's data-root to a larger disk"
        raise NotSo(f"{needed / 1e9:.1f} GB of disk are needed for images", f"{free / 1e9:.1f} GB are free", fix)
    return Found(f"{free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB needed", data={"free": free, "needed": needed})
