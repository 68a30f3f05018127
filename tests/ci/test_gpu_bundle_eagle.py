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


@pytest.mark.parametrize(("tokens", "topk", "experts", "block"), [(1, 2, 8, 16), (7, 3, 4, 4), (40, 2, 8, 16)])
def test_slots_are_sorted_by_expert_in_whole_blocks(tokens: int, topk: int, experts: int, block: int) -> None:
    draw = random.Random(tokens)
    ids = [draw.randrange(-1, experts) for _ in range(tokens * topk)]
    room = len(ids) + (experts + 1) * (block - 1)
    slots, owners = torch.zeros(room, dtype=torch.int32), torch.zeros(-(-room // block), dtype=torch.int32)
    total, unused = torch.zeros(1, dtype=torch.int32), torch.zeros(experts + 2, dtype=torch.int32)
    topk_ids = torch.tensor(ids, dtype=torch.int32).view(tokens, topk)
    sgl_kernel.moe_align_block_size(topk_ids, experts + 1, block, slots, owners, total, unused, True)
    want: list[int] = []
    blocks: list[int] = []
    for expert in range(-1, experts):
        own = [slot for slot, of in enumerate(ids) if of == expert]
        own += [len(ids)] * (-len(own) % block)
        want += own
        blocks += [expert] * (len(own) // block)
    assert total.item() == len(want)
    assert slots.tolist() == want + [len(ids)] * (room - len(want))
    assert owners.tolist() == blocks + [-1] * (len(owners) - len(blocks))


def test_experts_are_summed_and_scaled() -> None:
    parts = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = torch.empty(5, 8, dtype=torch.bfloat16)
    sgl_kernel.moe_sum_reduce(parts, out, 2.5)
    torch.testing.assert_close(out.double(), parts.double().sum(1) * 2.5, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("gpu", [True, False])
def test_the_plugin_puts_the_stand_in_where_flashinfer_would_be(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    renorm = SimpleNamespace(
        top_k_renorm_prob=SimpleNamespace(_module=None), top_p_renorm_prob=SimpleNamespace(_module=None)
    )
    modules = {
        "sgl_kernel.speculative": sgl_kernel.speculative,
        "sglang.kernels.ops.speculative.sampling": SimpleNamespace(_jit_sampling_module=None),
        "sglang.kernels.ops.sampling.renorm": renorm,
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
    else:
        assert compiled is None
        assert renorm.top_k_renorm_prob._module is None
