"""Every place that names what pins.toml pins: recipes, scripts, compose files, workflows, hooks.

Each check is a generator of complaints, one line each; no complaint means that nothing floats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import lockfile
from .shape import COMMIT

PRODUCT = "docker/Dockerfile"
BUILT_ON = ("sglang", "cuda-devel")
RUN_BESIDE = ("prometheus", "grafana")
# A script that installs what a machine lacks to run the scripts: nothing of it goes into the image.
FOR_THE_MACHINE = "ci/system-packages"
# Folders that hold scripts beside those that are about the image.
MORE = ("bench", "kernel", "proof", "patch")
# The stand-ins are built on a context that is always given under this name (ci/standin.py).
STAND_IN, STAND_IN_BASE = "docker/standin/Dockerfile", "base"

OURS = "kdtree"
"""How the names of images begin that are built here."""

_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.I)
_REMOTE_ADD = re.compile(r"^ADD (?!.*--checksum=sha256:)(?:--\S+ )*((?:https?://|git@|git://)\S+)", re.M | re.I)
_FETCH = re.compile(r"\b(?:curl|wget|git clone)\b")
# As a shell has it, or a list of Python's: "-m", "pip", "install".
_PIP = re.compile(
    r"\b(?:pip[\d.]*|uv pip)[\"']?,?\s+(?:[\"']?-\S+\s+(?:[^-\s]\S*\s+)??)*[\"']?(?:install|download)\b(?=[\"'\s]|$)"
)
_APT = re.compile(r"\bapt(?:-get)?\s(?:-\S+\s+|\S+=\S+\s+)*install\s+(.*)")
_OTHERS = re.compile(
    r"\bnpm (?:-\S+ )*(?:install|i|add|exec)\b|\bnpx |\bpipx |\bcargo install\b|\bgo install\b|\bgem install\b"
    r"|\bapk add\b|\buvx |\buv (?:-\S+ )*(?:tool|add|sync|run)\b|<\((?:curl|wget)\b"
    r"|\b(?:curl|wget)\b[^|]*\|\s*(?:sudo\s+(?:-\S+\s+)*)?(?:ba|da|z)?sh\b"
)
_LATEST = re.compile(r"[\w./-]+:(?:latest|edge|nightly)(?![\w.-])")
_RUNS = re.compile(
    r"\bdocker (?:image )?(?:run|pull|create) (?:-\S+ )*([a-z0-9][\w./-]*(?::[\w.-]+)?(?:@[\w:]+)?)(?=[\s\"']|$)"
)
# A key of YAML's on a line of its own, or between braces.
_KEY = r"(?:^[ -]+|[{,] *)[\"']?%s[\"']? *: *[\"']?"
_USES = _KEY % "uses" + r"([^\s\"'#}]+)[\"']?(?: +# *(\S+))?"


def complaints(pins: dict[str, Any], root: Path) -> Iterator[str]:
    """Every place under `root` that does not keep to the pins."""
    for recipe in _files(root, "docker", "deploy", "ci"):
        if _is_recipe(recipe):
            yield from _recipe(pins, root, recipe)
    yield from _arguments(pins, root)
    yield from _compose(pins, root)
    yield from _workflows(pins, root)
    yield from _hooks(root)
    yield from _installs(pins, root)
    yield from _versions(root)


def _files(root: Path, *folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((root / folder).rglob("*")) if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts]


def _is_recipe(path: Path) -> bool:
    return "Dockerfile" in (path.name, path.suffix.removeprefix("."))


def _steps(text: str) -> list[str]:
    """The commands in a recipe or script: without comments, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    return [step.strip() for step in re.split(r"&&|\|\||;|\n", text) if step.strip()]


