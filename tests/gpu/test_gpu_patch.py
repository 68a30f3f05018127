"""The plugin's own parts on a GPU: counters that the host reads without a CUDA call, in eager calls and graph replay.

No SGLang here: a class with its backend's signatures stands in, whose attention is torch's.
"""

from __future__ import annotations

import time
from enum import Enum
from types import SimpleNamespace

import pytest
import torch

from kdtree_verify.config import Mode
from kdtree_verify.native.call import Call
from kdtree_verify.rank import hook
from kdtree_verify.rank.box import Box
from kdtree_verify.rank.eligibility import Reason
from kdtree_verify.rank.kernel import Kernel
from kdtree_verify.rank.rank import Armed, Rank
from kdtree_verify.rank.records import Model, Records
from kdtree_verify.reporting.state import State

pytestmark = pytest.mark.gpu

REQUESTS, DRAFT, HEADS, PREFIX, SLOTS = 2, 8, 16, 64, 512
GPU = torch.device("cuda", 0)


class AttentionType(Enum):
    DECODER = "decoder"


class ForwardMode(Enum):
    TARGET_VERIFY = 1

    def is_target_verify(self) -> bool:
        return True


def extend_attention_fwd(
    q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, custom_mask,
    is_causal, mask_indptr, max_len_extend, k_scale, v_scale, sm_scale=None, logit_cap=0.0,
    skip_prefix_custom_mask=True, sliding_window_size=-1, sinks=None, window_kv_offsets=None,
    xai_temperature_len=-1, lse_extend=None, skip_prefix=False, skip_extend=False, page_size=1, score_mod=None,
    aux_tensors=None, extend_seq_lens_cpu=None, identity_kv_indices=False,
):  # fmt: skip
    """A causal chain, every prefix PREFIX long; float32 arithmetic, and nothing that a capture forbids."""
    prefix = k_buffer[kv_indices.view(REQUESTS, PREFIX)][:, :, 0].float()
    keys = torch.cat([prefix, k_extend.view(REQUESTS, DRAFT, 576).float()], dim=1)
    query = q_extend.view(REQUESTS, DRAFT, HEADS, 576).float()
    scores = torch.einsum("bthd,bnd->bthn", query, keys) * sm_scale
    seen = torch.ones(DRAFT, PREFIX + DRAFT, dtype=torch.bool, device=GPU).tril(PREFIX)
    weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
    out = torch.einsum("bthn,bnd->bthd", weights, keys[..., :512])
    o_extend.copy_(out.view_as(o_extend))


def backend_class() -> type:
    class Backend:
        use_mla, enable_deterministic, dcp_size, dllm_block_size = True, False, 1, None

        def __init__(self, model_runner):
            self.extend_attention_fwd = torch.compiler.disable(extend_attention_fwd)
            self.pool = torch.randn(SLOTS, 1, 576, device=GPU).bfloat16()
            self.qo_indptr = torch.arange(REQUESTS + 1, device=GPU) * DRAFT
            self.kv_indptr = (torch.arange(REQUESTS + 1, device=GPU) * PREFIX).int()
            self.kv_indices = torch.randperm(SLOTS - 1, device=GPU)[: REQUESTS * PREFIX] + 1

        def forward_extend(
            self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None, score_mod=None, aux_tensors=None
        ):
            o = torch.empty(*q.shape[:2], 512, dtype=q.dtype, device=GPU)
            self.extend_attention_fwd(
                q, k, v, o, self.pool, self.pool[..., :512], self.qo_indptr, self.kv_indptr, self.kv_indices,
                None, True, None, DRAFT, 1.0, 1.0, layer.scaling, logit_cap=layer.logit_cap,
            )  # fmt: skip
            return o

    return Backend


