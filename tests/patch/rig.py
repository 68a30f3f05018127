"""A real TritonAttnBackend on the CPU, driven as SGLang's runners drive it for TARGET_VERIFY with absorbed MLA.

Built on the test kit that SGLang ships (a ModelRunner without a model). Import after TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kdtree_cpu_shim import triton_interpreter

triton_interpreter.install()

from sglang.srt.layers.attention.triton_backend import TritonAttnBackend  # noqa: E402
from sglang.srt.layers.radix_attention import RadixAttention  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import (  # noqa: E402
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context  # noqa: E402
from sglang.srt.runtime_context import get_parallel  # noqa: E402
from sglang.srt.speculative.eagle_info import EagleVerifyInput  # noqa: E402
from sglang.srt.speculative.ngram_info import NgramVerifyInput  # noqa: E402
from sglang.test.kits.attention_unittest.attention_methods.mla_attention import (  # noqa: E402
    MLAAttentionCase,
    MockMLAModelRunner,
    TinyMLAModelConfig,
)

LATENT, ROPE, DIM = 512, 64, 576
CONTEXT = 256

# The kit publishes no ranks; the backend asks for this one.
get_parallel().override_permanently(attn_dcp_rank=0)


@dataclass
class Step:
    """Inputs of one verify step: q [tokens, heads, 576], k [tokens, 1, 576], v [tokens, 1, 512]."""

    q: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None
    out_cache_loc: torch.Tensor
    mask: torch.Tensor | None
    visible: list[torch.Tensor]
    """Per request the tree: bool [T, T]."""


class Rig:
    """One backend, one MLA layer and a filled KV pool.

    Args:
        prefixes: Prefix length of each request.
        draft_tokens: T.
        heads: Query heads.
        graph_batch: Requests of the captured metadata, real ones first; None runs eagerly.
        spec: "eagle" or "ngram": whose verify input carries the mask.
        fp8_pool: The pool's dtype with --kv-cache-dtype fp8_e4m3 or fp8_e5m2; None where it is `dtype`.
        descales: (k_scale, v_scale) of a checkpoint that has them.
    """

    def __init__(
        self,
        prefixes: tuple[int, ...] = (33, 70),
        draft_tokens: int = 8,
        heads: int = 4,
        *,
        graph_batch: int | None = None,
        spec: str = "eagle",
        dtype: torch.dtype = torch.bfloat16,
        fp8_pool: torch.dtype | None = None,
        descales: tuple[float, float] | None = None,
        page_size: int = 1,
        latent: int = LATENT,
        rope: int = ROPE,
        seed: int = 0,
    ):
        self.prefixes, self.draft_tokens, self.heads = prefixes, draft_tokens, heads
        self.graph_batch, self.spec, self.dtype = graph_batch, spec, dtype
        self.latent, self.dim, self.descales = latent, latent + rope, descales
        self.random = torch.Generator().manual_seed(seed)
        case = MLAAttentionCase(
            name="rig",
            backend="triton",
            forward_mode=ForwardMode.TARGET_VERIFY,
            num_heads=heads,
            page_size=page_size,
            prefix_lens=prefixes,
            extend_lens=(draft_tokens,) * len(prefixes),
        )
        config = TinyMLAModelConfig(
            num_heads=heads, kv_lora_rank=latent, qk_rope_head_dim=rope, hidden_size=64, context_len=CONTEXT
        )
        self.runner = MockMLAModelRunner(
            case=case,
            model_config=config,
            dtype=dtype,
            device="cpu",
            max_context_len=CONTEXT,
            kv_lora_rank=latent,
            qk_rope_head_dim=rope,
            runner_batch_size=(graph_batch or len(prefixes)) + 1,
            fp8_kv_cache=fp8_pool is not None,
        )
        if fp8_pool is not None:  # the kit knows e4m3 only; both are stored as bytes
            self.runner.kv_cache_dtype = self.runner.token_to_kv_pool.dtype = fp8_pool
            self.runner.kv_cache_dtype_str = "fp8_" + str(fp8_pool).removeprefix("torch.float8_")[:4]
        self.layer = RadixAttention(
            num_heads=heads, head_dim=self.dim, scaling=192**-0.5, num_kv_heads=1, layer_id=0, v_head_dim=latent
        )
        if descales is not None:
            self.layer.k_scale_float, self.layer.v_scale_float = descales
            self.layer.k_scale, self.layer.v_scale = (torch.tensor(scale) for scale in descales)
        self.pool = self.runner.token_to_kv_pool
        self._fill_pool(page_size)
        self.backend = TritonAttnBackend(self.runner)

    def step(self) -> Step:
        """Random inputs of one step, tree masks included."""
        tokens = len(self.prefixes) * self.draft_tokens
        visible = [self._tree() for _ in self.prefixes]
        k = self._normal(tokens, 1, self.dim).to(self.dtype)
        return Step(
            q=self._normal(tokens, self.heads, self.dim).to(self.dtype),
            k=k,
            v=k[..., : self.latent].clone(),
            out_cache_loc=torch.cat(
                [
                    self.runner.req_to_token_pool.req_to_token[1 + i, p : p + self.draft_tokens]
                    for i, p in enumerate(self.prefixes)
                ]
            ).long(),
            mask=torch.cat(
                [
                    torch.cat([torch.ones(self.draft_tokens, p, dtype=torch.bool), tree], 1).flatten()
                    for p, tree in zip(self.prefixes, visible, strict=True)
                ]
            ),
            visible=visible,
        )

    def run(self, step: Step, **keywords: Any) -> torch.Tensor:
        """The layer's output for the real requests, [tokens, heads, 512]; keywords go to forward_extend."""
        batch = self.prepare(step)
        with torch.no_grad(), forward_context(ForwardContext(attn_backend=self.backend)):
            padded = [self._pad(x, batch.batch_size) for x in (step.q, step.k, step.v)]
            out = self.layer(*padded, batch, **keywords)
        return out.view(-1, self.heads, self.latent)[: len(step.q)]

    def prepare(self, step: Step) -> ForwardBatch:
        """The step's ForwardBatch, with the backend's metadata set: eager, or as a replay sets it."""
        count = len(self.prefixes)
        if self.graph_batch is None:
            batch = self._batch(count, self.prefixes, step.out_cache_loc, step.mask, 1 + torch.arange(count))
            self.backend.init_forward_metadata(batch)
            return batch
        total = self.graph_batch
        tokens = total * self.draft_tokens
        self.backend.init_cuda_graph_state(total, tokens)
        ones = torch.ones(total * (1 + self.draft_tokens) * self.draft_tokens, dtype=torch.bool)
        captured = self._batch(
            total,
            (1,) * total,
            torch.zeros(tokens, dtype=torch.int64),
            None if step.mask is None else ones,
            torch.zeros(total, dtype=torch.int64),
        )
        self.backend.init_forward_metadata_out_graph(captured, in_capture=True)
        padding = total - count
        batch = self._batch(
            total,
            (*self.prefixes, *(1,) * padding),
            self._pad(step.out_cache_loc, total),
            step.mask,
            torch.cat([1 + torch.arange(count), torch.zeros(padding, dtype=torch.int64)]),
        )
        self.backend.init_forward_metadata_out_graph(batch)
        return batch

    def reference(self, step: Step) -> torch.Tensor:
        """float64 attention of the step, [tokens, heads, 512], read from the pool and the draft rows."""
        keys = self.pool.get_key_buffer(0).double()[:, 0]
        table = self.runner.req_to_token_pool.req_to_token
        results = []
        for i, prefix in enumerate(self.prefixes):
            rows = slice(i * self.draft_tokens, (i + 1) * self.draft_tokens)
            own = step.k[rows, 0].double()
            rows_of_pool = keys[table[1 + i, :prefix].long()]
            k_scale, v_scale = self.descales or (1.0, 1.0)
            key = torch.cat([rows_of_pool * k_scale, own])
            value = torch.cat([rows_of_pool * v_scale, own])[:, : self.latent]
            score = torch.einsum("thd,nd->thn", step.q[rows].double(), key) * self.layer.scaling
            seen = torch.cat([torch.ones(self.draft_tokens, prefix, dtype=torch.bool), step.visible[i]], 1)
            score = score.masked_fill(~seen[:, None], float("-inf"))
            results.append(score.softmax(-1) @ value)
        return torch.cat(results)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.random)

    def _tree(self) -> torch.Tensor:
        count = self.draft_tokens
        seen = torch.eye(count, dtype=torch.bool)
        for node in range(1, count):
            seen[node] |= seen[int(torch.randint(0, node, (1,), generator=self.random))]
        return seen

    def _fill_pool(self, page_size: int) -> None:
        buffer = self.pool.kv_buffer[0]
        buffer.copy_(self._normal(*buffer.shape).to(self.pool.dtype).view(buffer.dtype))
        # Every request on pages of its own, in no order. Row 0 of the table and slot 0 are padding's.
        table = self.runner.req_to_token_pool.req_to_token
        pages_each = -(-CONTEXT // page_size)
        order = torch.randperm(len(self.prefixes) * pages_each, generator=self.random) + 1
        for i in range(len(self.prefixes)):
            pages = order[i * pages_each : (i + 1) * pages_each]
            slots = (pages[:, None] * page_size + torch.arange(page_size)).flatten()[:CONTEXT]
            table[1 + i, :CONTEXT] = slots.to(table.dtype)

    def _pad(self, tensor: torch.Tensor | None, batch_size: int) -> torch.Tensor | None:
        if tensor is None:
            return None
        missing = batch_size * self.draft_tokens - len(tensor)
        return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))]) if missing else tensor

    def _batch(
        self,
        size: int,
        lengths: tuple[int, ...],
        out_cache_loc: torch.Tensor,
        mask: torch.Tensor | None,
        pool_indices: torch.Tensor,
    ) -> ForwardBatch:
        tokens = size * self.draft_tokens
        batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=size,
            input_ids=torch.zeros(tokens, dtype=torch.int64),
            req_pool_indices=pool_indices,
            seq_lens=torch.tensor(lengths),
            seq_lens_cpu=torch.tensor(lengths),
            seq_lens_sum=sum(lengths),
            out_cache_loc=out_cache_loc,
            positions=torch.zeros(tokens, dtype=torch.int64),
        )
        translator = self.runner.kv_index_translator
        if hasattr(translator, "bind_own_plan"):  # 0.5.23; 0.5.21 plans nothing
            translator.bind_own_plan(batch)
        batch.spec_info = self._verify_input(mask, tokens)
        return batch

    def _verify_input(self, mask: torch.Tensor | None, tokens: int) -> Any:
        if self.spec == "ngram":
            return NgramVerifyInput(
                draft_token=torch.zeros(tokens), custom_mask=mask, draft_token_num=self.draft_tokens
            )
        return EagleVerifyInput(
            draft_token=None,
            custom_mask=mask,
            positions=None,
            retrieve_index=None,
            retrieve_next_token=None,
            retrieve_next_sibling=None,
            retrieve_cum_len=None,
            spec_steps=3,
            topk=4,
            draft_token_num=self.draft_tokens,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=None,
            seq_lens_cpu=None,
        )