def _recipe(pins: dict[str, Any], root: Path, path: Path) -> Iterator[str]:
    """A Dockerfile stands on the pinned images, and installs pinned packages."""
    name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
    if syntax := re.search(r"^#\s*syntax\s*=\s*(\S+)", text, re.M | re.I):
        yield f"{name}: syntax {syntax[1]} would be fetched from a registry on each build"
    bases = _bases(text, {STAND_IN_BASE, "parts", "shim"} if name == STAND_IN else set())
    pinned = {lockfile.get(pins, f"images.{key}") for key in BUILT_ON}
    others = sorted(bases - pinned)
    for base in others:
        yield f"{name}: FROM {base} is not in pins.toml"
    for source in _REMOTE_ADD.findall(text):
        yield f"{name}: ADD {source} without --checksum"
    packages = {package for table in pins["apt"].values() for package in table["packages"]}
    found = [step[1] for step in map(_APT.search, _steps(text)) if step]
    installed = {word for words in found for word in words.split() if not word.startswith(("-", "}"))}
    if any(not re.search(r"(?:^|\s)[^\s-]", words) for words in found):
        yield f"{name}: apt-get installs what it does not name"
    for word in sorted(installed - packages):
        yield f"{name}: apt-get installs {word}, which is not name=version of pins.toml"
    if name == PRODUCT:  # a pin that something else has taken the place of is told of once
        yield from (f"{name}: nothing is built FROM {image}" for image in sorted(pinned - bases) if not others)
        yield from (f"{name}: nothing installs {package}" for package in sorted(packages) if not installed)


def _bases(text: str, contexts: set[str]) -> set[str]:
    """What a Dockerfile takes from outside, by FROM or a `from` option: all that is no earlier stage and no context."""
    known, found = {"scratch", *contexts}, set()
    for line in _steps(text):
        if match := _FROM.match(line):
            found |= {match[1]} - known
            known.add(match[2])
        else:
            found |= set(re.findall(r"(?:--from=|[=,]from=)([^\s,]+)", line)) - known
    return found


def _arguments(pins: dict[str, Any], root: Path) -> Iterator[str]:
    """The defaults of the Dockerfile's arguments that repeat a pin."""
    text = _read(root, PRODUCT)
    for argument, key in (("KDTREE_ARCHS", "cuda.architectures"), ("SGLANG_COMMIT", "sglang.commit")):
        found = re.findall(rf"^ARG {argument}=\"?([^\"\n]*)", text, re.M)
        for value in found:
            if value != lockfile.get(pins, key):
                yield f"{PRODUCT}: {argument} defaults to {value}, pins.toml has {lockfile.get(pins, key)}"
        if not found:
            yield f"{PRODUCT}: {argument} has no default"


def _compose(pins: dict[str, Any], root: Path) -> Iterator[str]:
    """Images that the compose files take from elsewhere are the pinned ones; our own has a variable for a name."""
    pinned = {lockfile.get(pins, f"images.{key}") for key in RUN_BESIDE}
    named = set()
    elsewhere = [path for path in _files(root, "deploy", "docker") if path.suffix in (".yml", ".yaml")]
    for path in [*sorted(root.glob("*compose*.y*ml")), *elsewhere]:
        for found in re.findall(_KEY % "image" + r"([^\s\"'#]+)", path.read_text(encoding="utf-8"), re.M):
            image = re.sub(r"^\$\{\w+:?-(.*)\}$", r"\1", found.rstrip(",}") + "}" * found.startswith("${"))
            if image.startswith(("$", f"{OURS}:")):
                continue
            named.add(image)
            if image not in pinned:
                yield f"{path.relative_to(root).as_posix()}: image {image} is not in pins.toml"
    for image in sorted(pinned - named) if named <= pinned else ():
        yield f"compose.yaml: nothing runs {image}"


