"""SGLang's own tests of tree verification with MLA, as its wheel ships them, on the GPU with the patch on.

Their reference is SGLang's, in torch; each runs eagerly, or as a captured CUDA graph that is replayed with other
lengths, which the kit leaves out: it only fills the buffers of one.
"""

from __future__ import annotations

import itertools
import unittest
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from kdtree_verify.config import Mode
from kdtree_verify.rank import hook
from kdtree_verify.rank.kernel import Kernel
from kdtree_verify.rank.rank import Armed, Rank
from kdtree_verify.rank.records import Model, Records

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed (docs/proof.md)"),
]

# The kit's only tree with branches has three tokens; chains have any number.
SHAPES = {
    "one tree": {"num_heads": 8, "prefix_lens": (64,), "drafts": 3, "topk": 2},
    "ragged trees": {"num_heads": 16, "prefix_lens": (1, 131, 500), "drafts": 3, "topk": 2},
    "chains": {"num_heads": 20, "prefix_lens": (33, 900), "drafts": 60, "topk": 1},
}
CONTEXT = 1024


@pytest.fixture(params=[0, 2], ids=["on", "sampled"])
def rank(library: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Rank:
    """What every Triton backend that is made gets, in mode on; with SGLang's kernel behind a gate too."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.runtime_context import get_parallel

    get_parallel().override_permanently(attn_dcp_rank=0)  # the backend asks for it, the kit does not say it
    device = torch.device("cuda", 0)
    rank = Rank(
        Mode.ON, Kernel(library, device), Records(device), Armed(heads=20, draft_tokens=64, sample_every=request.param)
    )
    for name in ("__init__", "forward_extend"):  # as they were, when the test ends
        monkeypatch.setattr(TritonAttnBackend, name, getattr(TritonAttnBackend, name))
    hook.patch_backend(TritonAttnBackend, lambda backend, runner: hook.guard_backend(backend, rank, Model.TARGET))
    return rank


class InGraph:
    """The kit's forward pass: eagerly at first, then captured, then that graph replayed on what is given.

    The lengths, masks and slots that the attention reads are in the backend's buffers, which the kit fills before each
    pass; hidden states and the slots to write are this class's to fill.
    """

    def __init__(self, run: Callable[..., torch.Tensor]):
        self._run = run
        self._passes = 0

    def __call__(self, fixture: Any, batch: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self._passes += 1
        if self._passes == 1:
            return self._run(fixture, batch, inputs)
        hidden, slots = inputs["input_hidden"], batch.out_cache_loc
        if self._passes == 2:
            self._run(fixture, batch, inputs)  # compiles what a capture must find compiled
            self._hidden, self._slots, self._graph = hidden, slots, torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._out = self._run(fixture, batch, inputs)
        else:
            self._hidden.copy_(hidden)
            self._slots.copy_(slots)
            self._graph.replay()
        return self._out


@pytest.mark.parametrize(
    ("shape", "kind", "graph"),
    [*itertools.product(SHAPES, ("eagle", "ngram", "frozen_kv_mtp"), (False, True))],
)
def test_verifies_as_sglangs_reference(
    rank: Rank, shape: str, kind: str, graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.test.kits.attention_unittest.attention_methods.mla_attention import MLAAttentionCase
    from sglang.test.kits.attention_unittest.runner_modes import speculative_target_verify_runner as kit

    fields: dict[str, Any] = dict(SHAPES[shape])
    drafts, topk = fields.pop("drafts"), fields.pop("topk")
    case = MLAAttentionCase(
        name=shape,
        backend="triton",
        forward_mode=ForwardMode.TARGET_VERIFY,
        page_size=1,
        extend_lens=(drafts,) * len(fields["prefix_lens"]),
        **fields,
    )
    run = kit.run_mla_eagle_verify_case
    if graph:
        run = kit.run_mla_eagle_verify_cuda_graph_case
        monkeypatch.setattr(kit, "run_mla_forward", InGraph(kit.run_mla_forward))
        # The kit shuffles a request's slots, and before each pass of a graph's test writes the prefix again as if it
        # had not: over slots that hold other tokens. Stock fails as well.
        build = partial(kit.build_mla_attention_fixture, loc_layout="contiguous")
        monkeypatch.setattr(kit, "build_mla_attention_fixture", build)
    run(
        unittest.TestCase(),
        case,
        topk=topk,
        spec_kind=kind,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        hidden_size=64,
        max_context_len=CONTEXT,
        dtype=torch.bfloat16,
        device="cuda",
    )
    torch.cuda.synchronize()
    (figures,) = rank.records.layers()
    assert figures.kernel_calls == (3 if graph else 1)  # a capture runs nothing
    assert figures.out_of_range == 0
    if rank.armed.sample_every:
        assert figures.compare_calls == (2 if graph else 1)  # the first, the third
        assert figures.exceeded_calls == figures.nonfinite == 0
        assert 0 < figures.worst_rel_l2 < 0.01
    assert rank.records.declined(Model.TARGET) == {}
