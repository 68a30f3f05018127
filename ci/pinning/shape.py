"""What pins.toml itself must look like. Each check is a generator of complaints, one line each."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any

from oci.names import DIGEST, TAG

from . import lockfile
from .lockfile import PinsError, normalize

COMMIT = re.compile(r"[0-9a-f]{40}")
UNKNOWN = "unknown"
PLATFORM = "linux/amd64"
_VERSION = re.compile(r"\d+(\.\d+)+([.-]?[a-z]+\d*)*")
_FLOATING_TAGS = {"latest", "nightly", "dev", "main", "stable", "edge"}
_NAME = re.compile(r"[a-z0-9]+(?:[._/-][a-z0-9]+)*")
_DEB = re.compile(r"[a-z0-9][a-z0-9+.-]+=[0-9A-Za-z.+:~-]+")

# Every table and its keys: what is not here is a slip of the pen, and pins nothing.
_TABLES: dict[str, set[str]] = {
    "sglang": {"commit", "tested", "contract"},
    "cuda": {"version", "nvcc", "minimum-driver", "architectures"},
    "python": {"test", "image"},
    "actionlint": {"version", "sha256"},
    "github-runner": {"version", "sha256"},
    "smoke-model": {"name", "revision", "gpu-memory-gib"},
}
_ENTRIES: dict[str, set[str]] = {
    "images": {"name", "tag", "digest", "platform", "manifest", "recorded"},
    "apt": {"release", "packages"},
    "actions": {"tag", "commit"},
}
_WHEEL_KEYS = {"pythons", "roots", "roots-without-dependencies", "adds-to", "lock"}


def complaints(pins: dict[str, Any]) -> Iterator[str]:
    """Everything that is wrong with the file itself."""
    unknown = [*_keys(pins)]
    yield from unknown
    if not unknown:  # the others take the keys for granted
        yield from _images(pins)
        yield from _versions(pins)
        yield from _apt(pins)
        yield from _actions(pins)
        yield from _wheel_sets(pins)
        yield from _agreement(pins)


def _keys(pins: dict[str, Any]) -> Iterator[str]:
    tables = {*_TABLES, *_ENTRIES, "wheels"}
    for name in sorted(tables ^ pins.keys()):
        yield f"[{name}] is {'not a table of this file' if name in pins else 'missing'}"
    for name in _TABLES.keys() & pins.keys():
        yield from _exactly(name, pins[name], _TABLES[name])
    for name in _ENTRIES.keys() & pins.keys():
        for key, entry in pins[name].items():
            yield from _exactly(f"{name}.{key}", entry, _ENTRIES[name])
    for key, entry in pins.get("wheels", {}).items():
        for extra in sorted(entry.keys() - _WHEEL_KEYS):
            yield f"[wheels.{key}] has a key that means nothing: {extra}"


def _exactly(name: str, table: Any, wanted: set[str]) -> Iterator[str]:
    found = set(table) if isinstance(table, dict) else set()
    if found != wanted:
        words = [f"lacks {key}" for key in sorted(wanted - found)]
        words += [f"has a key that means nothing: {key}" for key in sorted(found - wanted)]
        yield f"[{name}] {', '.join(words)}"


def _images(pins: dict[str, Any]) -> Iterator[str]:
    for key, image in pins["images"].items():
        where = f"[images.{key}]"
        if not _NAME.fullmatch(image["name"]):
            yield f"{where} name {image['name']} is not a repository's"
        if not TAG.fullmatch(image["tag"]) or image["tag"] in _FLOATING_TAGS:
            yield f"{where} tag '{image['tag']}' is not a fixed tag"
        if not DIGEST.fullmatch(image["digest"]):
            yield f"{where} digest {image['digest']} is not a sha256 digest"
        if image["manifest"] != UNKNOWN and not DIGEST.fullmatch(image["manifest"]):
            yield f"{where} manifest {image['manifest']} is neither a sha256 digest nor {UNKNOWN}"
        if image["platform"] != PLATFORM:
            yield f"{where} platform {image['platform']} is not {PLATFORM}, the only one that is built"
        yield from _recorded(where, image["recorded"])


def _recorded(where: str, recorded: Any) -> Iterator[str]:
    if type(recorded) is not datetime.date:
        yield f"{where} recorded {recorded} is not a date such as 2026-11-29"
    elif recorded < datetime.date(2026, 1, 1):
        yield f"{where} recorded {recorded} is before the project began"


def _versions(pins: dict[str, Any]) -> Iterator[str]:
    if not re.fullmatch(r"[0-9a-f]{7,40}", pins["sglang"]["commit"]):
        yield f"[sglang] commit {pins['sglang']['commit']} is not 7 to 40 hex digits"
    if not COMMIT.fullmatch(pins["smoke-model"]["revision"]):
        yield f"[smoke-model] revision {pins['smoke-model']['revision']} is not 40 hex digits"
    if not pins["smoke-model"]["gpu-memory-gib"].isdecimal():
        yield f"[smoke-model] gpu-memory-gib {pins['smoke-model']['gpu-memory-gib']} is no number"
    for table in ("actionlint", "github-runner"):
        if not re.fullmatch("[0-9a-f]{64}", pins[table]["sha256"]):
            yield f"[{table}] sha256 {pins[table]['sha256']} is not 64 hex digits"
    named = [(table, "version", pins[table]["version"]) for table in ("actionlint", "github-runner")]
    named += [("cuda", key, pins["cuda"][key]) for key in ("version", "nvcc", "minimum-driver")]
    named += [("python", key, value) for key, value in pins["python"].items()]
    named += [("sglang", key, value) for key in ("tested", "contract") for value in pins["sglang"][key]]
    for table, key, value in named:
        if not isinstance(value, str) or not _VERSION.fullmatch(value):
            yield f"[{table}] {key} {value} is not an exact version"


def _apt(pins: dict[str, Any]) -> Iterator[str]:
    for key, table in pins["apt"].items():
        for package in table["packages"]:
            if not _DEB.fullmatch(package):
                yield f"[apt.{key}] package {package} is not name=version"


def _actions(pins: dict[str, Any]) -> Iterator[str]:
    for key, action in pins["actions"].items():
        if not COMMIT.fullmatch(action["commit"]):
            yield f"[actions.{key}] commit {action['commit']} is not 40 hex digits"
        if not re.fullmatch(r"v\d+(\.\d+)*", action["tag"]):
            yield f"[actions.{key}] tag {action['tag']} is not a version"


def _wheel_sets(pins: dict[str, Any]) -> Iterator[str]:
    """Every root is an exact version, and the lock (or a set it adds to) has that version."""
    for name, table in pins["wheels"].items():
        try:
            others = [wheel for other in table.get("adds-to", []) for wheel in lockfile.wheels(pins, other)]
            locked = [*lockfile.wheels(pins, name), *others]
        except PinsError as error:
            yield str(error)
            continue
        have = {(wheel.normalized, wheel.version.partition("+")[0]) for wheel in locked}
        for root in (*table.get("roots", []), *table.get("roots-without-dependencies", [])):
            project, _, version = root.partition("==")
            if not version:
                yield f"[wheels.{name}] root {root} is not an exact version"
            elif (normalize(project), version) not in have:
                yield f"[wheels.{name}] lock lacks its root {root}. Fix: ci/pins lock {name}"


def _agreement(pins: dict[str, Any]) -> Iterator[str]:
    """What the file says twice, it says alike."""
    locked = {name: table.get("lock", {}) for name, table in pins["wheels"].items()}
    for version, name in zip(pins["sglang"]["tested"], ("sglang-pin", "server-cpu"), strict=True):
        if f"sglang=={version}" not in locked[name]:
            yield f"[sglang] tested names {version}, which [wheels.{name}] has not"
    if {f"sglang=={version}" for version in pins["sglang"]["contract"]} != locked["sglang-releases"].keys():
        yield "[sglang] contract is not the releases of [wheels.sglang-releases]"
    if f"nvidia-cuda-nvcc=={pins['cuda']['nvcc']}" not in locked["cuda-toolchain"]:
        yield "[cuda] nvcc is not the one in [wheels.cuda-toolchain]"
    if not pins["images"]["cuda-devel"]["tag"].startswith(pins["cuda"]["version"] + "-"):
        yield "[cuda] version is not that of [images.cuda-devel]"
    if not pins["images"]["sglang"]["tag"].endswith("-" + pins["sglang"]["commit"][:8]):
        yield "[sglang] commit is not that of [images.sglang]'s tag"
    if set(pins["wheels"]["runtime-added"]["pythons"]) != set(pins["python"].values()):
        yield "[wheels.runtime-added] pythons are not those of [python]"
