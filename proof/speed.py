"""Speed: decode tokens a second and time of a verify step, off against on and validate, by context and batch.

One server at a time, nothing else on the GPU. A cell is a batch of prompts of one length; what is timed begins when
each of them has its first token and ends when the first of them is done, so that the whole batch decodes all along.
Steps are tokens by SGLang's accept length.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from demo import conversation
from demo import model as maker

from . import dialogue
from .launches import GpuLaunch
from .server import started
from .starts import Start

CONTEXTS = (1024, 8192, 32_768, 65_536)
BATCHES = (1, 4, 16)
START = Start(16, 16, "NGRAM", 4, graph_batch=max(BATCHES))
WIDTH = maker.Size(hidden=2048, q_rank=768, heads=START.heads, dense=10_944, context=131_072, sharpness=5.0)
"""DeepSeek-V2-Lite's width and dense layers, but for its queries' latent, which is GLM-4.7-Flash's."""
LAYERS = (2, 4)
"""Of the two models whose difference is what a layer takes."""
FULL_LAYERS = 27
"""DeepSeek-V2-Lite's: its other layers are of experts, which are taken to be as fast."""
TOKENS = 96
WARMING_TOKENS = 16


@dataclass(frozen=True)
class Cell:
    """Prompts of `context` tokens, `batch` of them."""

    context: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.context // 1024}K x {self.batch}"

    def request(self, tokens: int) -> dialogue.Request:
        return dialogue.Request(f"speed-{self.context}-{self.batch}", (self.context,) * self.batch, tokens)


CELLS = tuple(Cell(context, batch) for context in CONTEXTS for batch in BATCHES)


@dataclass(frozen=True)
class Timed:
    """What a server took for a cell.

    Attributes:
        tokens_a_second: Of the whole batch.
        step_ms: Of a verify step of the batch, drafting and sampling included.
        accept_length: Tokens of a step and request.
    """

    tokens_a_second: float
    step_ms: float
    accept_length: float


@dataclass
class Progress:
    """One prompt's answer as it comes: tokens so far by time, and verify steps."""

    seen: list[tuple[float, int]] = field(default_factory=list)
    steps: int = 0

    def add(self, at: float, tokens: int, steps: int) -> None:
        self.seen.append((at, tokens))
        self.steps = steps

    def tokens_at(self, at: float) -> int:
        return max((tokens for seen, tokens in self.seen if seen <= at), default=0)


def time_cell(url: str, cell: Cell, tokens: int = TOKENS) -> Timed:
    """Asks once to warm, then once to time. Raises OSError, and ValueError where there was nothing to time."""
    for _ in _pieces(url, cell.request(WARMING_TOKENS)):
        pass
    answers = [Progress() for _ in range(cell.batch)]
    for index, meta in _pieces(url, cell.request(tokens)):
        answers[index].add(time.monotonic(), int(meta["completion_tokens"]), int(meta.get("spec_verify_ct") or 0))
    return timed(answers)


def timed(answers: Sequence[Progress]) -> Timed:
    """Of the time in which all of them were being answered."""
    if not all(answer.seen for answer in answers):
        raise ValueError("a prompt was not answered")
    begun = max(answer.seen[0][0] for answer in answers)
    ended = min(answer.seen[-1][0] for answer in answers)
    made = sum(answer.tokens_at(ended) - answer.tokens_at(begun) for answer in answers)
    if ended <= begun or made <= 0:
        raise ValueError("no time in which the whole batch was decoded: more tokens are needed")
    steps = sum(answer.steps for answer in answers)
    accept = sum(answer.seen[-1][1] for answer in answers) / steps if steps else 1.0
    seconds = ended - begun
    return Timed(made / seconds, 1e3 * seconds / (made / len(answers) / accept), accept)


def _pieces(url: str, request: dialogue.Request) -> Iterator[tuple[int, dict[str, Any]]]:
    """The stream's pieces: which prompt's, and its meta_info."""
    with conversation.generate(url, request.body() | {"stream": True}) as response:
        for line in response:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                piece = json.loads(line[6:])
                yield int(piece.get("index", 0)), piece["meta_info"]


SERVERS = (*((mode, LAYERS[0]) for mode in ("off", "on", "validate")), *((mode, LAYERS[1]) for mode in ("off", "on")))
"""Modes and layers, in the order in which they are measured."""


def cells_of(layers: int) -> tuple[Cell, ...]:
    """The deeper model's are of one request: what a layer takes is wanted of it."""
    return CELLS if layers == LAYERS[0] else tuple(cell for cell in CELLS if cell.batch == 1)


def measure(mode: str, layers: int, folder: Path, deadline: float) -> dict[str, Any]:
    """One server's cells by name; none begins after `deadline`, of time.monotonic(). Raises as proof.server does."""
    model, cells = folder / f"model-{layers}", cells_of(layers)
    maker.write_once(model, replace(WIDTH, layers=layers))
    pool = max(cell.context * cell.batch for cell in cells) + max(BATCHES) * 1024
    own = folder / f"server-{mode}-{layers}"
    launch = GpuLaunch(START, mode, model, own, context=max(CONTEXTS) + 1024, pool_tokens=pool)
    found: dict[str, Any] = {}
    with started(launch) as server:
        server.wait_ready()
        for cell in cells:
            if time.monotonic() > deadline:
                break
            found[cell.name] = asdict(time_cell(server.url, cell))
    return found


def full_model_ms(shallow_ms: float, deep_ms: float) -> float:
    """An estimate of the full model's step from those of LAYERS: the shallow one's, and each further layer's time."""
    layer = (deep_ms - shallow_ms) / (LAYERS[1] - LAYERS[0])
    return shallow_ms + layer * (FULL_LAYERS - LAYERS[0])


Times = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By server ("off-2") and cell: a Timed's fields."""


def table(times: Times) -> list[str]:
    """The cells in Markdown: stock, the kernel, validate; and the full model, estimated, for one request."""
    shallow, deep = LAYERS
    lines = [
        "| context x requests | tokens/s, off | on | on / off | validate / off | ms a step, off | on | full model |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in CELLS:
        off, on, validate = (times.get(f"{mode}-{shallow}", {}).get(cell.name) for mode in ("off", "on", "validate"))
        if off is None or on is None:
            continue
        rate = "tokens_a_second"
        row = [f"{off[rate]:.0f}", f"{on[rate]:.0f}", f"{on[rate] / off[rate]:.2f}"]
        row += [f"{validate[rate] / off[rate]:.2f}" if validate else ""]
        row += [f"{off['step_ms']:.2f}", f"{on['step_ms']:.2f}", _estimated(times, cell, shallow, deep)]
        lines.append(f"| {cell.name} | {' | '.join(row)} |")
    return lines


def _estimated(times: Times, cell: Cell, shallow: int, deep: int) -> str:
    steps = {}
    for mode in ("off", "on"):
        few, more = (times.get(f"{mode}-{layers}", {}).get(cell.name) for layers in (shallow, deep))
        if few is None or more is None:
            return ""
        steps[mode] = full_model_ms(few["step_ms"], more["step_ms"])
    return f"{steps['off'] / steps['on']:.2f}"
