"""Same answers: every configuration's servers, several side by side, each asked everything; then the verdicts."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from demo import model as maker

from . import dialogue, exact, verdict
from .launches import GpuLaunch
from .results import Results
from .server import Ended, Launch, started
from .starts import AGAIN, EXACT, Start

SIZE = maker.Size(layers=3, hidden=2048, q_rank=768, dense=1024, sharpness=5.0)
"""The models but for their heads and context: DeepSeek-V2-Lite's width, sharp enough that a head looks at a few of 64K
tokens."""
MARGIN = 256
"""Tokens of context beyond the longest sequence: a tree is drafted past its end."""
LOG_TAIL = 4000


@dataclass(frozen=True)
class Job:
    """A server to start and ask."""

    start: Start
    mode: str

    @property
    def verify(self) -> str:
        """KDTREE_VERIFY."""
        return "off" if self.mode in (AGAIN, EXACT) else self.mode


def jobs(starts: Sequence[Start]) -> list[Job]:
    """All servers of each configuration."""
    return [Job(start, mode) for start in starts for mode in start.modes]


LaunchOf = Callable[[Job, Path, Path, tuple[int, ...], int], Launch]
"""How a job's server is started, given the model's folder, the server's own, its GPUs and the longest sequence."""


def on_gpu(job: Job, model: Path, folder: Path, gpus: tuple[int, ...], context: int) -> Launch:
    if job.mode != EXACT:
        return GpuLaunch(job.start, job.verify, model, folder, gpus, context)
    eager = replace(job.start, graphs=False)
    return GpuLaunch(eager, job.verify, model, folder, gpus, context, environment=exact.environment(folder / "plugin"))


class Servers:
    """Runs jobs, several at a time.

    Args:
        results: Where answers are kept, and where a job that is done is known from.
        models: A folder for the models; made if it is not there.
        asked: The requests.
        gpus: How many there are.
        size: The models but for their heads and context.
        launch_of: How a job's server is started.
    """

    def __init__(
        self,
        results: Results,
        models: Path,
        asked: Sequence[dialogue.Request],
        gpus: int,
        size: maker.Size = SIZE,
        launch_of: LaunchOf = on_gpu,
    ) -> None:
        self._results = results
        self._models = models
        self._asked = asked
        self._gpus = gpus
        self._size = size
        self._launch_of = launch_of
        self._context = dialogue.longest_sequence(asked) + MARGIN
        self._making = threading.Lock()

    def run(self, wanted: Iterable[Job], side_by_side: int, deadline: float) -> None:
        """Runs what is not done yet; none begins after `deadline`, of time.monotonic()."""
        left: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in wanted:
            if not self._results.has(job.start, job.mode):
                left.put(job)

        def work(number: int) -> None:
            while time.monotonic() < deadline:
                try:
                    job = left.get_nowait()
                except queue.Empty:
                    return
                self.serve(job, number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(side_by_side)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def serve(self, job: Job, worker: int = 0) -> None:
        """Starts one server, asks it, and keeps what it said or why it did not."""
        begun = time.monotonic()
        gpus = tuple((worker + i) % self._gpus for i in range(job.start.tp))
        folder = self._results.folder / job.start.name / f"server-{job.mode}"
        launch = self._launch_of(job, self.model(job.start), folder, gpus, self._context)
        document: dict[str, Any] = {}
        with started(launch) as server:
            try:
                server.wait_ready()
                document["up_seconds"] = round(time.monotonic() - begun, 1)
                answers = dialogue.hold(server.url, self._asked)
                document["answers"] = [answer.as_json() for answer in answers]
                document["ranks"] = server.settled()
                if job.mode == EXACT and exact.ANSWERED not in server.log():
                    raise Ended("stock answered: the plugin of float32 attention did not")
            except (Ended, OSError, TimeoutError) as error:
                document["error"] = str(error)
                document["log"] = server.log()[-LOG_TAIL:]
        document["seconds"] = round(time.monotonic() - begun, 1)
        self._results.save(job.start, job.mode, document)
        first_line = document.get("error", "answered").splitlines()[0]
        print(f"{job.start.name} {job.mode}: {first_line} ({document['seconds']} s)", file=sys.stderr, flush=True)

    def model(self, start: Start) -> Path:
        """The model for a configuration, made by the first that wants it."""
        size = replace(self._size, heads=start.heads, context=1 << self._context.bit_length())
        folder = self._models / f"mla-{size.heads}-{size.context}"
        with self._making:
            maker.write_once(folder, size)
        return folder


def verdicts(results: Results, starts: Sequence[Start]) -> dict[str, list[str]]:
    """For each configuration what is wrong: nothing, if the list is empty."""
    found = {}
    for start in starts:
        runs = {mode: run for mode in start.modes if (run := results.run(start, mode)) is not None}
        if len(runs) == len(start.modes):
            found[start.name] = verdict.failures(start, runs)
        else:
            found[start.name] = [
                f"{mode}: {_missing(results, start, mode)}" for mode in start.modes if mode not in runs
            ]
    return found


def _missing(results: Results, start: Start, mode: str) -> str:
    document = results.document(start, mode)
    return "not run yet" if document is None else str(document["error"]).splitlines()[0]
