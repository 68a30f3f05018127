"""All that the GPU bundle puts in SGLang's place can be captured into a CUDA graph; and what cannot be is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from capturing import GPU, NotCapturableError, capturing
from gpu_bundle import sgl_kernel, sglang_gpu_box

BATCH, NODES, DEPTH, TOPK, VOCABULARY = 3, 16, 4, 4, 32


def on_gpu(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=GPU)


def whole(*shape: int) -> Tensor:
    return on_gpu(*shape, dtype=torch.long)


def real(*shape: int) -> Tensor:
    return on_gpu(*shape, dtype=torch.float32)


def links() -> tuple[Tensor, Tensor, Tensor]:
    return whole(BATCH, NODES), whole(BATCH, NODES), whole(BATCH, NODES)


def outputs() -> tuple[Tensor, Tensor, Tensor]:
    kinds = {"dtype": torch.int32}
    return on_gpu(BATCH * NODES, **kinds), on_gpu(BATCH, DEPTH + 1, **kinds), on_gpu(BATCH, **kinds)


HIDDEN = (on_gpu(5, 96), on_gpu(5, 96), on_gpu(96))
PART = (on_gpu(5, 2, 8), real(5, 2))
TREE_MASK = on_gpu(4000, dtype=torch.bool)

CALLS: dict[str, list[tuple[Any, ...]]] = {
    "rmsnorm": [(HIDDEN[0], HIDDEN[2]), (HIDDEN[0], HIDDEN[2], 1e-6, HIDDEN[1])],
    "gemma_rmsnorm": [(HIDDEN[0], HIDDEN[2]), (HIDDEN[0], HIDDEN[2], 1e-6, HIDDEN[1])],
    "fused_add_rmsnorm": [HIDDEN],
    "gemma_fused_add_rmsnorm": [HIDDEN],
    "silu_and_mul": [(HIDDEN[0],), (HIDDEN[0], on_gpu(5, 48))],
    "gelu_and_mul": [(HIDDEN[0],)],
    "gelu_tanh_and_mul": [(HIDDEN[0],)],
    "is_arch_support_pdl": [()],
    "weak_ref_tensor": [(HIDDEN[0],)],
    "merge_state_v2": [(*PART, *PART), (*PART, *PART, *PART)],
    "top_k_renorm_prob": [(real(BATCH, VOCABULARY), k) for k in (5, whole(BATCH))],
    "top_p_renorm_prob": [(real(BATCH, VOCABULARY), p) for p in (0.5, real(BATCH))],
    "build_tree_kernel_efficient": [
        (
            *(whole(BATCH, width), whole(BATCH, NODES - 1), whole(BATCH), TREE_MASK, whole(BATCH * NODES)),
            *(*links(), TOPK, DEPTH, NODES, mode),
        )
        for width in (0, TOPK * (DEPTH - 1) + 1)
        for mode in (0, 1)
    ],
    "reconstruct_indices_from_tree_mask": [
        (TREE_MASK, whole(BATCH), whole(BATCH * NODES), *links(), BATCH, NODES),
    ],
    "verify_tree_greedy": [(*outputs(), whole(BATCH, NODES), *links(), whole(BATCH, NODES))],
    "tree_speculative_sampling_target_only": [
        (
            *(*outputs(), whole(BATCH, NODES), *links(), real(BATCH, NODES), real(BATCH)),
            *(real(BATCH, NODES, VOCABULARY), real(BATCH, NODES, VOCABULARY)),
        )
    ],
}


def test_every_operator_has_a_call_here() -> None:
    assert CALLS.keys() == set(sgl_kernel.__all__)


@pytest.mark.parametrize(("name", "arguments"), [(name, call) for name, calls in CALLS.items() for call in calls])
def test_the_stand_in_can_be_captured(name: str, arguments: tuple[Any, ...]) -> None:
    with capturing():
        getattr(sgl_kernel, name)(*arguments)


EXPERTS = (on_gpu(7, 96), on_gpu(4, 64, 96), on_gpu(4, 96, 32), real(7, 2), on_gpu(7, 2, dtype=torch.int32))


def test_experts_can_be_captured() -> None:
    with capturing():
        out = sglang_gpu_box.experts(*EXPERTS)
    assert (out.shape, out.dtype) == (EXPERTS[0].shape, EXPERTS[0].dtype)


X, MASK, IDS = real(4, 6), on_gpu(4, 6, dtype=torch.bool), whole(5)


@pytest.mark.parametrize(
    "breach",
    [
        lambda: X.sum().item(),
        lambda: X.any() and X,
        lambda: X.cpu(),
        lambda: X.to("cpu", non_blocking=True),
        lambda: X.tolist(),
        lambda: MASK.nonzero(),
        lambda: X[MASK],
        lambda: X.masked_select(MASK),
        lambda: X.masked_scatter(MASK, X)[MASK[:, 0]],
        lambda: X.index_put_((MASK,), X[0, 0]),
        lambda: IDS.unique(),
        lambda: torch.bincount(IDS),
        lambda: IDS.repeat_interleave(IDS),
        lambda: torch.equal(IDS, IDS),
        lambda: torch.tensor([1, 2], device=GPU),
        lambda: torch.as_tensor(3, device=GPU),
        lambda: torch.ones(3).to(GPU),
        lambda: X[0].copy_(torch.ones(6)),
        lambda: X + torch.ones(4, 6),
    ],
)
def test_what_cannot_be_captured_is_found(breach: Callable[[], Any]) -> None:
    with pytest.raises(NotCapturableError), capturing():
        breach()


def test_sglangs_own_torch_version_of_experts_cannot_be() -> None:
    """Why there is one in the plugin."""
    from sglang.srt.layers.moe.fused_moe_native import moe_forward_native
    from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig

    x, w13, w2, weights, ids = EXPERTS
    layer = torch.nn.Module()
    layer.num_experts, layer.w13_weight, layer.w2_weight = len(w13), w13, w2
    with pytest.raises(NotCapturableError, match="from meta to cpu"), capturing():
        moe_forward_native(layer, x, (weights, ids, None), MoeRunnerConfig())
