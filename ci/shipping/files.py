"""Documents that are read and written: whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pinning.files import replace

from .errors import ShippingError

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
REPORT, SBOM, PROVENANCE = BUILD / "image.json", BUILD / "sbom.spdx.json", BUILD / "provenance.json"


def policy(table: str) -> dict[str, Any]:
    """A table of ci/shipping.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "ci" / "shipping.toml").read_text(encoding="utf-8"))[table]
    return found


def read(path: Path, made_by: str) -> dict[str, Any]:
    """A JSON document. Raises ShippingError, which says what makes it."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ShippingError(f"no {path.name}: {path}: {error.strerror}. Fix: {made_by}") from error
    except ValueError as error:
        raise ShippingError(f"{path} is no JSON: {error}. Fix: {made_by}") from error
    return found


def write(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Makes a document and puts it in place when all of it is on disk.

    Raises ShippingError where it cannot be written; before it is made, if that can be told.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        document = make()
        replace(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        fix = "a folder that can be written, with room"
        raise ShippingError(f"{path} cannot be written: {error.strerror}. Fix: {fix}", os.EX_CANTCREAT) from error
    return document