def layer(number: int, logit_cap: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(
        layer_id=number,
        scaling=192**-0.5,
        logit_cap=logit_cap,
        qk_head_dim=576,
        v_head_dim=512,
        tp_k_head_num=1,
        tp_v_head_num=1,
        is_cross_attention=False,
        attn_type=AttentionType.DECODER,
        sliding_window_size=-1,
        xai_temperature_len=-1,
    )


BATCH = SimpleNamespace(forward_mode=ForwardMode.TARGET_VERIFY)


class Setup:
    def __init__(self, library, mode: Mode, sample_every: int = 0):
        torch.manual_seed(0)
        kernel = Kernel(library, GPU)
        self.rank = Rank(mode, kernel, Records(GPU), Armed(HEADS, DRAFT, sample_every), Box(GPU))
        cls = backend_class()
        self.stock = cls(None)
        hook.patch_backend(cls, lambda backend, runner: hook.guard_backend(backend, self.rank, Model.TARGET))
        self.backend = cls(None)
        for name in ("pool", "kv_indices"):
            setattr(self.backend, name, getattr(self.stock, name))
        tokens = REQUESTS * DRAFT
        self.q = torch.randn(tokens, HEADS, 576, device=GPU).bfloat16()
        self.k = torch.randn(tokens, 1, 576, device=GPU).bfloat16()
        self.v = self.k[..., :512].contiguous()

    def ours(self, layer) -> torch.Tensor:
        return self.backend.forward_extend(self.q, self.k, self.v, layer, BATCH)

    def stocks(self, layer) -> torch.Tensor:
        return self.stock.forward_extend(self.q, self.k, self.v, layer, BATCH)


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got.double() - wanted.double()).norm() / wanted.double().norm()).item()


def test_facts_of_the_device() -> None:
    from kdtree_verify.native import gpu

    facts = gpu.facts(0)
    properties = torch.cuda.get_device_properties(0)
    assert facts.name == properties.name
    assert facts.uuid == f"GPU-{properties.uuid}"
    assert facts.compute_capability == f"{properties.major}.{properties.minor}"
    assert facts.memory == properties.total_memory
    assert int(facts.cuda_driver.split(".")[0]) >= 13


def test_validate_returns_stock_and_measures(library) -> None:
    setup = Setup(library, Mode.VALIDATE)
    got = setup.ours(layer(3))
    assert torch.equal(got, setup.stocks(layer(3)))
    torch.cuda.synchronize()
    (figures,) = setup.rank.records.layers()
    assert (figures.layer, figures.kernel_calls, figures.compare_calls) == (3, 1, 1)
    assert figures.compare_rows == REQUESTS * DRAFT
    assert 0 < figures.worst_rel_l2 < 0.01
    assert figures.nonfinite == figures.exceeded_calls == figures.out_of_range == 0


def test_on_answers_itself(library) -> None:
    setup = Setup(library, Mode.ON)
    assert relative(setup.ours(layer(0)), setup.stocks(layer(0))) < 0.01
    torch.cuda.synchronize()
    assert setup.rank.verdict().state is State.SERVING
    assert setup.rank.records.layers()[0].compare_calls == 0


@pytest.mark.parametrize("mode", [Mode.VALIDATE, Mode.ON])
def test_replays_count_though_python_is_not_there(library, mode) -> None:
    setup = Setup(library, mode)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        setup.ours(layer(0))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outs = [setup.ours(layer(number)) for number in range(3)]  # layers 1 and 2 are new under capture
    for _ in range(5):
        setup.q.normal_()
        graph.replay()
    torch.cuda.synchronize()
    assert all(relative(out, setup.stocks(layer(0))) < 0.01 for out in outs)
    figures = setup.rank.records.layers()
    assert [f.kernel_calls for f in figures] == [6, 5, 5]
    assert [f.compare_calls for f in figures] == ([6, 5, 5] if mode is Mode.VALIDATE else [0, 0, 0])
    assert not any(f.exceeded_calls or f.nonfinite or f.out_of_range for f in figures)


