"""Speed: decode tokens a second and time of a verify step, off against on and validate, by context and batch.

One server is asked at a time, the others wait. A cell is a batch of prompts of one length; what is timed begins when
each of them has its first token and ends when the first of them is done, so that the whole batch decodes all along.
A step's time is the median between the pieces of an answer, so that a hiccup of the server or of this process is no
part of it. Alone, an answer has a piece for each step; a batch's come less often, their steps are tokens by accept
length.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from demo import conversation
from demo import model as maker

from . import dialogue
from .launches import GpuLaunch
from .server import Ended, Server, started
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
TOKENS = 768
WARMING_TOKENS = 16
BATCH_INTERVAL = 16
"""Tokens of a piece of a batch's answers: one for each step of 16 keeps the server's Python busier than the GPU."""


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
        tokens_a_second: Of the whole batch, hiccups and all.
        step_ms: Of a verify step of the batch, drafting and sampling included; the median.
        accept_length: Tokens of a step and request.
    """

    tokens_a_second: float
    step_ms: float
    accept_length: float


@dataclass
class Progress:
    """One prompt's answer as it comes: tokens so far by time; at its end SGLang's count of verify steps."""

    seen: list[tuple[float, int]] = field(default_factory=list)
    steps: int = 0

    def add(self, at: float, tokens: int, steps: int) -> None:
        self.seen.append((at, tokens))
        self.steps = steps

    def tokens_at(self, at: float) -> int:
        return max((tokens for seen, tokens in self.seen if seen <= at), default=0)

    def gaps(self, begun: float, ended: float) -> Iterator[tuple[float, int]]:
        """Seconds and tokens from one piece to the next within that time."""
        within = [(at, tokens) for at, tokens in self.seen if begun <= at <= ended]
        for (before, fewer), (at, tokens) in itertools.pairwise(within):
            if tokens > fewer:
                yield at - before, tokens - fewer


def time_cell(url: str, cell: Cell, tokens: int = TOKENS) -> Timed:
    """Asks once to warm, then once to time. Raises OSError, and ValueError where there was nothing to time."""
    for _ in pieces(url, cell.request(WARMING_TOKENS)):
        pass
    answers = [Progress() for _ in range(cell.batch)]
    for index, meta in pieces(url, cell.request(tokens)):
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
    if not steps:
        raise ValueError("SGLang counted no verify steps")
    accept = sum(answer.seen[-1][1] for answer in answers) / steps
    gaps = [gap for answer in answers for gap in answer.gaps(begun, ended)]
    step = statistics.median(s if len(answers) == 1 else s * accept / tokens for s, tokens in gaps)
    return Timed(made / (ended - begun), 1e3 * step, accept)


def pieces(url: str, request: dialogue.Request) -> Iterator[tuple[int, dict[str, Any]]]:
    """The stream's pieces as they come: which prompt's, and its meta_info."""
    body = request.body() | {"stream": True}
    body["sampling_params"]["stream_interval"] = 1 if len(request.lengths) == 1 else BATCH_INTERVAL
    with conversation.generate(url, body) as response:
        for line in response:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                piece = json.loads(line[6:])
                yield int(piece.get("index", 0)), piece["meta_info"]


SERVERS = (*((mode, LAYERS[0]) for mode in ("off", "on", "validate")), *((mode, LAYERS[1]) for mode in ("off", "on")))
"""Modes and layers, in the order in which a cell is measured."""


def cells_of(layers: int) -> tuple[Cell, ...]:
    """The deeper model's are of one request: what a layer takes is wanted of it."""
    return CELLS if layers == LAYERS[0] else tuple(cell for cell in CELLS if cell.batch == 1)


def name_of(mode: str, layers: int) -> str:
    return f"{mode}-{layers}"


def left(times: Times) -> list[tuple[str, Cell]]:
    """Servers' names and the cells of theirs that are not measured, in order.

    A cell's servers follow each other, so that what is compared is measured at one time; the cells that take longest
    come last, so that a run that is cut short lacks those alone.
    """
    return [
        (name, cell)
        for cell in sorted(CELLS, key=lambda cell: cell.context * cell.batch)
        for mode, layers in SERVERS
        if cell in cells_of(layers) and cell.name not in times.get(name := name_of(mode, layers), {})
    ]


