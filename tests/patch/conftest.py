"""SGLang's Triton backend runs under Triton's interpreter here; each test patches it anew and leaves it as it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton


@pytest.fixture
def patched(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """`patched(mode, **config)` arms this process as the plugin would and returns its Process."""
    from kdtree_verify import config
    from kdtree_verify.process import Process
    from sglang.srt.layers.attention import triton_backend

    cls = triton_backend.TritonAttnBackend
    stock = {name: cls.__dict__[name] for name in ("__init__", "forward_extend")}

    def arm(mode: str, **changes: Any) -> Process:
        found = config.from_environment({**os.environ, "KDTREE_VERIFY": mode, "KDTREE_DEVICE": "cpu"})
        process = Process(replace(found, state_dir=tmp_path, **changes))
        process.patch_backend(triton_backend)
        return process

    yield arm
    for name, function in stock.items():
        setattr(cls, name, function)


@pytest.fixture
def scheduler_of() -> Callable[[Any], Any]:
    """What on_scheduler reads of a Scheduler: the target's backend."""
    return lambda backend: SimpleNamespace(
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=backend))
    )
