"""Runs SGLang's own attention on the CPU and records every call of extend_attention_fwd with its output.

    TRITON_INTERPRET=1 python sglang_recorder.py OUTPUT

A process of its own for each SGLang version: which interpreter runs is decided when a kernel is decorated. Two
sources of calls:
  - the real Triton kernel, called with the calls of cases.py;
  - the real TritonAttnBackend.forward_extend in TARGET_VERIFY, with the mock runner of SGLang's own attention
    test kit (its pools, index translation and metadata are the real ones), eager and as graph replay.
OUTPUT is a list of {"name", "call": the arguments by name, "stock": o_extend after the call}; the last line printed
is SGLang's version.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import torch

from cases import Case, make_call, tree_mask, tree_parents
from kdtree_cpu_shim import triton_interpreter
from kdtree_verify.native.abi import QK_DIM, V_DIM
from kdtree_verify.native.call import Call
from sglang_cases import BACKEND_CASES, KERNEL_CASES, BackendCase

triton_interpreter.install()

from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd  # noqa: E402
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend  # noqa: E402
from sglang.srt.layers.radix_attention import RadixAttention  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode  # noqa: E402
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context  # noqa: E402
from sglang.srt.runtime_context import get_parallel  # noqa: E402
from sglang.srt.speculative.eagle_info import EagleVerifyInput  # noqa: E402
from sglang.srt.speculative.ngram_info import NgramVerifyInput  # noqa: E402
from sglang.test.kits.attention_unittest.attention_methods.mla_attention import (  # noqa: E402
    MLAAttentionCase,
    MockMLAModelRunner,
    TinyMLAModelConfig,
)

MAX_CONTEXT = 320


class Recorder:
    """Stands before extend_attention_fwd; keeps each call's arguments as they were before it ran."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.name = ""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        call = Call(*args, **kwargs)
        # k_buffer and v_buffer share memory; a copy of the first stands for both.
        kept = {
            name: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for name, value in call._asdict().items()
            if name != "v_buffer"
        }
        shared = call.k_buffer.data_ptr() == call.v_buffer.data_ptr()
        extend_attention_fwd(*args, **kwargs)
        stock = call.o_extend.detach().clone()
        self.records.append({"name": self.name, "call": kept, "stock": stock, "v_in_k_buffer": shared})


def run_kernel(recorder: Recorder, name: str, case: Case) -> None:
    recorder.name = f"kernel: {name}"
    recorder(*make_call(case, seed=len(name)))


def run_backend(recorder: Recorder, name: str, case: BackendCase) -> None:
    recorder.name = f"backend: {name}"
    generator = torch.Generator().manual_seed(len(name))
    batch = case.graph_batch or len(case.prefixes)
    runner = _runner(case, batch)
    backend = TritonAttnBackend(runner)
    backend.extend_attention_fwd = recorder
    layer = RadixAttention(
        num_heads=case.heads, head_dim=QK_DIM, scaling=192**-0.5, num_kv_heads=1, layer_id=0, v_head_dim=V_DIM
    )
    if case.scale is not None:
        layer.k_scale = layer.v_scale = torch.nn.Parameter(torch.tensor(case.scale), requires_grad=False)
        layer.k_scale_float = layer.v_scale_float = case.scale

    slots = _scatter_slots(runner, case, generator)
    pool = runner.token_to_kv_pool
    filled = torch.randn(pool.kv_buffer[0].shape, generator=generator) / (case.scale or 1.0)
    pool.kv_buffer[0].copy_(filled.to(pool.dtype).view(pool.store_dtype))

    padding = batch - len(case.prefixes)
    tokens = len(case.prefixes) * case.drafts

    def rows(*shape: int) -> torch.Tensor:  # padded requests have stale numbers
        return torch.randn(tokens + padding * case.drafts, *shape, generator=generator).to(case.dtype)

    q, k = rows(case.heads, QK_DIM), rows(1, QK_DIM)
    v = k[..., :V_DIM].clone()
    locations = torch.cat([slots[b, p : p + case.drafts] for b, p in enumerate(case.prefixes, 1)]).long()
    mask = torch.cat([_mask_block(prefix, case.drafts, generator) for prefix in case.prefixes])
    if case.from_pool:
        pool.kv_buffer[0][locations] = k.to(pool.dtype)
        k = v = None
    with torch.no_grad(), forward_context(ForwardContext(attn_backend=backend)):
        if case.graph_batch is None:
            batch_now = _forward_batch(runner, case, list(case.prefixes), locations, mask, torch.arange(1, batch + 1))
            backend.init_forward_metadata(batch_now)
        else:
            batch_now = _replay(runner, backend, case, padding, locations, mask)
        layer(q, k, v, batch_now, save_kv_cache=not case.from_pool)


def _mask_block(prefix: int, drafts: int, generator: torch.Generator) -> torch.Tensor:
    visible = tree_mask(tree_parents(drafts, generator))
    return torch.cat([torch.ones(drafts, prefix, dtype=torch.bool), visible], 1).flatten()


