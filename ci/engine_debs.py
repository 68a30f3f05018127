"""Debian packages unpacked into a folder of ours, without installing anything.

apt resolves and verifies (signatures, hashes) with a state folder of its own, so the machine's package lists,
pins and installed packages stay as they are; `dpkg -x` unpacks. Needs no root.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path


class DebsError(RuntimeError):
    """Packages cannot be had here; the text says what to do instead."""


def codename() -> str:
    """Code name of this Debian release, e.g. "bookworm"; raises DebsError on any other system."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    missing = [tool for tool in ("apt-get", "dpkg") if shutil.which(tool) is None]
    if release.get("ID") != "debian" or missing:
        found = release.get("PRETTY_NAME", platform.system())
        raise DebsError(f"this system is {found}, not Debian with apt")
    return release["VERSION_CODENAME"]


def archive() -> tuple[str, str]:
    """URI of the machine's own Debian mirror and the keyring its source names ("" for apt's default)."""
    release = codename()
    what = "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)\t$(SIGNED_BY)"
    for line in _run("apt-get", "indextargets", "--format", what, "Created-By: Packages").splitlines():
        uri, suite, component, keyring = line.split("\t")
        if (suite, component) == (release, "main"):
            return uri, "" if keyring.startswith("$(") else keyring
    raise DebsError(f"apt's sources name no {release} main archive")


class Debs:
    """Packages from the machine's mirror, of several suites, under one folder.

    `root` holds what was unpacked. A package stays as first downloaded until the folder is removed or another
    set is asked for: a second run needs no network.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.archives = folder / "archives"

    def unpack(self, wanted: dict[str, str]) -> Path:
        """Makes sure that every package of {name: suite} is unpacked; returns the folder to find them in."""
        key = hashlib.sha256(repr(sorted(wanted.items())).encode()).hexdigest()
        if not self._holds(key):
            codename()
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # two commands of a checkout may want them at once
                if not self._holds(key):
                    self._fetch(wanted)
                    self._stamp.write_text(key)
        return self.root

    @property
    def _stamp(self) -> Path:
        return self.folder / "unpacked"

    def _holds(self, key: str) -> bool:
        return self._stamp.exists() and self._stamp.read_text() == key

    def _fetch(self, wanted: dict[str, str]) -> None:
        config = self._configure(sorted(set(wanted.values())))
        shutil.rmtree(self.archives, ignore_errors=True)
        self.archives.mkdir(parents=True)
        names = [f"{name}/{suite}" for name, suite in wanted.items()]
        for command in (["update"], ["download", *names]):
            _run("apt-get", "-qq", *command, folder=self.archives, APT_CONFIG=str(config))
        self._stamp.unlink(missing_ok=True)  # from here on not even what was there before is whole
        shutil.rmtree(self.root, ignore_errors=True)
        for name in wanted:
            (package,) = self.archives.glob(f"{name}_*.deb")
            _run("dpkg", "-x", str(package), str(self.root))

    def _configure(self, suites: list[str]) -> Path:
        """Writes an apt configuration that sees the given suites of the machine's mirror and nothing else."""
        uri, keyring = archive()
        for part in ("state/lists/partial", "cache/archives/partial", "sources"):
            (self.folder / "apt" / part).mkdir(parents=True, exist_ok=True)
        apt = self.folder / "apt"
        source = f"Types: deb\nURIs: {uri}\nSuites: {' '.join(suites)}\nComponents: main\n"
        source += f"Signed-By: {keyring}\n" if keyring else ""
        (apt / "sources" / "debian.sources").write_text(source)
        config = apt / "apt.conf"
        config.write_text(
            f'Dir::State "{apt}/state";\nDir::Cache "{apt}/cache";\n'
            f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{apt}/sources";\n'
            'Dir::Etc::preferences "/dev/null";\nDir::Etc::preferencesparts "/dev/null";\n'
            'Acquire::Languages "none";\nAPT::Sandbox::User "root";\n'
        )
        return config


def _run(*command: str, folder: Path | None = None, **environment: str) -> str:
    """What a command prints. Raises DebsError with its last words when it fails."""
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DebsError(f"{' '.join(command[:3])} failed: {said}")
    return done.stdout
