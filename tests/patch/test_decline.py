"""Every reason to leave a verify call to stock: provoked, and stock's answer unchanged and counted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.radix_attention import AttentionType

from kdtree_verify.native.call import Call
from kdtree_verify.rank import eligibility
from kdtree_verify.rank.eligibility import Reason
from kdtree_verify.rank.records import LAYER_SLOTS, Model
from kdtree_verify.reporting.state import State
from rig import Rig


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, every second element of wider memory."""
    wide = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]))
    wide[..., ::2] = tensor
    return wide[..., ::2]


# What is changed in an eligible call, and the reason for which it is then declined.
CALLS = {
    "sinks": (lambda c: {"sinks": torch.zeros(4)}, Reason.SINKS),
    "score-mod": (lambda c: {"score_mod": object()}, Reason.SCORE_MOD),
    "aux-tensors": (lambda c: {"aux_tensors": []}, Reason.AUX_TENSORS),
    "logit-cap": (lambda c: {"logit_cap": 30.0}, Reason.LOGIT_CAP),
    "xai-temperature": (lambda c: {"xai_temperature_len": 8}, Reason.XAI_TEMPERATURE),
    "window": (lambda c: {"sliding_window_size": 0}, Reason.SLIDING_WINDOW),
    "window-offsets": (lambda c: {"window_kv_offsets": c.qo_indptr}, Reason.SLIDING_WINDOW),
    "not-causal": (lambda c: {"is_causal": False}, Reason.NOT_CAUSAL),
    "lse": (lambda c: {"lse_extend": c.o_extend}, Reason.PARTIAL),
    "prefix-skipped": (lambda c: {"skip_prefix": True}, Reason.PARTIAL),
    "draft-skipped": (lambda c: {"skip_extend": True}, Reason.PARTIAL),
    "packed-prefix": (lambda c: {"identity_kv_indices": True}, Reason.PARTIAL),
    "no-scale": (lambda c: {"sm_scale": None}, Reason.SCALE),
    "tensor-descale": (lambda c: {"k_scale": torch.ones(1)}, Reason.SCALE),
    "infinite-descale": (lambda c: {"v_scale": float("inf")}, Reason.SCALE),
    "q-2d": (lambda c: {"q_extend": c.q_extend.flatten(1)}, Reason.Q_SHAPE),
    "q-strided": (lambda c: {"q_extend": strided(c.q_extend)}, Reason.Q_SHAPE),
    "q-half": (lambda c: {"q_extend": c.q_extend.half()}, Reason.Q_DTYPE),
    "k-other-dtype": (lambda c: {"k_extend": c.k_extend.to(torch.float8_e4m3fn)}, Reason.KV_DTYPE),
    "v-other-dtype": (lambda c: {"v_extend": c.v_extend.float()}, Reason.KV_DTYPE),
    "two-kv-heads": (lambda c: {"k_extend": c.k_extend.expand(-1, 2, -1)}, Reason.KV_SHAPE),
    "k-rows-missing": (lambda c: {"k_extend": c.k_extend[1:]}, Reason.KV_SHAPE),
    "v-strided": (lambda c: {"v_extend": strided(c.v_extend)}, Reason.KV_SHAPE),
    "too-many-heads": (lambda c: heads(c, 129), Reason.QUERY_HEADS),
    "out-narrow": (lambda c: {"o_extend": c.o_extend[..., :256]}, Reason.OUT),
    "out-half": (lambda c: {"o_extend": c.o_extend.half()}, Reason.OUT),
    "pool-4d": (lambda c: {"k_buffer": c.k_buffer[None]}, Reason.POOL_LAYOUT),
    "pool-narrow": (lambda c: {"k_buffer": c.k_buffer[..., :512]}, Reason.POOL_LAYOUT),
    "values-elsewhere": (lambda c: {"v_buffer": c.k_buffer.clone()[..., :512]}, Reason.POOL_LAYOUT),
    "values-later-columns": (lambda c: {"v_buffer": c.k_buffer[..., 64:]}, Reason.POOL_LAYOUT),
    "pool-half": (lambda c: pool(c, torch.float16), Reason.POOL_DTYPE),
    "pool-int8": (lambda c: pool(c, torch.int8), Reason.POOL_DTYPE),
    "kv-indptr-short": (lambda c: {"kv_indptr": c.kv_indptr[:-1]}, Reason.INDEX_LAYOUT),
    "qo-indptr-float": (lambda c: {"qo_indptr": c.qo_indptr.float()}, Reason.INDEX_LAYOUT),
    "qo-indptr-empty": (lambda c: {"qo_indptr": c.qo_indptr[:0]}, Reason.INDEX_LAYOUT),
    "indices-strided": (lambda c: {"kv_indices": strided(c.kv_indices)}, Reason.INDEX_LAYOUT),
    "indices-none": (lambda c: {"kv_indices": None}, Reason.INDEX_LAYOUT),
    "too-many-requests": (lambda c: {"qo_indptr": torch.arange(1026), "kv_indptr": torch.arange(1026)}, Reason.BATCH),
    "too-many-draft-tokens": (lambda c: {"max_len_extend": 257}, Reason.DRAFT_TOKENS),
    "no-draft-tokens": (lambda c: {"max_len_extend": None}, Reason.DRAFT_TOKENS),
    "mask-2d": (lambda c: {"custom_mask": c.custom_mask.view(8, -1)}, Reason.MASK_LAYOUT),
    "mask-bits": (lambda c: {"custom_mask": c.custom_mask.int()}, Reason.MASK_LAYOUT),
    "mask-strided": (lambda c: {"custom_mask": strided(c.custom_mask)}, Reason.MASK_LAYOUT),
    "mask-over-prefix": (lambda c: {"skip_prefix_custom_mask": False}, Reason.MASK_LAYOUT),
    "mask-without-offsets": (lambda c: {"mask_indptr": None}, Reason.MASK_LAYOUT),
    "mask-offsets-short": (lambda c: {"mask_indptr": c.mask_indptr[:1]}, Reason.MASK_LAYOUT),
    "mask-short": (lambda c: {"custom_mask": c.custom_mask[:63]}, Reason.MASK_SIZE),
    "mask-empty": (lambda c: {"custom_mask": c.custom_mask[:0]}, Reason.MASK_SIZE),
    "other-device": (lambda c: {"kv_indices": c.kv_indices.to("meta")}, Reason.DEVICE),
}


