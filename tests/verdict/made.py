"""Evidence as a server on the product's card would leave it: no such card was at hand, so its figures are made up.

test_evidence_store.py holds its form to what a rank's process writes.
"""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

START = 1_796_000_000.0
LAYERS, STEPS = 6, 40_000
CELLS = ((0, 1024, 12_000), (1024, 2048, 16_000), (2048, 4096, 12_000))
"""(prefix from, below, steps) of batch 1."""

Document = dict[str, Any]


def layer(number: int, model: str = "target", calls: int = STEPS) -> Document:
    typical = 2.2e-3 + 1e-4 * (number % 5)
    return {
        "model": model,
        "layer": number,
        "kernel_calls": calls,
        "kernel_rows": calls * 12,
        "compare_calls": calls,
        "compare_rows": calls * 12,
        "out_of_range": 0,
        "nonfinite": 0,
        "exceeded_calls": 0,
        "max_abs": 0.0156,
        "rel_l2": typical,
        "worst_rel_l2": 2.2 * typical,
        "last_rel_l2": typical,
        "last_max_abs": 0.0078,
        "calls": calls,
        "rows": calls * 12,
    }


def cell(start: int, below: int | None, calls: int, batch: tuple[int, int | None] = (1, 2)) -> Document:
    # A layer's call on about 1 TB/s: stock's serial walk grows with the prefix, ours with a fifteenth of it.
    stock, ours = 60e3 + 200.0 * start, 14e3 + 2.0 * start
    return {
        "prefix_from": start,
        "prefix_below": below,
        "batch_from": batch[0],
        "batch_below": batch[1],
        "calls": calls,
        "exceeded_calls": 0,
        "nonfinite": 0,
        "worst_rel_l2": 5e-3,
        "mean_rel_l2": 2.4e-3 + start * 1e-8,
        "timed_calls": calls,
        "stock_ns": stock * calls,
        "kernel_ns": ours * calls,
    }


def rank_document(tp: int = 0, **changes: Any) -> Document:
    document = {
        "schema": 1,
        "mode": "validate",
        "state": "serving",
        "reason": None,
        "rank": {"name": f"dp0-pp0-tp{tp}", "tp": tp, "pp": 0, "dp": 0, "pid": 100 + tp, "known": True},
        "pid": 100 + tp,
        "device": {
            "kind": "cuda",
            "ordinal": tp,
            "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "uuid": f"GPU-{tp:032}",
            "compute_capability": "12.0",
            "memory": 102 << 30,
            "cuda_driver": "13.0",
            "cuda_runtime": "13.0",
        },
        "library": {
            "path": "/opt/kdtree/lib/libkdtree_verify_cuda.so",
            "sha256": "5a" * 32,
            "version": "0.1.0",
            "source_hash": "c3" * 32,
            "archs": ["120a"],
            "kind": "cuda",
            "compiler": "nvcc 13.0.88",
        },
        "versions": {"kdtree_verify": "0.1.0", "sglang": "0.5.21", "torch": "2.13.0+cu130", "cuda": "13.0"},
        "counters": {
            "verify_calls": STEPS * LAYERS,
            "kernel_calls": STEPS * LAYERS,
            "declined": {},
            "out_of_range": 0,
            "not_verify_calls": 12,
        },
        "layers": [layer(number) for number in range(LAYERS)],
        "exit_code": None,
        "started_at": START,
        "state_since": START + 60,
        "updated_at": START + 7200,
        "heads": 20,
        "draft_tokens": 12,
        "bound": {"bf16": 0.02, "f32": 0.02, "fp8_e4m3": 0.2, "fp8_e5m2": 0.4},
        "pool_dtype": "bf16",
        "shapes": [cell(start, below, steps * LAYERS) for start, below, steps in CELLS],
        "yardstick": {"stock_rel_l2": 2.42e-3, "kernel_rel_l2": 2.36e-3, "case": "p64"},
        "sampled": None,
    }
    return document | changes


def points(start: float, count: int = 24, seconds: float = 300.0) -> list[Document]:
    return [
        {
            "start": start + index * seconds,
            "end": start + (index + 1) * seconds,
            "calls": STEPS * LAYERS // count,
            "exceeded": 0,
            "worst": 4e-3 + 1e-4 * (index % 7),
            "mean": 2.4e-3 + 5e-5 * (index % 3),
            "layers": [2e-3 + 1e-4 * number for number in range(LAYERS)],
        }
        for index in range(count)
    ]


def evidence(tp: int = 0, *, run: str = "box-7-1796000000", start: float = START, **rank: Any) -> Document:
    """A file's content: two hours of validate on one rank of a server with one."""
    document = rank_document(tp, **rank)
    versions, library, device = document["versions"], document["library"], document["device"]
    return {
        "schema": 1,
        "kind": "kdtree evidence",
        "id": secrets.token_hex(6),
        "server": {"run": run, "host": "box", "expected_ranks": 1, "model": "zai-org/GLM-4.7-Flash"},
        "setup": {
            "model": "zai-org/GLM-4.7-Flash",
            **versions,
            "library": library["sha256"],
            "sources": library["source_hash"],
            "library_kind": library["kind"],
            "device": device.get("name") or device["kind"],
            "compute_capability": device.get("compute_capability"),
            "tp_size": 1,
            "pp_size": 1,
            "dp_size": 1,
            "heads": document["heads"],
            "draft_tokens": document["draft_tokens"],
            "pool_dtype": document["pool_dtype"],
        },
        "started_at": start,
        "updated_at": start + 7200,
        "ended": True,
        "active_seconds": 7000.0,
        "rank": document,
        "layers": [["target", number] for number in range(LAYERS)],
        "points": points(start),
    }


def changed(document: Document, **paths: Any) -> Document:
    """A copy with other values: `rank__layers__0__nonfinite=1`; None removes nothing, it is the value."""
    document = copy.deepcopy(document)
    for path, value in paths.items():
        place: Any = document
        *steps, last = path.split("__")
        for step in steps:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place[int(last) if isinstance(place, list) else last] = value
    return document


def write(folder: Path, *documents: Mapping[str, Any]) -> Path:
    """Each as a file of the folder, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    for document in documents:
        name = f"run-{document['started_at']:.0f}-{document['rank']['rank']['name']}-{document['id']}.json"
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    return folder
