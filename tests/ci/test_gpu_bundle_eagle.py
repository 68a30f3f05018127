"""The GPU bundle's stand-in for what EAGLE calls: its tree, its draft layer's experts; and the plugin."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from gpu_bundle import sgl_kernel, sglang_gpu_box

FULL_MASK, QLEN_ONLY, BITS = 0, 1, 2


def drafted(draw: random.Random, topk: int, depth: int, n: int) -> tuple[list[int], list[int], list[int]]:
    """One request's parent_list, selected_index and, by node, the parents: SGLang's numbering of what it drafted.

    The first step drafts topk tokens, 0 .. topk - 1; each later one topk for each of the topk tokens that the step
    before it kept. parent_list begins with the root's -1 and goes on with the kept tokens.
    """
    parent_list, groups = [-1], dict.fromkeys(range(topk), -1)
    layer, first = list(range(topk)), topk
    for _ in range(depth - 1):
        kept = draw.sample(layer, topk) if len(layer) > topk else layer
        parent_list += kept
        layer = list(range(first, first + topk * topk))
        groups |= {token: kept[(token - first) // topk] for token in layer}
        first += topk * topk
    chosen: set[int] = set()
    while len(chosen) < n - 1:
        # A token whose parent is selected, or the root's: what the best scores give, since a child's is never higher.
        token = draw.choice([one for one, of in groups.items() if one not in chosen and (of < 0 or of in chosen)])
        chosen.add(token)
    selected = sorted(chosen)
    parents = [-1] + [0 if groups[token] < 0 else 1 + selected.index(groups[token]) for token in selected]
    return parent_list, selected, parents


@pytest.mark.parametrize("mode", [FULL_MASK, QLEN_ONLY])
@pytest.mark.parametrize(("topk", "depth", "n"), [(1, 1, 2), (1, 4, 5), (4, 1, 4), (4, 3, 16), (8, 4, 64), (8, 5, 32)])
def test_the_tree_is_what_was_drafted(topk: int, depth: int, n: int, mode: int) -> None:
    draw = random.Random(topk * 100 + n)
    batch, lengths = 3, [7, 0, 12]
    requests = [drafted(draw, topk, depth, n) for _ in range(batch)]
    # SGLang gives parent_list the width of all steps but the last one's.
    width = topk * (depth - 1) + 1
    parent_list = torch.tensor([request[0][:width] for request in requests])
    selected = torch.tensor([request[1] for request in requests])
    seq_lens = torch.tensor(lengths)
    sizes = [n * (length + n if mode == FULL_MASK else n) for length in lengths]
    mask = torch.ones(sum(sizes), dtype=torch.bool)
    positions = torch.zeros(batch * n, dtype=torch.long)
    index = torch.full((batch, n), -7)
    next_token, next_sibling = torch.full((2, batch, n), -1)
    sgl_kernel.build_tree_kernel_efficient(
        parent_list, selected, seq_lens, mask, positions, index, next_token, next_sibling, topk, depth, n, mode
    )
    assert torch.equal(index, torch.arange(batch * n).view(batch, n))
    for b, part in enumerate(mask.split(sizes)):
        parents = requests[b][2]
        rows = part.view(n, -1)
        assert rows[:, : rows.shape[1] - n].all()  # the prefix is not this function's
        for node in range(n):
            path, step = [], node
            while step >= 0:
                path.append(step)
                step = parents[step]
            assert rows[node, -n:].nonzero().flatten().tolist() == sorted(path)
            assert positions[b * n + node] == lengths[b] + len(path) - 1
            family = [child for child in range(n) if parents[child] == node]
            assert next_token[b, node] == (family[0] if family else -1)
            for child, sibling in pairwise([*family, -1]):
                assert next_sibling[b, child] == sibling


def test_a_mask_of_bits_is_refused() -> None:
    empty = torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(NotImplementedError, match="tree_mask_mode 2"):
        sgl_kernel.build_tree_kernel_efficient(empty, empty, empty[0], *[empty] * 5, 1, 1, 2, BITS)


class Experts:
    """A layer of random experts and what SGLang hands to it; the first token has one that is not here."""

    def __init__(self, tokens: int = 9, of_a_token: int = 2, experts: int = 4, hidden: int = 24, width: int = 16):
        generator = torch.Generator().manual_seed(tokens)
        self.x, self.w13, self.w2 = (
            torch.randn(*shape, generator=generator).bfloat16()
            for shape in ((tokens, hidden), (experts, 2 * width, hidden), (experts, hidden, width))
        )
        self.weights = torch.rand(tokens, of_a_token, generator=generator)
        self.ids = torch.stack([torch.randperm(experts, generator=generator)[:of_a_token] for _ in range(tokens)])
        self.ids[0, 0] = -1

    def want(self) -> torch.Tensor:
        out = torch.zeros(self.x.shape, dtype=torch.float64)
        for token, (own, weights) in enumerate(zip(self.ids.tolist(), self.weights.double(), strict=True)):
            for expert, weight in zip(own, weights, strict=True):
                if expert >= 0:
                    gate, up = (self.w13[expert].double() @ self.x[token].double()).chunk(2)
                    out[token] += weight * (self.w2[expert].double() @ (gate * gate.sigmoid() * up))
        return out


@pytest.mark.parametrize(("tokens", "of_a_token", "experts"), [(1, 1, 1), (9, 2, 4), (40, 8, 8)])
def test_each_token_is_the_weighted_sum_of_its_experts(tokens: int, of_a_token: int, experts: int) -> None:
    case = Experts(tokens, of_a_token, experts)
    out = sglang_gpu_box.experts(case.x, case.w13, case.w2, case.weights, case.ids.int())
    assert out.dtype == case.x.dtype
    scale = float(case.want().abs().max()) if case.want().any() else 1.0
    torch.testing.assert_close(out.double(), case.want(), rtol=2**-6, atol=scale * 2**-6)


def layer_of(case: Experts, **fields: object) -> SimpleNamespace:
    from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig

    return SimpleNamespace(
        moe_runner_config=MoeRunnerConfig(**fields),
        num_experts=len(case.w13),
        w13_weight=case.w13,
        w2_weight=case.w2,
    )


@pytest.mark.parametrize("scale", [None, 2.5])
def test_sglangs_method_answers_as_its_own_torch_version(scale: float | None) -> None:
    from sglang.srt.layers.moe.fused_moe_native import moe_forward_native

    case = Experts()
    case.ids[0, 0] = 3 - case.ids[0, 1]  # SGLang's takes no expert that is not here
    layer = layer_of(case, routed_scaling_factor=scale)
    topk = (case.weights, case.ids, None)
    method = SimpleNamespace(with_bias=False, w13_swiglu_interleaved=False)
    dispatched = SimpleNamespace(hidden_states=case.x, topk_output=topk)
    got = sglang_gpu_box.forward_experts(method, layer=layer, dispatch_output=dispatched).hidden_states
    # Its Triton kernels scale by the factor, its torch version does not.
    scaled = (case.weights * (scale or 1), case.ids, None)
    torch.testing.assert_close(got, moe_forward_native(layer, case.x, scaled, layer.moe_runner_config))


@pytest.mark.parametrize(
    ("of_the_layer", "of_the_method"),
    [
        ({"activation": "gelu"}, {}),
        ({"is_gated": False}, {}),
        ({"swiglu_limit": 7.0}, {}),
        ({"gemm1_alpha": 1.7}, {}),
        ({"no_combine": True}, {}),
        ({"apply_router_weight_on_input": True}, {}),
        ({}, {"with_bias": True}),
        ({}, {"w13_swiglu_interleaved": True}),
    ],
)
def test_experts_of_another_kind_are_left_to_sglang(of_the_layer: dict, of_the_method: dict) -> None:
    case = Experts()
    method = SimpleNamespace(**{"with_bias": False, "w13_swiglu_interleaved": False, **of_the_method})
    dispatched = SimpleNamespace(hidden_states=case.x, topk_output=(case.weights, case.ids, None))
    with pytest.raises(NotImplementedError, match="of another kind"):
        sglang_gpu_box.forward_experts(method, layer_of(case, **of_the_layer), dispatched)


def test_a_forced_torch_backend_calls_what_the_plugin_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.kernels import fused_op
    from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

    monkeypatch.setattr(fused_op, "_forced_backend", fused_op.KernelBackend.TORCH)
    monkeypatch.setattr(UnquantizedFusedMoEMethod, "forward_native", sglang_gpu_box.forward_experts)
    case = Experts()
    method = UnquantizedFusedMoEMethod.__new__(UnquantizedFusedMoEMethod)  # its constructor asks the server's arguments
    torch.nn.Module.__init__(method)
    method.with_bias = method.w13_swiglu_interleaved = False
    dispatched = SimpleNamespace(hidden_states=case.x, topk_output=(case.weights, case.ids, None))
    got = method.apply(layer=layer_of(case), dispatch_output=dispatched).hidden_states
    assert torch.equal(got, sglang_gpu_box.experts(case.x, case.w13, case.w2, case.weights, case.ids))


@pytest.mark.parametrize("gpu", [True, False])
def test_the_plugin_puts_the_stand_in_where_flashinfer_would_be(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    renorm = SimpleNamespace(
        top_k_renorm_prob=SimpleNamespace(_module=None), top_p_renorm_prob=SimpleNamespace(_module=None)
    )
    method = SimpleNamespace(forward_native=None)
    modules = {
        "sgl_kernel.speculative": sgl_kernel.speculative,
        "sglang.kernels.ops.speculative.sampling": SimpleNamespace(_jit_sampling_module=None),
        "sglang.kernels.ops.sampling.renorm": renorm,
        "sglang.srt.layers.quantization.unquant": SimpleNamespace(UnquantizedFusedMoEMethod=method),
    }
    monkeypatch.setattr(sglang_gpu_box.importlib, "import_module", modules.__getitem__)
    monkeypatch.setattr(sglang_gpu_box.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    sglang_gpu_box.register()
    compiled = modules["sglang.kernels.ops.speculative.sampling"]._jit_sampling_module
    if gpu:
        assert compiled(4, True).sample is sgl_kernel.tree_speculative_sampling_target_only
        assert renorm.top_k_renorm_prob._module is sgl_kernel.top_k_renorm_prob
        assert renorm.top_p_renorm_prob._module is sgl_kernel.top_p_renorm_prob
        assert method.forward_native is sglang_gpu_box.forward_experts
    else:
        assert compiled is None
        assert renorm.top_k_renorm_prob._module is None
        assert method.forward_native is None