def heads(call: Call, count: int) -> dict[str, torch.Tensor]:
    q, out = call.q_extend, call.o_extend
    return {"q_extend": q[:, :1].repeat(1, count, 1), "o_extend": out[:, :1].repeat(1, count, 1)}


def pool(call: Call, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    keys = call.k_buffer.to(dtype)
    return {"k_buffer": keys, "v_buffer": keys[..., :512]}


# What is changed in a rig, and the reason for which forward_extend is then declined.
RIGS = {
    "not-mla": (lambda r: setattr(r.backend, "use_mla", False), Reason.NOT_MLA),
    "deterministic": (lambda r: setattr(r.backend, "enable_deterministic", True), Reason.DETERMINISTIC),
    "dcp": (lambda r: setattr(r.backend, "dcp_size", 2), Reason.DCP),
    "dllm-block": (lambda r: setattr(r.backend, "dllm_block_size", 4), Reason.DLLM),
    "dllm-attention": (lambda r: setattr(r.backend, "dllm_attention", object()), Reason.DLLM),
    "head-dim": (lambda r: setattr(r.layer, "qk_head_dim", 192), Reason.HEAD_DIM),
    "v-head-dim": (lambda r: setattr(r.layer, "v_head_dim", 128), Reason.HEAD_DIM),
    "kv-heads": (lambda r: setattr(r.layer, "tp_k_head_num", 4), Reason.KV_HEADS),
    "cross-attention": (lambda r: setattr(r.layer, "is_cross_attention", True), Reason.CROSS_ATTENTION),
    "encoder": (lambda r: setattr(r.layer, "attn_type", AttentionType.ENCODER_ONLY), Reason.NOT_CAUSAL),
    "bidirectional": (
        lambda r: setattr(r.layer, "attn_type", AttentionType.DECODER_BIDIRECTIONAL), Reason.NOT_CAUSAL
    ),
    "window": (lambda r: setattr(r.layer, "sliding_window_size", 64), Reason.SLIDING_WINDOW),
    "logit-cap": (lambda r: setattr(r.layer, "logit_cap", 30.0), Reason.LOGIT_CAP),
    "xai-temperature": (lambda r: setattr(r.layer, "xai_temperature_len", 16), Reason.XAI_TEMPERATURE),
    "unknown-layer": (lambda r: delattr(r.layer, "xai_temperature_len"), Reason.UNKNOWN),
}  # fmt: skip

ELSEWHERE = {Reason.STREAMS, Reason.BYPASSED, Reason.ALIGNMENT, Reason.LAYERS, Reason.LAUNCH_FAILED}


def test_every_reason_is_provoked() -> None:
    provoked = {reason for _, reason in (*CALLS.values(), *RIGS.values())}
    assert provoked | ELSEWHERE == set(Reason)


@pytest.fixture(scope="module")
def eligible() -> tuple[Call, eligibility.Limits]:
    """A call that SGLang made and that is ours, with the limits it was measured against."""
    from kdtree_verify.config import Device, from_environment
    from kdtree_verify.native import library

    rig = Rig()
    step, calls = rig.step(), []
    rig.backend.extend_attention_fwd = lambda *args, **kwargs: calls.append(Call(*args, **kwargs))
    rig.run(step)
    description = library.load(from_environment().library_dir, Device.CPU).description
    limits = eligibility.Limits.of(description, torch.device("cpu"))
    return calls[0], limits


def test_what_sglang_calls_is_eligible(eligible) -> None:
    assert eligibility.call_reason(*eligible) is None


@pytest.mark.parametrize("name", CALLS)
def test_call_is_declined(eligible, name) -> None:
    call, limits = eligible
    change, reason = CALLS[name]
    assert eligibility.call_reason(call._replace(**change(call)), limits) is reason


@pytest.mark.parametrize("name", ["q_extend", "k_extend", "v_extend", "o_extend"])
def test_rows_that_a_gpu_cannot_load_are_declined(eligible, name) -> None:
    call, limits = eligible
    on_gpu = eligibility.Limits(**{**vars(limits), "alignment": 16})
    assert eligibility.call_reason(call, on_gpu) is None
    good = getattr(call, name)
    shifted = good.new_zeros(good.numel() + 1)[1:].view(good.shape)
    assert eligibility.call_reason(call._replace(**{name: shifted}), on_gpu) is Reason.ALIGNMENT
    wide = good.new_zeros((*good.shape[:-1], good.shape[-1] + 4))[..., : good.shape[-1]]
    assert eligibility.call_reason(call._replace(**{name: wide}), on_gpu) is Reason.ALIGNMENT


@pytest.mark.parametrize("name", RIGS)
def test_forward_is_declined(arm, name) -> None:
    change, reason = RIGS[name]
    process = arm("on")
    rig = Rig()
    guard = rig.backend._kdtree_guard
    assert process.rank.examine(eligibility.forward_reason, rig.backend, rig.layer, None, None, None) is None
    change(rig)
    assert process.rank.examine(eligibility.forward_reason, rig.backend, rig.layer, None, None, None) is reason
    assert guard.rank is process.rank


# Changes with which stock still answers: its answer must come back, bit for bit, and the call be counted once.
ANSWERED = [
    ("on", "not-mla"),
    ("on", "logit-cap"),
    ("on", "xai-temperature"),
    ("on", "deterministic"),
    ("on", "dllm-block"),
    ("on", "bidirectional"),
    ("validate", "logit-cap"),
]


@pytest.mark.parametrize(("mode", "name"), ANSWERED)
def test_a_declined_call_is_stock_and_counted(arm, name, mode) -> None:
    change, reason = RIGS[name]
    rig = Rig()
    change(rig)
    step = rig.step()
    stock = rig.run(step)

    process = arm(mode)
    rig = Rig()
    change(rig)
    assert torch.equal(rig.run(rig.step()), stock)
    assert process.rank.records.declined(Model.TARGET) == {reason: 1}
    assert not any(figures.kernel_calls for figures in process.rank.records.layers())
    verdict = process.rank.verdict()
    assert verdict.state is State.NOT_SERVING
    assert verdict.reason == f"every verify call was declined: {reason}"


@pytest.mark.parametrize("mode", ["validate", "on"])
def test_a_call_that_never_reaches_the_attention_function(arm, mode) -> None:
    # What SGLang's split-KV verify kernels do where they run.
    def verify_elsewhere(*args, **kwargs):
        args[3].fill_(7)
        return True

    process = arm(mode)
    rig = Rig()
    rig.backend.use_verify_splitkv = True
    rig.backend.verify_splitkv_fwd = verify_elsewhere
    assert bool((rig.run(rig.step()) == 7).all())
    assert process.rank.records.declined(Model.TARGET) == {Reason.BYPASSED: 1}


def test_an_fp8_gather_is_declined(arm) -> None:
    # k = v = None with an fp8 pool: the gathered rows are fp8 while q is bf16, which stock's kernel takes on a GPU
    # only.
    process = arm("on")
    rig = Rig(fp8_pool=torch.float8_e4m3fn)
    step, stock_calls = rig.step(), []
    rig.run(step)
    step.k = step.v = None
    rig.backend._kdtree_guard.stock = lambda *args, **kwargs: stock_calls.append(args)
    rig.run(step)
    assert len(stock_calls) == 1
    assert process.rank.records.declined(Model.TARGET) == {Reason.KV_DTYPE: 1}
    assert process.rank.verdict().state is State.SERVING


@pytest.mark.parametrize("mode", ["validate", "on"])
def test_two_streams_that_would_share_the_workspace(arm, mode) -> None:
    rig = Rig()
    stock = rig.run(rig.step())
    rig = Rig()
    process = arm(mode)
    process.on_backend(rig.backend, SimpleNamespace(device="cpu", server_args=SimpleNamespace(enable_pdmux=True)))
    verdict = process.rank.verdict()
    assert (verdict.state, verdict.reason) == (State.NOT_SERVING, "no verify call of this model can be ours: streams")
    assert torch.equal(rig.run(rig.step()), stock)
    assert process.rank.records.declined(Model.TARGET) == {Reason.STREAMS: 1}
    assert not process.rank.records.layers()


def test_more_layers_than_records(arm) -> None:
    process = arm("on")
    rig = Rig()
    for layer in range(LAYER_SLOTS):
        assert process.rank.records.layer(Model.TARGET, 1 + layer)
    rig.run(rig.step())
    assert process.rank.records.declined(Model.TARGET) == {Reason.LAYERS: 1}


def test_a_graph_that_captured_a_decline(arm, monkeypatch) -> None:
    # A CPU captures nothing; the kernel says it does while one call is declined.
    process = arm("on")
    rig = Rig()
    rig.run(rig.step())
    assert process.rank.verdict().state is State.SERVING
    rig.layer.logit_cap = 30.0
    monkeypatch.setattr(process.rank.kernel, "capturing", lambda: True)
    rig.run(rig.step())
    monkeypatch.undo()
    rig.layer.logit_cap = 0.0
    rig.run(rig.step())
    verdict = process.rank.verdict()
    assert (verdict.state, verdict.reason) == (State.NOT_SERVING, "a captured graph runs stock: logit_cap")


def test_a_model_that_is_not_ours_is_named_before_its_first_call(arm) -> None:
    process = arm("on")
    rig = Rig()
    rig.backend.use_mla = False
    process.on_backend(rig.backend, rig.runner)
    verdict = process.rank.verdict()
    assert verdict.state is State.NOT_SERVING
    assert "not_mla" in verdict.reason
    rig.backend.use_mla, rig.backend.num_draft_tokens = True, None
    process.on_backend(rig.backend, rig.runner)
    assert "no speculative algorithm" in process.rank.verdict().reason