def _workflows(pins: dict[str, Any], root: Path) -> Iterator[str]:
    """A workflow's actions are the pinned commits, each with its version beside it; its machines have a version."""
    used = set()
    for path in _files(root, ".github"):
        if path.suffix not in (".yml", ".yaml"):
            continue
        name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        for reference, comment in re.findall(_USES, text, re.M):
            if reference.startswith("./"):
                continue
            action, _, commit = reference.partition("@")
            used.add(action)
            pin = pins["actions"].get(action)
            if not COMMIT.fullmatch(commit):
                yield f"{name}: uses {reference}, which is not a commit"
            elif pin is None:
                yield f"{name}: uses {action}, which is not in pins.toml"
            elif (commit, comment) != (pin["commit"], pin["tag"]):
                yield f"{name}: uses {reference} # {comment}, pins.toml has {pin['commit']} # {pin['tag']}"
        for machine in re.findall(r"\b[a-z]+-latest\b", re.sub(r"#.*", "", text)):
            yield f"{name}: runs on {machine}, which is another machine some day"
        for image in re.findall(_KEY % "(?:image|container)" + r"([^\s$\"'#{},]+)", text, re.M):
            if image not in {lockfile.get(pins, f"images.{key}") for key in pins["images"]}:
                yield f"{name}: image {image} is not in pins.toml"
    for action in sorted(pins["actions"].keys() - used):
        yield f".github: nothing uses {action}"


def _hooks(root: Path) -> Iterator[str]:
    """A pre-commit hook of another repository is a commit."""
    text = _read(root, ".pre-commit-config.yaml")
    for repository, rest in re.findall(r"^ *- repo: *(\S+)((?:\n(?! *- repo:).*)*)", text, re.M):
        revision = re.search(r"^ *rev: *[\"']?([^\s\"']+)", rest, re.M)
        if repository != "local" and not (revision and COMMIT.fullmatch(revision[1])):
            yield f".pre-commit-config.yaml: {repository} at {revision[1] if revision else 'no rev'} is not a commit"
    if "additional_dependencies" in re.sub(r"#.*", "", text):
        yield ".pre-commit-config.yaml: additional_dependencies are fetched without a hash"


def _installs(pins: dict[str, Any], root: Path) -> Iterator[str]:
    """Every install in a recipe, script or workflow goes by hash, by version of pins.toml, or without an index."""
    here = Path(__file__).parent.name
    images = {lockfile.get(pins, f"images.{key}") for key in pins["images"]}
    for path in [*_files(root, "ci", "docker", "deploy", ".ci", ".github", *MORE), *root.glob("Makefile")]:
        name = path.relative_to(root).as_posix()
        if path.suffix in (".toml", ".md", ".json") or path.parent.name == here:
            continue
        recipe, text = _is_recipe(path), path.read_text(encoding="utf-8", errors="replace")
        # A program has its options where it likes, not in the line that names pip.
        program = path.suffix == ".py" or re.match(r"#!.*\bpython", text)
        for step in _steps(text):
            if _PIP.search(step) and not re.search("--require-hashes|--no-index", text if program else step):
                yield f"{name}: pip without --require-hashes or --no-index: {step[:80]}"
            if _APT.search(step) and not recipe and name != FOR_THE_MACHINE:
                yield f"{name}: apt-get install outside {FOR_THE_MACHINE}: {step[:80]}"
            if latest := _LATEST.search(step):
                yield f"{name}: {latest[0]} is another image some day"
            elif (runs := _RUNS.search(step)) and runs[1] not in images and not runs[1].startswith(OURS):
                yield f"{name}: runs {runs[1]}, which is not in pins.toml"
            if _OTHERS.search(step) or (recipe and _FETCH.search(step) and not _APT.search(step)):
                yield f"{name}: an install that no pin holds: {step[:80]}"


def _versions(root: Path) -> Iterator[str]:
    """The header's version and the package's are one."""
    header = re.search(r'KDTREE_VERSION "([^"]+)"', _read(root, "kernel/include/kdtree_verify.h"))
    package = re.search(r'^__version__ = "([^"]+)"', _read(root, "patch/src/kdtree_verify/__init__.py"), re.M)
    found = [match[1] if match else "none" for match in (header, package)]
    if found[0] != found[1]:
        yield f"version {found[0]} in kernel/include/kdtree_verify.h, {found[1]} in patch/src/kdtree_verify"


def _read(root: Path, name: str) -> str:
    path = root / name
    return path.read_text(encoding="utf-8") if path.exists() else ""
