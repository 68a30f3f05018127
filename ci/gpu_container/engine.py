"""The engine that was carried here: a private one without a network of its own, that hands over GPUs by CDI."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from engine_private import PrivateEngine

from .errors import Unavailable

DEVICE = "nvidia.com/gpu=all"
DRIVER = Path("/usr/local/nvidia")
CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


class CarriedEngine(PrivateEngine):
    """Docker's engine out of the pack; its data, socket and logs go with the folder `work`.

    Args:
        root: The unpacked pack.
        work: Where its data lies.
        specs: The folder of CDI specifications.
    """

    def __init__(self, root: Path, work: Path, specs: Path) -> None:
        super().__init__(work, "carried")
        self.root = root
        self.specs = specs

    def client_environment(self) -> dict[str, str]:
        """What docker and its Compose plugin need to speak to this engine, and to no other."""
        config = self.folder / "client"
        config.mkdir(parents=True, exist_ok=True)
        plugins = {"cliPluginsExtraDirs": [str(self.root / "usr/libexec/docker/cli-plugins")]}
        (config / "config.json").write_text(json.dumps(plugins))
        foreign = ("DOCKER_", "COMPOSE_", "KDTREE_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        path = f"{self.root / 'usr/bin'}:{inherited.get('PATH', os.defpath)}"
        return inherited | {"DOCKER_HOST": self.host, "DOCKER_CONFIG": str(config), "PATH": path}

    def _unpack(self) -> None:
        if not (self.root / "usr/sbin/dockerd").is_file():
            raise Unavailable(
                f"no engine: {self.root} holds no dockerd. Fix: carry its pack here; ci/gpu-container engine"
            )

    def _settings(self) -> dict[str, object]:
        return {
            "hosts": [self.host],
            "data-root": str(self.data),
            "exec-root": str(self.run / "exec"),
            "pidfile": str(self.run / "docker.pid"),
            # A machine without a network may have no iptables either: containers have the host's network, or none.
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "ip-forward": False,
            "userland-proxy": False,
            "features": {"cdi": True},
            "cdi-spec-dirs": [str(self.specs)],
            "shutdown-timeout": 10,
        }


Nodes = Mapping[str, str]
"""Device nodes: their path in a container, and the machine's."""


def gpu_nodes(devices: Path = Path("/dev")) -> tuple[Nodes, Nodes]:
    """The nodes of the GPUs here, and those that all of them need."""
    names = sorted(node.name for node in devices.glob("nvidia*"))
    gpus = [name for name in names if name.removeprefix("nvidia").isdecimal()]
    control = [name for name in names if name in CONTROL]
    return _nodes(devices, gpus), _nodes(devices, control)


def _nodes(devices: Path, names: list[str]) -> Nodes:
    return {f"/dev/{name}": str(devices / name) for name in names}


def write_specification(folder: Path, gpus: Nodes, control: Nodes, driver: Path = DRIVER) -> None:
    """Writes nvidia.com/gpu=all as nvidia-ctk would, but for its hooks: nodes, and the driver's folder read-only.

    Where the driver lies in the system's own folders it is mounted with the base.
    """
    options = ["ro", "nosuid", "nodev", "bind"]
    mounts = [{"hostPath": str(driver), "containerPath": str(driver), "options": options}] if driver.is_dir() else []
    specification = {
        "cdiVersion": "0.5.0",
        "kind": DEVICE.partition("=")[0],
        "devices": [{"name": "all", "containerEdits": {"deviceNodes": _edits(gpus)}}],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": _edits(control),
            "mounts": mounts,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nvidia.json").write_text(json.dumps(specification, indent=1))


def _edits(nodes: Nodes) -> list[dict[str, str]]:
    return [{"path": path, "hostPath": host} for path, host in nodes.items()]
