"""Holds the repository to pins.toml: the file's own shape, and every place that names what it pins.

Each check is a generator of complaints, one line each; no complaint means that nothing floats.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import lockfile
from .lockfile import PinsError, normalize

ROOT = Path(__file__).resolve().parents[2]
BUILT_ON = ("sglang", "cuda-devel")
RUN_BESIDE = ("prometheus", "grafana")


def main(pins: dict[str, Any], root: Path = ROOT) -> int:
    """Prints every complaint; 0 only where there is none."""
    complaints = [*images(pins), *wheel_sets(pins), *agreement(pins)]
    complaints += [*dockerfile(pins, root), *compose(pins, root), *installs(root), *versions(root)]
    for complaint in complaints:
        print(f"pins: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def images(pins: dict[str, Any]) -> Iterator[str]:
    """Every image has a name, a tag and the digest of its manifest."""
    for key, image in pins.get("images", {}).items():
        if set(image) != {"name", "tag", "digest"}:
            yield f"[images.{key}] must have name, tag and digest, nothing else"
        elif not re.fullmatch(r"sha256:[0-9a-f]{64}", image["digest"]) or image["tag"] in ("", "latest"):
            yield f"[images.{key}] needs a fixed tag and a sha256 digest"


def wheel_sets(pins: dict[str, Any]) -> Iterator[str]:
    """Every root is an exact version, and the lock (or a set it adds to) has that version."""
    for name, table in pins.get("wheels", {}).items():
        try:
            locked = lockfile.merged(pins, [name, *table.get("adds-to", [])])
        except PinsError as error:
            yield str(error)
            continue
        have = {wheel.normalized: wheel.version.partition("+")[0] for wheel in locked}
        for root in (*table.get("roots", []), *table.get("roots-without-dependencies", [])):
            project, _, version = root.partition("==")
            if not version:
                yield f"[wheels.{name}] root {root} is not an exact version"
            elif have.get(normalize(project)) != version:
                yield f"[wheels.{name}] lock lacks its root {root}. Fix: ci/pins lock {name}"


def agreement(pins: dict[str, Any]) -> Iterator[str]:
    """What the file says twice, it says alike."""
    locked = {name: table.get("lock", {}) for name, table in pins["wheels"].items()}
    for version, name in zip(pins["sglang"]["tested"], ("sglang-pin", "server-cpu"), strict=True):
        if f"sglang=={version}" not in locked[name]:
            yield f"[sglang] tested names {version}, which [wheels.{name}] has not"
    if f"nvidia-cuda-nvcc=={pins['cuda']['nvcc']}" not in locked["cuda-toolchain"]:
        yield "[cuda] nvcc is not the one in [wheels.cuda-toolchain]"
    if not pins["images"]["cuda-devel"]["tag"].startswith(pins["cuda"]["version"] + "-"):
        yield "[cuda] version is not that of [images.cuda-devel]"
    if set(pins["wheels"]["runtime-added"]["pythons"]) != set(pins["python"].values()):
        yield "[wheels.runtime-added] pythons are not those of [python]"


def dockerfile(pins: dict[str, Any], root: Path) -> Iterator[str]:
    """The product's Dockerfile stands on the pinned images and compiles for the pinned architectures."""
    text = _read(root, "docker/Dockerfile")
    stages = set(re.findall(r"^FROM .* AS (\S+)$", text, re.M))
    bases = {base for base in re.findall(r"^FROM (?:--\S+ )*(\S+)", text, re.M) if base not in stages | {"scratch"}}
    pinned = {lockfile.get(pins, f"images.{key}") for key in BUILT_ON}
    for base in sorted(bases - pinned):
        yield f"docker/Dockerfile: FROM {base} is not in pins.toml"
    for image in sorted(pinned - bases):
        yield f"docker/Dockerfile: nothing is built FROM {image}"
    for value in re.findall(r"^ARG KDTREE_ARCHS=\"?([^\"\n]*)", text, re.M):
        if value != lockfile.get(pins, "cuda.architectures"):
            yield f"docker/Dockerfile: KDTREE_ARCHS defaults to {value}, pins.toml has another"


def compose(pins: dict[str, Any], root: Path) -> Iterator[str]:
    """Images that compose.yaml takes from elsewhere are the pinned ones; its own has a variable for a name."""
    named = set(re.findall(r"^ +image: ([^$\s]\S*)$", _read(root, "compose.yaml"), re.M))
    pinned = {lockfile.get(pins, f"images.{key}") for key in RUN_BESIDE}
    for image in sorted(named - pinned):
        yield f"compose.yaml: image {image} is not in pins.toml"
    for image in sorted(pinned - named):
        yield f"compose.yaml: nothing runs {image}"


def installs(root: Path) -> Iterator[str]:
    """Every pip install or download in a recipe or script goes by hash or without an index."""
    command = re.compile(r"\bpip3?[\"']? (?:-\S+ )*(?:install|download)\b")
    files = [path for folder in ("ci", "docker", ".ci") for path in sorted((root / folder).rglob("*"))]
    for path in files:
        if not path.is_file() or path.suffix in (".pyc", ".toml") or path.parent.name == "pinning":
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        text = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
        for step in re.split(r"&&|;|\n", text):
            if command.search(step) and "--require-hashes" not in step and "--no-index" not in step:
                yield f"{path.relative_to(root)}: pip without --require-hashes or --no-index: {step.strip()[:80]}"


def versions(root: Path) -> Iterator[str]:
    """The header's version and the package's are one."""
    header = re.search(r'KDTREE_VERSION "([^"]+)"', _read(root, "kernel/include/kdtree_verify.h"))
    package = re.search(r'^__version__ = "([^"]+)"', _read(root, "patch/src/kdtree_verify/__init__.py"), re.M)
    found = [match[1] if match else "none" for match in (header, package)]
    if found[0] != found[1]:
        yield f"version {found[0]} in kernel/include/kdtree_verify.h, {found[1]} in patch/src/kdtree_verify"


def _read(root: Path, name: str) -> str:
    path = root / name
    return path.read_text(encoding="utf-8") if path.exists() else ""
