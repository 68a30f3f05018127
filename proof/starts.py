"""The configurations that servers are started with: any two settings of this table meet in one of them.

What SGLang 0.5.23 refuses is left out: NGRAM trees of more than one branch with pages of more than one token; and an
EAGLE chain (top-k 1) of 60 tokens is 59 drafting steps, which nobody runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Algorithm = Literal["NGRAM", "EAGLE"]

HEADS = (8, 12, 16, 20)
DRAFTS = (8, 16, 60, 64)
ALGORITHMS: tuple[Algorithm, ...] = ("NGRAM", "EAGLE")
TOPKS = (1, 4, 8)
KV_DTYPES = ("auto", "fp8_e4m3", "fp8_e5m2")
PAGES = (1, 64)
GRAPHS = (True, False)

MODES = ("off", "validate", "on")
AGAIN = "off-again"
"""Stock once more."""
EXACT = "exact"
"""Stock, but its verify attention in float32 (proof/exact.py)."""

GRAPH_BATCH = 4
MAX_REQUESTS = 2 * GRAPH_BATCH
"""At once, so that some batches are larger than what is captured."""


@dataclass(frozen=True)
class Start:
    """One configuration.

    Attributes:
        heads: Attention heads of the model.
        drafts: Tokens of a tree.
        algorithm: Who drafts.
        topk: Branches of a node.
        kv_dtype: --kv-cache-dtype; "auto" is bf16.
        page: --page-size.
        graphs: Whether verify runs inside CUDA graphs.
        tp: Ranks, a GPU each.
        twice: Stock serves it twice, so that accept lengths can be compared.
        graph_batch: The largest batch that is captured; larger ones run eagerly.
    """

    heads: int
    drafts: int
    algorithm: Algorithm
    topk: int
    kv_dtype: str = "auto"
    page: int = 1
    graphs: bool = True
    tp: int = 1
    twice: bool = False
    graph_batch: int = GRAPH_BATCH

    @property
    def modes(self) -> tuple[str, ...]:
        """Of its servers: with an fp8 cache also one that tells whether stock or the kernel rounds."""
        return (*MODES, *([AGAIN] if self.twice else []), *([EXACT] if self.fp8 else []))

    @property
    def fp8(self) -> bool:
        return self.kv_dtype.startswith("fp8")

    @property
    def name(self) -> str:
        parts = [f"h{self.heads}", f"{self.algorithm.lower()}{self.topk}", f"t{self.drafts}", self.kv_dtype]
        parts += [f"page{self.page}", "graphs" if self.graphs else "eager"]
        return "-".join([*parts, *([f"tp{self.tp}"] if self.tp > 1 else [])])

    @property
    def allowed(self) -> bool:
        """Whether SGLang takes it, and somebody would run it."""
        if self.algorithm == "NGRAM":
            return self.topk == 1 or self.page == 1
        return self.topk > 1 or self.drafts <= 16

    def arguments(self) -> list[str]:
        """The server's arguments for it."""
        kv, page = ["--kv-cache-dtype", self.kv_dtype], ["--page-size", str(self.page)]
        graphs = ["--cuda-graph-max-bs-decode", str(self.graph_batch)] if self.graphs else ["--disable-cuda-graph"]
        return [*self._speculation(), *kv, *page, *graphs, "--tp-size", str(self.tp)]

    def _speculation(self) -> list[str]:
        common = ["--speculative-algorithm", self.algorithm, "--speculative-num-draft-tokens", str(self.drafts)]
        if self.algorithm == "NGRAM":
            breadth = str(self.topk)
            return [
                *(*common, "--speculative-ngram-max-bfs-breadth", breadth),
                *("--speculative-ngram-min-bfs-breadth", "1"),
            ]
        return [*common, "--speculative-eagle-topk", str(self.topk), "--speculative-num-steps", str(self.steps)]

    @property
    def steps(self) -> int:
        """EAGLE's drafting steps, as few as give the tree its tokens: topk at first, topk x topk in each later one."""
        if self.topk == 1:
            return self.drafts - 1
        return 1 + -(-max(self.drafts - 1 - self.topk, 0) // self.topk**2)


STARTS = (
    Start(8, 8, "EAGLE", 4),
    Start(8, 16, "NGRAM", 4, twice=True),
    Start(8, 60, "NGRAM", 1, "fp8_e5m2", 64),
    Start(8, 64, "NGRAM", 8, "fp8_e4m3", graphs=False),
    Start(12, 8, "NGRAM", 8, "fp8_e5m2", graphs=False),
    Start(12, 16, "NGRAM", 1, "fp8_e4m3", graphs=False),
    Start(12, 60, "EAGLE", 8, page=64),
    Start(12, 64, "EAGLE", 4, "fp8_e4m3", twice=True),
    Start(16, 8, "EAGLE", 4, page=64, graphs=False),
    Start(16, 16, "EAGLE", 1, "fp8_e5m2", 64),
    Start(16, 60, "NGRAM", 8, "fp8_e4m3", graphs=False),
    Start(16, 64, "EAGLE", 4, "fp8_e5m2", 64),
    Start(20, 8, "NGRAM", 1, "fp8_e4m3", 64),
    Start(20, 16, "EAGLE", 8, "fp8_e4m3", 64, graphs=False),
    Start(20, 60, "NGRAM", 4, "fp8_e5m2", graphs=False),
    Start(20, 64, "NGRAM", 1, page=64, graphs=False),
)

TWO_RANKS = (Start(16, 16, "NGRAM", 4, tp=2), Start(16, 8, "EAGLE", 4, "fp8_e4m3", tp=2))
"""For a machine with two GPUs."""
