"""Two archives, and two folders of artifacts, held against each other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from . import content, layers
from .archive import Archive, ArchiveError, Layer

NOTHING = "nothing"
_SHOWN_STEP = 60  # characters


@dataclass(frozen=True)
class Row:
    """One thing that is compared: its digest in A and in B."""

    what: str
    a: str
    b: str

    @property
    def same(self) -> bool:
        return self.a == self.b


@dataclass(frozen=True)
class Difference:
    """Where something differs, and in what."""

    where: str
    path: str
    lines: list[str]


@dataclass
class Comparison:
    """All that was compared, and why what differs does."""

    rows: list[Row] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return all(row.same for row in self.rows) and not self.differences

    def add(self, other: Comparison) -> None:
        self.rows += other.rows
        self.differences += other.differences


def archives(a: Archive, b: Archive) -> Comparison:
    """Compares manifests, configurations and every layer, and explains each that differs."""
    found = Comparison()
    for name, archive in (("A", a), ("B", b)):
        for digest in archive.damaged():
            found.differences.append(Difference(f"archive {name}", digest, ["its bytes are not those of its digest"]))
    found.rows.append(Row("platform manifest", a.manifest_digest, b.manifest_digest))
    found.rows.append(Row("configuration", a.config_digest, b.config_digest))
    for where, one, other in (("manifest", a.manifest, b.manifest), ("configuration", a.config, b.config)):
        if lines := list(content.values(one, other)):
            found.differences.append(Difference(where, "", lines))
    for left, right in zip_longest(a.layers, b.layers):
        _layer(found, a, b, left, right)
    return found


def _layer(found: Comparison, a: Archive, b: Archive, one: Layer | None, other: Layer | None) -> None:
    there = one or other
    assert there is not None
    where = f"layer {there.number}: {step(there)}"
    row = Row(where, one.digest if one else NOTHING, other.digest if other else NOTHING)
    found.rows.append(row)
    if row.same:
        return
    if one is None or other is None:
        found.differences.append(Difference(where, "", [f"only in {'A' if one else 'B'}"]))
        return
    try:
        for path, lines in layers.differences((a, one), (b, other)):
            found.differences.append(Difference(where, path, lines))
    except (ArchiveError, KeyError) as error:
        found.differences.append(Difference(where, "", [f"cannot be told: {error}"]))


def step(layer: Layer) -> str:
    """The step that made a layer, without what all of them begin and end with."""
    words = [word for word in layer.step.split() if not word.startswith("--mount=")]
    text = " ".join(words).removeprefix("RUN ").removesuffix(" # buildkit")
    text = text[text.index("/bin/sh -c ") + len("/bin/sh -c ") :] if "/bin/sh -c " in text else text
    text = text or "imported"
    return text if len(text) <= _SHOWN_STEP else text[:_SHOWN_STEP] + "…"


def folders(a: Path, b: Path) -> Comparison:
    """Compares two folders' files: what was compiled, alone."""
    found = Comparison()
    for name in sorted({file.name for folder in (a, b) for file in folder.iterdir()}):
        one, other = a / name, b / name
        found.rows.append(Row(name, _sha256(one), _sha256(other)))
        if not found.rows[-1].same:
            both = one.exists() and other.exists()
            lines = content.explain(name, one.read_bytes(), other.read_bytes()) if both else ["only in one of them"]
            found.differences.append(Difference("artifacts", name, lines))
    return found


def _sha256(file: Path) -> str:
    return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}" if file.exists() else NOTHING
