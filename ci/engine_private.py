"""A Docker engine of this checkout's own: its binaries, data, socket and bridge, and nothing of the machine's.

It runs without iptables (published ports go through docker-proxy), so it neither reads nor writes the machine's
firewall, and two engines on one machine cannot flush each other's chains. Its containers therefore reach each
other and the host, but not the outside; nothing that is built or run here needs to.
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path

from engine_debs import Debs

# runc and tini of bookworm: trixie's want a newer libc than bookworm has, the others don't.
PACKAGES = {
    "docker.io": "trixie",
    "docker-cli": "trixie",
    "docker-buildx": "trixie",
    "containerd": "trixie",
    "runc": "bookworm",
    "tini": "bookworm",
}
START_SECONDS = 60
STOP_SECONDS = 30

SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCBRADDBR, SIOCBRDELBR = 0x8914, 0x8916, 0x891C, 0x89A0, 0x89A1
IFF_UP = 1


class EngineError(RuntimeError):
    """The engine cannot start or stop; the text is one line."""


class PrivateEngine:
    """One engine per checkout and name, found again by any process through files alone.

    A Unix socket's path must fit 107 characters, so sockets lie in a short folder under /run named by a hash of
    the checkout's path; everything large lies in build/engine.
    """

    def __init__(self, build: Path, name: str = "main", *, gpu_hook: bool = False) -> None:
        identity = hashlib.sha256(f"{build.resolve()}:{name}".encode()).hexdigest()
        self.debs = Debs(build / "engine" / "debs")
        self.root = self.debs.root
        self.folder = build / "engine" / name
        self.data = self.folder / "data"
        self.log = self.folder / "dockerd.log"
        self.run = Path("/run") / f"kdtree-engine-{identity[:8]}"
        self.host = f"unix://{self.run}/docker.sock"
        self.bridge = f"kdt{identity[:8]}"
        self.seed = int(identity[:8], 16)
        self.gpu_hook = gpu_hook

    # -- what others ask

    def answers(self) -> bool:
        """Whether this engine is up."""
        return ping(self.host)

    def start(self) -> None:
        """Starts the engine and waits until it answers; does nothing when it already does."""
        if self.answers():
            return
        self._unpack()
        self._clear_leftovers()
        self.data.mkdir(parents=True, exist_ok=True)
        self.run.mkdir(mode=0o711, exist_ok=True)
        config = self.run / "daemon.json"
        config.write_text(json.dumps(self._settings(), indent=1))
        with self.log.open("wb") as log:
            daemon = subprocess.Popen(
                [str(self.root / "usr/sbin/dockerd"), "--config-file", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self._environment(),
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if daemon.poll() is not None:
                raise EngineError(f"the engine ended at its start: {self._last_error()}")
            if time.monotonic() > deadline:
                self.stop()
                raise EngineError(f"the engine did not answer within {START_SECONDS} s: {self._last_error()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends the engine and every process, mount and interface of it, however it was left."""
        for pid in self._own_processes("dockerd"):
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while self._own_processes("dockerd") and time.monotonic() < deadline:
            time.sleep(0.1)
        self._clear_leftovers()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The engine, up, for the length of a with block; the last user stops it, unless it is kept.

        Users hold a shared lock, which the kernel drops with a killed one: an engine that a killed user left
        behind is stopped by the next.
        """
        with self._locked(fcntl.LOCK_EX) as lock:
            try:
                self.start()
                fcntl.flock(lock, fcntl.LOCK_SH)
                yield
            finally:
                if self._is_last_user(lock) and not self.kept.exists():
                    self.stop()

    def keep(self) -> None:
        """Starts the engine and lets it outlive its users until `discard`."""
        with self._locked(fcntl.LOCK_EX):
            self.start()
            self.kept.touch()

    def discard(self) -> None:
        """Stops the engine, whoever uses it."""
        self.kept.unlink(missing_ok=True)
        self.stop()

    def remove(self) -> None:
        """Stops the engine, whoever uses it, and removes all that it has."""
        self.discard()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def kept(self) -> Path:
        """A file that is there while the engine is to outlive its users."""
        return self.folder / "kept"

    @contextmanager
    def _locked(self, operation: int) -> Iterator[TextIOWrapper]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                print("engine: in use by another command of this checkout; waiting", file=sys.stderr, flush=True)
                fcntl.flock(lock, operation)
            yield lock

    @staticmethod
    def _is_last_user(lock: TextIOWrapper) -> bool:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    # -- how it is set up

    def _unpack(self) -> None:
        """Makes sure that the programs are under `root`."""
        self.debs.unpack(PACKAGES)

    def _settings(self) -> dict[str, object]:
        network = self._free_network()
        bridge_net, pool = list(network.subnets(prefixlen_diff=1))
        address = ipaddress.IPv4Interface(f"{bridge_net[1]}/{bridge_net.prefixlen}")
        add_bridge(self.bridge, address)
        features = {"containerd-snapshotter": True}
        cdi = {"cdi-spec-dirs": [str(self._write_cdi_spec())]} if self.gpu_hook else {}
        return cdi | {
            "hosts": [self.host],
            "data-root": str(self.data),
            "exec-root": str(self.run / "exec"),
            "pidfile": str(self.run / "docker.pid"),
            "bridge": self.bridge,
            "default-address-pools": [{"base": str(pool), "size": 24}],
            "iptables": False,
            "ip6tables": False,
            "ip-forward": False,
            "features": features | {"cdi": True} if self.gpu_hook else features,
            "shutdown-timeout": 10,
        }

    def _free_network(self) -> ipaddress.IPv4Network:
        """A /20 of 10.200.0.0/13: last time's, else one chosen by the checkout's hash that is free here."""
        routes = [network for _, network in host_routes()]
        candidates = list(ipaddress.IPv4Network("10.200.0.0/13").subnets(new_prefix=20))
        start = self.seed % len(candidates)
        recorded = self._recorded_network()
        for network in [*([recorded] if recorded else []), *candidates[start:], *candidates[:start]]:
            if any(network.overlaps(route) for route in routes):
                continue
            if network != recorded:
                # The store of user-defined networks holds addresses of the old range.
                shutil.rmtree(self.data / "network", ignore_errors=True)
                (self.folder / "network").write_text(str(network))
            return network
        raise EngineError("no free network in 10.200.0.0/13 for the engine's bridge")

    def _recorded_network(self) -> ipaddress.IPv4Network | None:
        record = self.folder / "network"
        return ipaddress.IPv4Network(record.read_text()) if record.exists() else None

    def _environment(self) -> dict[str, str]:
        path = [self.root / name for name in ("usr/bin", "usr/sbin", "usr/libexec/docker")]
        if self.gpu_hook:
            path.insert(0, self._write_gpu_hook())
        # DOCKER_* of the caller speak to clients, and TMPDIR may be long: neither is the daemon's.
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("DOCKER_") and name != "TMPDIR"
        }
        return kept | {"PATH": ":".join([*map(str, path), kept.get("PATH", os.defpath), "/usr/sbin:/sbin"])}

    def _write_gpu_hook(self) -> Path:
        """An NVIDIA hook that hands over no device: with it the engine takes GPU requests and sets the variables."""
        folder = self.folder / "gpu-hook"
        folder.mkdir(parents=True, exist_ok=True)
        hook = folder / "nvidia-container-runtime-hook"
        hook.write_text("#!/bin/sh\ncat >/dev/null\n")
        hook.chmod(0o755)
        return folder

    def _write_cdi_spec(self) -> Path:
        """A CDI specification of all GPUs, as nvidia-ctk writes it, whose only device is /dev/null."""
        folder = self.folder / "cdi"
        folder.mkdir(parents=True, exist_ok=True)
        edits = {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}]}
        spec = {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": "all", "containerEdits": edits}],
            "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
        }
        (folder / "nvidia.json").write_text(json.dumps(spec))
        return folder

    # -- what a killed engine leaves

    def _clear_leftovers(self) -> None:
        for pid in self._own_processes("dockerd", "containerd", "docker-proxy"):
            _signal(pid, signal.SIGKILL)
        for shim in self._own_processes("containerd-shim-runc-v2"):
            # A container's first process is its shim's child, and takes the whole container along.
            for pid in [*_children(shim), shim]:
                _signal(pid, signal.SIGKILL)
        for mount in self._own_mounts():
            subprocess.run(["umount", "-l", mount], stderr=subprocess.DEVNULL, check=False)
        delete_bridge(self.bridge)
        recorded = self._recorded_network()
        for interface, network in host_routes():
            if interface.startswith("br-") and recorded and network.subnet_of(recorded):
                delete_bridge(interface)
        shutil.rmtree(self.run, ignore_errors=True)

    def _own_processes(self, *programs: str) -> list[int]:
        """Processes started from our unpacked binaries whose arguments name our run folder."""
        mine = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                executable = os.readlink(entry / "exe")
            except OSError:
                continue
            ours = executable.startswith(str(self.root.resolve()))
            if ours and Path(executable).name in programs and any(str(self.run) in text for text in arguments):
                mine.append(int(entry.name))
        return mine

    def _own_mounts(self) -> list[str]:
        """Mount points in our folders, innermost first; the data folder itself is one while an engine runs."""
        folders = (self.data.resolve(), self.run)
        mounts = [Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        ours = {str(mount) for mount in mounts if any(mount.is_relative_to(folder) for folder in folders)}
        return sorted(ours, reverse=True)

    def _last_error(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return f"{lines[-1] if lines else 'no output'} (log: {self.log})"


def ping(host: str) -> bool:
    """Whether a Docker engine answers at a unix:// address."""
    path = host.removeprefix("unix://")
    if path == host:
        return False
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        try:
            client.connect(path)
            client.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in client.recv(64)
        except OSError:
            return False


