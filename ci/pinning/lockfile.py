"""ci/pins.toml, read. Standard library only: it also runs inside image builds."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PINS_FILE = Path(__file__).parents[1] / "pins.toml"
_LOCK_KEY = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class PinsError(Exception):
    """A request that pins.toml cannot answer, or an entry in it that is malformed."""

    code = 1


@dataclass(frozen=True)
class Wheel:
    """One locked wheel: exact version and the sha256 of each file that may be installed for it."""

    name: str
    version: str
    sha256: tuple[str, ...]

    @property
    def normalized(self) -> str:
        return normalize(self.name)

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def pip_line(self) -> str:
        return " ".join([self.requirement, *(f"--hash=sha256:{digest}" for digest in self.sha256)])


def normalize(name: str) -> str:
    """A project's name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def load(path: Path = PINS_FILE) -> dict[str, Any]:
    """The parsed file. Raises PinsError with the parser's words when it is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise PinsError(f"{path.name} cannot be read: {error}") from error


def get(pins: dict[str, Any], key: str) -> str:
    """The value at a dotted path; an image's table prints as its full reference, a list space-separated."""
    node: Any = pins
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            raise PinsError(f"pins.toml has no {key!r} (stopped at {part!r})")
        node = node[part]
    if isinstance(node, dict):
        if {"name", "tag", "digest"} <= node.keys():
            return f"{node['name']}:{node['tag']}@{node['digest']}"
        raise PinsError(f"{key!r} is a table; name one of: {', '.join(node)}")
    if isinstance(node, list):
        return " ".join(str(item) for item in node)
    return str(node)


def wheel_set(pins: dict[str, Any], name: str) -> dict[str, Any]:
    """The table [wheels.NAME]."""
    sets = pins.get("wheels", {})
    if name not in sets:
        raise PinsError(f"no wheel set {name!r}; there are: {', '.join(sets)}")
    table: dict[str, Any] = sets[name]
    return table


def wheels(pins: dict[str, Any], set_name: str) -> list[Wheel]:
    """The locked wheels of one set, checked for shape."""
    lock = wheel_set(pins, set_name).get("lock", {})
    if not lock:
        raise PinsError(f"wheel set {set_name!r} has an empty lock. Fix: ci/pins lock {set_name}")
    found = []
    for key, value in lock.items():
        match = _LOCK_KEY.fullmatch(key)
        hashes = (value,) if isinstance(value, str) else tuple(value)
        if not match or not hashes or not all(_SHA256.fullmatch(digest) for digest in hashes):
            raise PinsError(f'[wheels.{set_name}.lock] {key}: expected "name==version" = sha256 (or a list)')
        found.append(Wheel(match["name"], match["version"], hashes))
    return found


def merged(pins: dict[str, Any], set_names: Iterable[str]) -> list[Wheel]:
    """The union of several sets; two sets that disagree about one project are an error."""
    union: dict[str, Wheel] = {}
    for set_name in set_names:
        for wheel in wheels(pins, set_name):
            other = union.setdefault(wheel.normalized, wheel)
            if other != wheel:
                raise PinsError(f"sets disagree: {other.requirement} and {wheel.requirement} ({set_name})")
    return list(union.values())