def _runner(case: BackendCase, batch: int) -> MockMLAModelRunner:
    config = TinyMLAModelConfig(
        num_heads=case.heads,
        kv_lora_rank=V_DIM,
        qk_rope_head_dim=QK_DIM - V_DIM,
        hidden_size=64,
        context_len=MAX_CONTEXT,
    )
    kit_case = MLAAttentionCase(
        name="tree verify",
        backend="triton",
        forward_mode=ForwardMode.TARGET_VERIFY,
        num_heads=case.heads,
        page_size=case.page_size,
        prefix_lens=case.prefixes,
        extend_lens=(case.drafts,) * len(case.prefixes),
    )
    return MockMLAModelRunner(
        case=kit_case,
        model_config=config,
        dtype=case.dtype,
        device="cpu",
        max_context_len=MAX_CONTEXT,
        kv_lora_rank=V_DIM,
        qk_rope_head_dim=QK_DIM - V_DIM,
        runner_batch_size=batch,
        fp8_kv_cache=case.fp8_pool,
    )


def _scatter_slots(runner: MockMLAModelRunner, case: BackendCase, generator: torch.Generator) -> torch.Tensor:
    """Gives each request pages from anywhere in the pool. Request rows begin at 1, pages too: row 0 and page 0 are
    what padded requests use. Returns [row, position] slots."""
    table, page = runner.req_to_token_pool.req_to_token, runner.page_size
    order = torch.randperm(runner.token_to_kv_pool.size // page - 1, generator=generator) + 1
    needed = -(-(max(case.prefixes) + case.drafts) // page)
    for b in range(len(case.prefixes)):
        pages = order[b * needed : (b + 1) * needed]
        table[b + 1, : needed * page] = (pages[:, None] * page + torch.arange(page)).flatten().to(table.dtype)
    return table


def _forward_batch(
    runner: MockMLAModelRunner,
    case: BackendCase,
    lengths: list[int],
    locations: torch.Tensor,
    mask: torch.Tensor,
    pool_rows: torch.Tensor,
) -> ForwardBatch:
    batch, tokens = len(lengths), len(lengths) * case.drafts
    result = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=batch,
        input_ids=torch.zeros(tokens, dtype=torch.int64),
        req_pool_indices=pool_rows,
        seq_lens=torch.tensor(lengths),
        seq_lens_cpu=torch.tensor(lengths),
        seq_lens_sum=sum(lengths),
        out_cache_loc=locations,
        positions=torch.zeros(tokens, dtype=torch.int64),
    )
    if hasattr(runner.kv_index_translator, "bind_own_plan"):  # 0.5.21 has no plan to bind
        runner.kv_index_translator.bind_own_plan(result)
    if case.spec == "ngram":
        result.spec_info = NgramVerifyInput(
            draft_token=torch.zeros(tokens), custom_mask=mask, draft_token_num=case.drafts
        )
    else:
        result.spec_info = EagleVerifyInput(
            draft_token=None,
            custom_mask=mask,
            positions=None,
            retrieve_index=None,
            retrieve_next_token=None,
            retrieve_next_sibling=None,
            retrieve_cum_len=None,
            spec_steps=3,
            topk=4,
            draft_token_num=case.drafts,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=None,
            seq_lens_cpu=None,
        )
    return result


def _replay(
    runner: MockMLAModelRunner,
    backend: TritonAttnBackend,
    case: BackendCase,
    padding: int,
    locations: torch.Tensor,
    mask: torch.Tensor,
) -> ForwardBatch:
    """What the graph runner does around a capture and a replay, with no graph in between."""
    batch = len(case.prefixes) + padding
    backend.init_cuda_graph_state(batch, batch * case.drafts)
    zeros = torch.zeros(batch, dtype=torch.int64)
    captured_mask = torch.ones(batch * (1 + case.drafts) * case.drafts, dtype=torch.bool)
    capture = _forward_batch(
        runner, case, [1] * batch, torch.zeros(batch * case.drafts, dtype=torch.int64), captured_mask, zeros
    )
    backend.init_forward_metadata_out_graph(capture, in_capture=True)
    captured = backend.forward_metadata
    replay = _forward_batch(
        runner,
        case,
        [*case.prefixes, *[1] * padding],
        torch.cat([locations, torch.zeros(padding * case.drafts, dtype=torch.int64)]),
        mask,
        torch.cat([torch.arange(1, len(case.prefixes) + 1), zeros[:padding]]),
    )
    backend.init_forward_metadata_out_graph(replay)
    assert backend.forward_metadata is captured, "replay refills the captured buffers"
    return replay


def main() -> None:
    get_parallel().override_permanently(attn_dcp_rank=0)
    recorder = Recorder()
    for name, case in KERNEL_CASES.items():
        run_kernel(recorder, name, case)
    for name, backend_case in BACKEND_CASES.items():
        run_backend(recorder, name, backend_case)
    torch.save(recorder.records, sys.argv[1])
    print(version("sglang"))


if __name__ == "__main__":
    main()
