"""SGLang plugin of the GPU bundle: what SGLang has compiled versions of, or torch ones that no CUDA graph can hold.

Tree verify at a temperature SGLang compiles with FlashInfer's headers: where FlashInfer is not installed, the
stand-in's torch versions are called in its place. The other tree helpers are SGLang's own CUDA sources, compiled on
the spot by nvcc: nothing to do for them. A layer of experts (EAGLE's draft layer is one) in SGLang's torch version
copies counts to the host, which ends a capture: experts() asks the GPU for nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def register() -> None:
    """Entry point, called in every SGLang process."""
    if importlib.util.find_spec("flashinfer") is not None or not torch.cuda.is_available():
        return
    standin = importlib.import_module("sgl_kernel.speculative")
    sampling = importlib.import_module("sglang.kernels.ops.speculative.sampling")
    renorm = importlib.import_module("sglang.kernels.ops.sampling.renorm")
    unquantized = importlib.import_module("sglang.srt.layers.quantization.unquant")
    # All are looked up when they are called, so it does not matter who has imported them already.
    compiled = SimpleNamespace(sample=standin.tree_speculative_sampling_target_only)
    sampling._jit_sampling_module = lambda vec_size, deterministic: compiled  # type: ignore[attr-defined]
    renorm.top_k_renorm_prob._module = standin.top_k_renorm_prob
    renorm.top_p_renorm_prob._module = standin.top_p_renorm_prob
    unquantized.UnquantizedFusedMoEMethod.forward_native = forward_experts


def experts(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Each token's sum over its experts of weight * w2 @ (silu(gate) * up), [tokens, hidden] in x's dtype.

    Every expert computes every token: for the few small ones of a proof's model that takes less than sorting tokens,
    and the shapes depend on nothing that only the GPU knows.

    Args:
        x: [tokens, hidden].
        w13: [experts, 2 * width, hidden], the gate's rows before up's.
        w2: [experts, hidden, width].
        weights: [tokens, experts of a token], float32.
        ids: The same shape; an expert that is not here, -1 as well, adds nothing.
    """
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(w13.shape[0]):
        gate, up = functional.linear(x, w13[expert]).chunk(2, -1)
        out = functional.linear(functional.silu(gate) * up, w2[expert])
        total += out * (weights.float() * (ids == expert)).sum(1, keepdim=True)
    return total.to(x.dtype)


def forward_experts(method: Any, layer: Any, dispatch_output: Any) -> Any:
    """UnquantizedFusedMoEMethod.forward_native by experts(); SGLang takes its other ways with what this refuses."""
    config = layer.moe_runner_config
    plain = config.activation == "silu" and config.is_gated and not method.w13_swiglu_interleaved
    extras = (config.gemm1_alpha, config.gemm1_clamp_limit, config.swiglu_limit)
    if not plain or method.with_bias or config.apply_router_weight_on_input or config.no_combine or any(extras):
        raise NotImplementedError("experts of another kind than silu, gated, without biases or limits")
    standard = importlib.import_module("sglang.srt.layers.moe.token_dispatcher.standard")
    weights, ids, _ = dispatch_output.topk_output
    if config.routed_scaling_factor is not None:
        weights = weights * config.routed_scaling_factor
    out = experts(dispatch_output.hidden_states, layer.w13_weight, layer.w2_weight, weights, ids)
    return standard.StandardCombineInput(hidden_states=out)
