"""Peers: those that cannot be loaded are named, and stock is called as SGLang calls it."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import peers
from bench.inputs import Inputs
from bench_samples import CPU, TINY


def test_a_peer_that_cannot_be_loaded_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "STOCK_MODULE", "sglang.no_such_module")
    found, missing = peers.load(["stock_sm90", "flashinfer_fa9"], CPU)
    assert found == []
    assert "no_such_module" in missing["stock_sm90"]
    assert all("\n" not in reason for reason in missing.values())


def test_versions_are_of_the_folder_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Though no peer has been loaded: a run is described first, and the grid goes on only beside the same SGLang."""
    metadata = tmp_path / "flashinfer_python-9.8.7.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Name: flashinfer-python\nVersion: 9.8.7\n")
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "path", [])  # nothing is installed
    assert peers.versions() == {"flashinfer-python": "9.8.7"}


@pytest.mark.parametrize("name", ["stock_sm90", "stock_sm120"])
def test_stock_is_told_whose_tile_to_pick(name: str) -> None:
    seen: list[Any] = []

    def extend_attention_fwd(*arguments: Any) -> None:
        seen.append((module.CUDA_CAPABILITY, arguments))
        arguments[3].fill_(1.0)

    module: Any = SimpleNamespace(extend_attention_fwd=extend_attention_fwd, CUDA_CAPABILITY=None)
    stock = peers.Stock(module, peers.STOCK_TILES[name])
    calls = Inputs(CPU, 4096).calls(TINY, 2)
    prepared = stock.prepare(TINY, calls)
    prepared.launches[1]()
    ((capability, arguments),) = seen
    assert (stock.name, capability) == (name, peers.STOCK_TILES[name])
    assert arguments[0] is calls[1].q_extend
    assert arguments[-1] == calls[1].sm_scale
    assert (prepared.outputs[1] == 1.0).all()
    assert not (calls[1].o_extend == 1.0).any()


def test_what_stock_is_called_with_is_what_it_takes() -> None:
    module = pytest.importorskip(peers.STOCK_MODULE)
    (call,) = Inputs(CPU, 4096).calls(TINY, 1)
    arguments = call[: call._fields.index("sm_scale") + 1]
    bound = inspect.signature(module.extend_attention_fwd).bind(*arguments)
    assert list(bound.arguments) == list(call._fields[: len(arguments)])
    # Its choice of a tile looks at this name when it is called.
    assert "CUDA_CAPABILITY" in inspect.getsource(module._get_block_sizes_for_extend_attention)


def test_flashinfers_pool_is_prefix_then_drafts() -> None:
    (call,) = Inputs(CPU, 4096).calls(TINY, 1)
    rows = peers._rows_in_order(TINY, call)
    assert rows.shape == (2 * (33 + 4), 576)
    assert torch.equal(rows[:33], call.k_buffer[call.kv_indices[:33], 0])
    assert torch.equal(rows[33 + 4 + 33 :], call.k_extend[4:, 0])
