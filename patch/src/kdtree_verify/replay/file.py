"""The file that a capture is kept in: safetensors, with one JSON document in its metadata. Nothing in it is executed.

    tensors   those of Capture, by their names; `visible` is left out where the call had no mask
    metadata  {"kdtree": JSON}: "schema": 1; "call": Capture's other attributes, rel_l2 null where it was not finite;
              "made": where it comes from (Origin)

Whoever reads one trusts none of it: size, layout, names, shapes, dtypes and numbers are checked before any is used.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import UsageError
from ..rank.records import Model
from .capture import Capture
from .folder import UNFINISHED
from .origin import Origin

SCHEMA = 1
LARGEST_FILE = 256 << 20
"""Bytes. Neither written nor read above it: what is read takes up to 16 times as much memory in float64."""

_METADATA = "kdtree"
_HEADER_ROOM = 1 << 16  # bytes for names, offsets and metadata
_ROWS_AT_ONCE = 4096
_DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.uint8: "U8",
}
_FIX = "give a whole file of this or the same version, as it was kept in captures/ (sha256sum on both ends)"


def size(capture: Capture) -> int:
    """Bytes that the capture's file may take at most."""
    return _HEADER_ROOM + sum(tensor.nbytes for tensor in capture.tensors.values())


def write(path: Path, capture: Capture, origin: Origin) -> None:
    """Writes the file, readable by its owner alone, in one step: `path` is whole or not there.

    Not by safetensors' own writer, whose versions differ in whom they let read, what they leave when they are killed,
    and whether other threads go on meanwhile. Here they do: a write of a tensor's memory needs no lock of Python's.

    Raises:
        OSError: The folder is gone, full, or cannot be written.
    """
    temporary = path.with_name(f".{path.name}{UNFINISHED}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            for part in _parts(capture, origin):
                while part:
                    part = part[file.write(part) :]
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _parts(capture: Capture, origin: Origin) -> Iterator[memoryview]:
    # Wide elements first: then each lies aligned.
    tensors = dict(sorted(capture.tensors.items(), key=lambda item: -item[1].element_size()))
    header: dict[str, Any] = {"__metadata__": {_METADATA: json.dumps(_document(capture, origin))}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(struct.pack("<Q", len(text)) + text)
    for tensor in tensors.values():
        if tensor.numel():
            yield tensor.view(torch.uint8).flatten().numpy().data


def read(path: Path) -> tuple[Capture, Origin]:
    """The capture and where it was made; tensors are copies.

    Raises:
        UsageError: No such file, no capture, not whole, of another schema, or with inputs that are not finite.
    """
    _check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            document = _parse(file.metadata())
            names = set(file.keys())
            # Copies: a mapped file may change or shrink below whoever reads it.
            tensors = {name: file.get_tensor(name).clone() for name in names & _TENSORS}
        if unknown := names - _TENSORS:
            raise ValueError(f"it holds a tensor {sorted(unknown)[0]!r:.80}")
        capture = _capture(tensors, document)
        origin = _origin(document)
    except (SafetensorError, ValueError, OSError, OverflowError) as error:
        raise UsageError("the file is no capture", f"{path}: {_one_line(error)}", _FIX) from error
    _check_inputs(path, capture)
    return capture, origin


_TENSORS = {field.name for field in fields(Capture) if "Tensor" in str(field.type)}
_NUMBERS = [field.name for field in fields(Capture) if field.name not in _TENSORS]


def _document(capture: Capture, origin: Origin) -> dict[str, Any]:
    call = {name: getattr(capture, name) for name in _NUMBERS}
    # JSON has no inf and no NaN.
    call |= {"model": str(capture.model), "rel_l2": capture.rel_l2 if math.isfinite(capture.rel_l2) else None}
    return {"schema": SCHEMA, "call": call, "made": asdict(origin)}


def _check_file(path: Path) -> None:
    try:
        status = path.stat()
        regular = stat.S_ISREG(status.st_mode)  # opening a pipe would wait
        if regular:
            path.open("rb").close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("the capture cannot be read", f"{path}: {reason}", "give the path of a file") from error
    if not regular:
        raise UsageError("the capture cannot be read", f"{path}: not a file", "give the path of a file")
    if status.st_size > LARGEST_FILE:
        found = f"{path}: {status.st_size >> 20} MiB, none is larger than {LARGEST_FILE >> 20} MiB"
        raise UsageError("the file is no capture", found, _FIX)


def _parse(metadata: dict[str, str] | None) -> dict[str, Any]:
    text = (metadata or {}).get(_METADATA)
    if text is None or len(text) > _HEADER_ROOM:
        raise ValueError(f"its metadata has no {_METADATA!r}" if text is None else "its metadata is too long")
    try:
        document = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("its metadata is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("its metadata is no object")
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema {document.get('schema')!r:.40}, this version reads {SCHEMA}")
    return document


def _refuse(constant: str) -> Any:
    raise ValueError(f"its metadata holds {constant}")


def _capture(tensors: dict[str, torch.Tensor], document: dict[str, Any]) -> Capture:
    call = _object(document, "call", set(_NUMBERS))
    if missing := _TENSORS - {"visible"} - tensors.keys():
        raise ValueError(f"it holds no tensor {sorted(missing)[0]!r}")
    numbers = dict(call)
    numbers["rel_l2"] = math.inf if numbers["rel_l2"] is None else numbers["rel_l2"]
    if type(numbers["rel_l2"]) is int:
        numbers["rel_l2"] = float(numbers["rel_l2"])  # one that is none is an OverflowError
    if not isinstance(numbers["model"], str) or numbers["model"] not in tuple(Model):
        raise ValueError(f"model is {numbers['model']!r:.40}")
    numbers["model"] = Model(numbers["model"])
    return Capture(**{"visible": None, **tensors, **numbers})


def _origin(document: dict[str, Any]) -> Origin:
    made = _object(document, "made", {field.name for field in fields(Origin)})
    parts = [made["library"], made["versions"]]
    if not isinstance(made["at"], (int, float)) or not 0 <= made["at"] < 1e11:
        raise ValueError("its time is none")
    if not all(isinstance(part, dict) for part in parts):
        raise ValueError("what it says of its origin is of the wrong type")
    values = [made[name] for name in ("mode", "rank", "device", "model_path")]
    for part in parts:
        values += [*part, *part.values()]
    # They are shown: what could steer a terminal is not.
    if not all(value is None or (isinstance(value, str) and value.isprintable()) for value in values):
        raise ValueError("what it says of its origin is no plain text")
    return Origin(**made)


def _object(document: dict[str, Any], name: str, wanted: set[str]) -> dict[str, Any]:
    found = document.get(name)
    if not isinstance(found, dict) or found.keys() != wanted:
        raise ValueError(f"{name!r} of its metadata does not hold {', '.join(sorted(wanted))}")
    return found


def _check_inputs(path: Path, capture: Capture) -> None:
    for name in ("q", "k", "v", "prefix"):
        # torch's isfinite takes no fp8, and a copy in float32 need not be of all rows at once.
        for number, rows in enumerate(getattr(capture, name).split(_ROWS_AT_ONCE)):
            finite = rows.float().isfinite().flatten(1).all(1)
            if not finite.all():
                row = number * _ROWS_AT_ONCE + int(finite.int().argmin())
                raise UsageError(
                    "the captured call's inputs are not finite",
                    f"{path}: {name} holds NaN or Inf, first in row {row}",
                    "look before the attention (weights, quantization, KV cache): no kernel is right here",
                )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return "".join(c if c.isprintable() else "?" for c in text) or type(error).__name__
