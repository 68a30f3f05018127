"""What each server said, a file each, so that a run goes on where it was stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kdtree_verify.errors import UsageError

from .dialogue import Answer, Request
from .starts import Start
from .verdict import Run

HERE = Path(__file__).resolve().parent
OF_SERVERS = [HERE / "launches.py", *(HERE.parent / "ci" / "demo" / name for name in ("model.py", "conversation.py"))]
"""How a server is started and who it serves, and how an answer is read. A configuration's flags are kept beside it."""


@dataclass(frozen=True)
class Identity:
    """What two servers must share to be compared.

    Attributes:
        kernel: The CUDA library's source hash.
        patch: A hash of the patch's sources.
        questions: A hash of what is asked and of whom (questions_of).
        sglang: Its version, and the bundle's where it is from one (sglang_of).
        card: The GPU's name.
    """

    kernel: str
    patch: str
    questions: str
    sglang: str
    card: str


def hash_of(*paths: Path) -> str:
    """Of the files' names and contents, folders' Python files among them."""
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def sglang_of(version: str) -> str:
    """SGLang's version, with that of the bundle whose torch operators it calls in place of its compiled ones."""
    bundle = os.environ.get("SGLANG_GPU_BUNDLE")
    return f"{version}+bundle.{bundle}" if bundle else version


def questions_of(asked: Sequence[Request], model: object) -> str:
    """A hash of the requests, of the model (its printed form) and of OF_SERVERS."""
    bodies = json.dumps([request.body() for request in asked])
    digest = hashlib.sha256(f"{bodies}\0{model}\0{hash_of(*OF_SERVERS)}".encode())
    return digest.hexdigest()[:16]


def identity_in(folder: Path) -> Identity:
    """That of the newest file of a folder of results.

    Raises:
        UsageError: There is none.
    """
    for path in sorted(folder.glob("*/*.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            return Identity(**json.loads(path.read_text())["identity"])
        except (KeyError, TypeError, ValueError):
            continue
    raise UsageError("no results to report on", f"{folder} holds none", "run ci/gpu-proof first, or name --results")


class Results:
    """The servers' files in one folder.

    Args:
        folder: Made when the first file is.
        identity: Files of another count as not there.
    """

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.folder = folder
        self.identity = identity

    def path(self, start: Start, mode: str) -> Path:
        return self.folder / start.name / f"{mode}.json"

    def has(self, start: Start, mode: str) -> bool:
        """Whether the server has answered; one that failed is asked again."""
        document = self.document(start, mode)
        return document is not None and "error" not in document

    def document(self, start: Start, mode: str) -> dict[str, Any] | None:
        """The server's file, or None."""
        try:
            document: dict[str, Any] = json.loads(self.path(start, mode).read_text())
        except (OSError, ValueError):
            return None
        same = document.get("identity") == asdict(self.identity) and document.get("start") == asdict(start)
        return document if same else None

    def run(self, start: Start, mode: str) -> Run | None:
        """What the server said; None where it has not, or failed."""
        document = self.document(start, mode)
        if document is None or "error" in document:
            return None
        return Run([Answer.from_json(answer) for answer in document["answers"]], document["ranks"])

    def save(self, start: Start, mode: str, document: dict[str, Any]) -> None:
        """Writes the server's file whole or not at all."""
        path = self.path(start, mode)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps({"identity": asdict(self.identity), "start": asdict(start), **document}, indent=1))
        os.replace(part, path)