def host_routes() -> list[tuple[str, ipaddress.IPv4Network]]:
    """The machine's IPv4 routes as (interface, network), the default route left out."""
    routes = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        fields = line.split()
        # The kernel prints addresses as native integers of network-order bytes.
        address, mask = (struct.pack("=I", int(fields[column], 16)) for column in (1, 7))
        network = ipaddress.IPv4Network((address, int.from_bytes(mask, "big").bit_count()))
        if network.prefixlen:
            routes.append((fields[0], network))
    return routes


def add_bridge(name: str, address: ipaddress.IPv4Interface) -> None:
    """Makes a network bridge with an address, and brings it up; by ioctl, for iproute2 may not be there."""

    def request(number: int, payload: bytes) -> None:
        fcntl.ioctl(control, number, struct.pack("16s", name.encode()) + payload.ljust(24, b"\0"))

    def inet(ip: ipaddress.IPv4Address) -> bytes:
        return struct.pack("HH4s", socket.AF_INET, 0, ip.packed)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCBRADDBR, name.encode() + b"\0")
        request(SIOCSIFADDR, inet(address.ip))
        request(SIOCSIFNETMASK, inet(address.netmask))
        request(SIOCSIFFLAGS, struct.pack("H", IFF_UP))


def delete_bridge(name: str) -> None:
    """Removes a bridge; does nothing when it is not there."""
    if not Path("/sys/class/net", name).exists():
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
        fcntl.ioctl(control, SIOCBRDELBR, name.encode() + b"\0")


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _children(pid: int) -> list[int]:
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in listed.split()]
