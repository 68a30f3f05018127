"""The attention of verify calls in float32, in place of stock's: what an fp8 pool's answers are held against.

Stock rounds Q and P to the pool's fp8, the kernel does not; so where their answers part, neither tells who is right. A
server with this plugin tells: it stores what both store, and computes from that without rounding further. It is slow,
waits for the device, and cannot be captured into a CUDA graph.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kdtree_verify import contract
from kdtree_verify.importhook import when_imported
from kdtree_verify.native.abi import V_DIM
from kdtree_verify.native.call import Call
from kdtree_verify.rank import hook
from kdtree_verify.rank.records import Model

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = "kdtree_proof-0.dist-info"
ANSWERED = "proof: verify calls are answered in float32"
"""What a server with this plugin says once it has answered one. SGLang serves on where a plugin does not load."""
ENTRY_POINT = "[sglang.srt.plugins]\nkdtree_proof_exact = proof.exact:register\n"


def environment(folder: Path) -> dict[str, str]:
    """The variables of a server whose SGLang finds this plugin, whose metadata is written into `folder`."""
    metadata = folder / PLUGIN
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kdtree-proof\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINT)
    path = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def register() -> None:
    """SGLang's entry point: called in every process of the server."""
    when_imported(contract.BACKEND_MODULE, _patch)


def _patch(module: Any) -> None:
    exact = Exact()
    hook.patch_backend(
        contract.backend_class(module),
        lambda backend, runner: hook.guard_backend(backend, exact, Model.TARGET),  # type: ignore[arg-type]
    )


class Exact:
    """Answers a backend's verify calls, as KDTree's Rank does. What is not this kernel's ends the server."""

    not_verify_calls = 0
    calls = 0

    def examine(self, reason: Callable[..., Any], *arguments: Any) -> Any:
        return reason(*arguments)

    def decline(self, model: Model, reason: Any) -> None:
        raise RuntimeError(f"a verify call that the kernel would decline: {reason}")

    def attend(self, stock: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *_: Any) -> None:
        call = Call(*args, **kwargs)
        if self.calls == 0:
            logger.info(ANSWERED)
        self.calls += 1
        call.o_extend.copy_(attention(call))


def attention(call: Call) -> torch.Tensor:
    """float32 [tokens, heads, 512] of a call whose drafts are finite and each see something."""
    assert call.sm_scale is not None, "MLA's layers name it"
    out = torch.empty((*call.q_extend.shape[:2], V_DIM), dtype=torch.float32, device=call.q_extend.device)
    for request in _requests(call):
        # As bytes: torch gathers fp8 not on every device.
        stored = call.k_buffer.view(torch.uint8)[request.slots, 0].view(call.k_buffer.dtype).float()
        rows = request.rows
        keys = torch.cat([stored * call.k_scale, call.k_extend[rows, 0].float()])
        values = torch.cat([stored[:, :V_DIM] * call.v_scale, call.v_extend[rows, 0].float()])
        scores = call.q_extend[rows].float() @ keys.T * call.sm_scale
        scores[..., len(stored) :].masked_fill_(~request.visible[:, None], float("-inf"))
        out[rows] = torch.softmax(scores, -1) @ values
    return out


class _Request(NamedTuple):
    rows: slice
    slots: torch.Tensor  # [prefix]
    visible: torch.Tensor  # [T, T] bool: which drafts a draft sees


def _requests(call: Call) -> Iterator[_Request]:
    rows, prefixes = call.qo_indptr.tolist(), call.kv_indptr.tolist()
    masks = None if call.mask_indptr is None else call.mask_indptr.tolist()
    for i in range(len(rows) - 1):
        drafts, begin, end = rows[i + 1] - rows[i], prefixes[i], prefixes[i + 1]
        if drafts == 0:
            continue
        if call.custom_mask is None or masks is None:
            visible = torch.ones(drafts, drafts, dtype=torch.bool, device=call.q_extend.device).tril()
        else:
            width = end - begin + drafts
            mask = call.custom_mask[masks[i] : masks[i] + drafts * width].view(drafts, width)
            visible = mask[:, end - begin :].bool()
        yield _Request(slice(rows[i], rows[i + 1]), call.kv_indices[begin:end].long(), visible)