def test_only_what_a_graph_replays_is_timed(library) -> None:
    """Between eager launches the device waits for the host, which would count as the kernels' time."""
    setup = Setup(library, Mode.VALIDATE)
    setup.ours(layer(0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        setup.ours(layer(0))
    for _ in range(4):
        graph.replay()
    torch.cuda.synchronize()
    (shape,) = setup.rank.records.shapes()
    assert (shape.calls, shape.timed_calls) == (5, 4)
    assert (shape.prefix_from, shape.batch_from) == (0, 2)
    assert 0 < shape.kernel_ns < shape.stock_ns < 4 * 50e6  # stock is torch here, a dozen kernels
    assert setup.rank.box.take() is None


def test_samples_are_chosen_by_replays(library) -> None:
    setup = Setup(library, Mode.ON, sample_every=3)
    graph = torch.cuda.CUDAGraph()
    setup.ours(layer(0))
    with torch.cuda.graph(graph):
        outs = [setup.ours(layer(number)) for number in range(3)]
    counts = []
    for _ in range(6):
        setup.q.normal_()
        graph.replay()
        torch.cuda.synchronize()
        counts.append([figures.compare_calls for figures in setup.rank.records.layers()])
    assert all(relative(out, setup.stocks(layer(0))) < 0.01 for out in outs)
    # Layer 0 has had a call before: at each replay one layer's turn, or two's.
    assert counts == [
        [sum((call + number) % 3 == 0 for call in range(replays + (number == 0))) for number in range(3)]
        for replays in range(1, 7)
    ]
    assert not any(figures.exceeded_calls for figures in setup.rank.records.layers())
    assert all(shape.timed_calls == 0 for shape in setup.rank.records.shapes())


def test_a_captured_decline_counts_and_is_no_serving(library) -> None:
    setup = Setup(library, Mode.ON)
    setup.ours(layer(0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        setup.ours(layer(0))
        setup.ours(layer(1, logit_cap=30.0))
    for _ in range(4):
        graph.replay()
    torch.cuda.synchronize()
    assert setup.rank.records.declined(Model.TARGET) == {Reason.LOGIT_CAP: 4}
    verdict = setup.rank.verdict()
    assert (verdict.state, verdict.reason) == (State.NOT_SERVING, "a captured graph runs stock: logit_cap")


def test_reading_waits_for_nothing(library) -> None:
    setup = Setup(library, Mode.ON)
    setup.ours(layer(0))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second of work
    setup.ours(layer(0))
    began = time.perf_counter()
    assert setup.rank.records.layers()[0].kernel_calls == 1
    assert time.perf_counter() - began < 0.1
    torch.cuda.synchronize()
    assert setup.rank.records.layers()[0].kernel_calls == 2


def test_a_misaligned_row_is_declined_not_refused(library) -> None:
    setup = Setup(library, Mode.ON)
    setup.q = torch.randn(REQUESTS * DRAFT * HEADS * 576 + 1, device=GPU).bfloat16()[1:].view(-1, HEADS, 576)
    assert torch.equal(setup.ours(layer(0)), setup.stocks(layer(0)))
    torch.cuda.synchronize()
    assert setup.rank.records.declined(Model.TARGET) == {Reason.ALIGNMENT: 1}


def test_the_stand_in_has_sglangs_signature() -> None:
    from kdtree_verify import contract

    contract.check_signature("stand-in", extend_attention_fwd, contract.EXTEND_ATTENTION_FWD)
    contract.check_signature("Call", Call, contract.EXTEND_ATTENTION_FWD)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_gpu_of_a_process(library) -> None:
    other = torch.device("cuda", 1)
    records = Records(other)
    kernel = Kernel(library, other)
    assert kernel.count(records.decline(Model.TARGET, Reason.SINKS)) == 0
    torch.cuda.synchronize(other)
    assert records.declined(Model.TARGET) == {Reason.SINKS: 1}
