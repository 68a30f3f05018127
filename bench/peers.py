"""The kernels that ours is compared with: SGLang's own, and FlashInfer's MLA.

Both are taken as they are installed. Where they are not, as on a bare machine, ci/bench-peers puts what is needed of
them into build/bench-peers/. A peer that cannot be loaded is told in one line and left out.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kdtree_verify.native.abi import QK_DIM, V_DIM
from kdtree_verify.native.call import Call

from .cells import Cell
from .contenders import Contender, Prepared
from .timing import Launch

FOLDER = Path(__file__).resolve().parents[1] / "build" / "bench-peers"

STOCK_MODULE = "sglang.kernels.ops.attention.extend_attention"
STOCK_TILES = {"stock_sm90": (9, 0), "stock_sm120": (12, 0)}
"""Whose tile SGLang's chooser is made to pick, and the compute capability that it is told."""

STOCK_FP8_BOUND = 0.2
"""SGLang's kernel rounds q and P to the pool's fp8 (its error is about 4e-2 on e4m3)."""

FLASHINFER_WORKSPACE = 256 << 20


def own_stock(capability: tuple[int, int]) -> str:
    """The stock contender whose tile is the one that SGLang picks on a card of this compute capability."""
    return f"stock_sm{capability[0]}0"


class Stock:
    """SGLang's extend_attention_fwd, the tree mask on.

    Args:
        module: SGLang's module of it.
        capability: The compute capability that the module's choice of a tile is made to see.
    """

    chain = False

    def __init__(self, module: ModuleType, capability: tuple[int, int]) -> None:
        self.module, self.capability = module, capability
        self.name = own_stock(capability)

    def bound(self, cell: Cell) -> float:
        return 1e-2 if cell.pool == "bf16" else STOCK_FP8_BOUND

    def prepare(self, cell: Cell, calls: Sequence[Call]) -> Prepared:
        outputs = [torch.empty_like(call.o_extend) for call in calls]
        launches = [self._launch(call, out) for call, out in zip(calls, outputs, strict=True)]
        return Prepared(launches, outputs)

    def _launch(self, call: Call, out: torch.Tensor) -> Launch:
        # The parameters that every release since 0.5.10 has; what follows them stays at its default.
        arguments = call._replace(o_extend=out)[: Call._fields.index("sm_scale") + 1]
        return lambda: self.extend_attention_fwd(*arguments)

    def extend_attention_fwd(self, *arguments: Any) -> None:
        """SGLang's function, with this tile."""
        setattr(self.module, "CUDA_CAPABILITY", self.capability)  # noqa: B010
        self.module.extend_attention_fwd(*arguments)


class FlashInfer:
    """FlashInfer's BatchMLAPagedAttentionWrapper over prefix and draft tokens together, as a causal chain.

    Its pool holds the draft tokens too, and in two tensors, latent and rope, as it likes them best. One plan serves
    all calls of a cell: their slots are laid out alike in pools of their own.

    Args:
        wrapper: The wrapper's class.
        backend: "fa2" (mma.sync) or "fa3" (wgmma, which sm_120 has not).
        device: Where the calls' tensors lie.
    """

    chain = True

    def __init__(self, wrapper: type, backend: str, device: torch.device) -> None:
        self.name = f"flashinfer_{backend}"
        self.wrapper = wrapper(torch.empty(FLASHINFER_WORKSPACE, dtype=torch.uint8, device=device), backend=backend)

    def bound(self, cell: Cell) -> float:
        return 1e-2

    def prepare(self, cell: Cell, calls: Sequence[Call]) -> Prepared:
        if cell.pool != "bf16":
            raise RuntimeError("its MLA kernels take no fp8 pool")
        device = calls[0].q_extend.device
        lengths = torch.tensor(cell.lengths) + cell.drafts
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        generator = torch.Generator(device).manual_seed(0)
        indices = torch.randperm(int(indptr[-1]), generator=generator, device=device)
        self.wrapper.plan(
            calls[0].qo_indptr.int(),
            indptr.int().to(device),
            indices.int(),
            lengths.int().to(device),
            cell.heads,
            V_DIM,
            QK_DIM - V_DIM,
            1,
            True,
            calls[0].sm_scale,
            torch.bfloat16,
            torch.bfloat16,
        )
        outputs = [torch.empty_like(call.o_extend) for call in calls]
        launches = [self._launch(cell, call, indices, out) for call, out in zip(calls, outputs, strict=True)]
        return Prepared(launches, outputs)

    def _launch(self, cell: Cell, call: Call, indices: torch.Tensor, out: torch.Tensor) -> Launch:
        rows = _rows_in_order(cell, call)
        pool = torch.empty_like(rows)
        pool[indices] = rows
        latent, rope = pool[:, None, :V_DIM].contiguous(), pool[:, None, V_DIM:].contiguous()
        q_latent, q_rope = call.q_extend[..., :V_DIM].contiguous(), call.q_extend[..., V_DIM:].contiguous()

        def launch() -> None:
            self.wrapper.run(q_latent, q_rope, latent, rope, out=out)

        return launch


def _rows_in_order(cell: Cell, call: Call) -> torch.Tensor:
    """[prefixes and drafts, 576]: each request's prefix, then its draft tokens."""
    prefixes = call.k_buffer[call.kv_indices[: sum(cell.lengths)], 0].split(list(cell.lengths))
    drafts = call.k_extend[:, 0].split(cell.drafts)
    return torch.cat([part for pair in zip(prefixes, drafts, strict=True) for part in pair])


def load(names: Sequence[str], device: torch.device) -> tuple[list[Contender], dict[str, str]]:
    """The named peers, and why each of the others could not be loaded."""
    _add_folder()
    found: list[Contender] = []
    missing: dict[str, str] = {}
    for name in names:
        loader = _stock if name.startswith("stock") else _flashinfer
        try:
            found.append(loader(name, device))
        except Exception as error:
            # What another project's import raises is not ours to list.
            missing[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
    return found, missing


def _add_folder() -> None:
    if str(FOLDER) not in sys.path and FOLDER.is_dir():
        sys.path.append(str(FOLDER))  # last: what is installed comes first


def _stock(name: str, _: torch.device) -> Contender:
    capability = STOCK_TILES.get(name) or (int(name.removeprefix("stock_sm")) // 10, 0)
    return Stock(importlib.import_module(STOCK_MODULE), capability)


def _flashinfer(name: str, device: torch.device) -> Contender:
    backend = name.removeprefix("flashinfer_")
    if backend == "fa3" and torch.cuda.get_device_capability(device)[0] != 9:
        raise RuntimeError("fa3 needs wgmma, which only compute capability 9.0 has")
    wrapper = importlib.import_module("flashinfer.mla").BatchMLAPagedAttentionWrapper
    return FlashInfer(wrapper, backend, device)


def versions() -> dict[str, str]:
    """Versions of the peers' packages that are there."""
    _add_folder()
    found = {}
    for package in ("sglang", "flashinfer-python", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