def run(times: dict[str, dict[str, Any]], folder: Path, deadline: float, save: Callable[[], None]) -> None:
    """Measures what is left, into `times`; `save()` is called after each cell.

    All servers come up side by side, which takes as long as one, and wait for their turns. One that does not come up,
    or whose cell cannot be timed, is told on stderr and left out.

    Args:
        times: By server and cell: a Timed's fields.
        folder: For models, and for the servers' logs and state files.
        deadline: Of time.monotonic(): no cell begins after it.
        save: Keeps `times`.
    """
    todo = left(times)
    with ExitStack() as stack:
        up = {}
        for mode, layers in SERVERS:
            name = name_of(mode, layers)
            if any(name == of for of, _ in todo):
                up[name] = stack.enter_context(started(_launch(mode, layers, folder)))
        for name in list(up):
            with _told(name, folder, up):
                up[name].wait_ready()
        for name, cell in todo:
            if time.monotonic() > deadline:
                return
            if name in up:
                with _told(name, folder, up):
                    times.setdefault(name, {})[cell.name] = asdict(time_cell(up[name].url, cell))
                    save()


def _launch(mode: str, layers: int, folder: Path) -> GpuLaunch:
    model, cells = folder / f"model-{layers}", cells_of(layers)
    maker.write_once(model, replace(WIDTH, layers=layers))
    pool = max(cell.context * cell.batch for cell in cells) + max(BATCHES) * 1024
    own = folder / f"server-{name_of(mode, layers)}"
    return GpuLaunch(START, mode, model, own, context=max(CONTEXTS) + 1024, pool_tokens=pool)


@contextmanager
def _told(name: str, folder: Path, up: dict[str, Server]) -> Iterator[None]:
    """A server that fails in this is told, and is not up any more."""
    try:
        yield
    except (Ended, OSError, TimeoutError, ValueError) as error:
        print(f"{name}: {str(error).splitlines()[0]}; its log is in {folder}", file=sys.stderr, flush=True)
        del up[name]


def full_model_ms(shallow_ms: float, deep_ms: float) -> float:
    """An estimate of the full model's step from those of LAYERS: the shallow one's, and each further layer's time."""
    layer = (deep_ms - shallow_ms) / (LAYERS[1] - LAYERS[0])
    return shallow_ms + layer * (FULL_LAYERS - LAYERS[0])


Times = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By server ("off-2") and cell: a Timed's fields."""


def table(times: Times) -> list[str]:
    """The cells in Markdown. Of one request also the deeper model, and the full one, estimated.

    What of off's step is gone with on is the least that stock's attention takes of it.
    """
    shallow, deep = LAYERS
    lines = [
        f"| context x requests | tokens/s, off | on | on / off | validate / off | ms a step, off | on | gone with on "
        f"| {deep} layers, on / off | {FULL_LAYERS}, estimated |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in CELLS:
        off, on, validate = (times.get(name_of(mode, shallow), {}).get(cell.name) for mode in ("off", "on", "validate"))
        if off is None or on is None:
            continue
        rate, step = "tokens_a_second", "step_ms"
        row = [f"{off[rate]:.0f}", f"{on[rate]:.0f}", f"{on[rate] / off[rate]:.2f}"]
        row += [f"{validate[rate] / off[rate]:.2f}" if validate else ""]
        row += [f"{off[step]:.2f}", f"{on[step]:.2f}", f"{100 * (1 - on[step] / off[step]):.0f}%"]
        deeper = _steps(times, cell, deep)
        row += [f"{deeper['off'] / deeper['on']:.2f}" if deeper else "", _estimated(times, cell)]
        lines.append(f"| {cell.name} | {' | '.join(row)} |")
    return lines


def _steps(times: Times, cell: Cell, layers: int) -> dict[str, float] | None:
    """Milliseconds of a step, off and on; None where one is not measured."""
    found = {mode: times.get(name_of(mode, layers), {}).get(cell.name) for mode in ("off", "on")}
    return {mode: one["step_ms"] for mode, one in found.items() if one} if all(found.values()) else None


def _estimated(times: Times, cell: Cell) -> str:
    shallow, deep = (_steps(times, cell, layers) for layers in LAYERS)
    if shallow is None or deep is None:
        return ""
    full = {mode: full_model_ms(shallow[mode], deep[mode]) for mode in ("off", "on")}
    return f"{full['off'] / full['on']:.2f}"
