"""What one server of the tests is asked, and what it said and did."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo import conversation
from demo.conversation import Answer
from monitoring import Cost, Seen, cost, see
from proof.server import started
from serving import METRICS, Launch

REQUESTS = (*conversation.REQUESTS[:2], conversation.REQUESTS[-1])


@dataclass(frozen=True)
class Outcome:
    """What one server said and did.

    Attributes:
        answers: To the requests.
        ranks: The state files after them, by rank name.
        second_answers: To the first of them, made again: with the library broken, where it was to break.
        second_ranks: The state files after that.
        mapped: For each rank name, the kernel libraries its process has mapped.
        killed_status: The server's exit status after kill -9 of a rank; None where none was killed.
        log: All that the server printed.
        seen: What /metrics and status showed after the requests; None where the server has no /metrics.
        cost: What the checks cost it; None where that was not asked.
    """

    answers: list[Answer]
    ranks: dict[str, dict[str, Any]]
    second_answers: list[Answer]
    second_ranks: dict[str, dict[str, Any]]
    mapped: dict[str, list[str]]
    killed_status: int | None
    log: str
    seen: Seen | None = None
    cost: Cost | None = None


def serve(
    launch: Launch,
    fault: Path | None = None,
    *,
    requests: tuple[conversation.Request, ...] = REQUESTS,
    again: bool = False,
    kill: bool = False,
    checks: bool = False,
) -> Outcome:
    """Starts a server, asks it, and ends it.

    Args:
        launch: The server.
        fault: The library breaks when this file is made; the first request is then made again.
        requests: What it is asked.
        again: The first is asked again without a fault.
        kill: At the end one rank is killed, to see how the server ends.
        checks: What looking at it costs is measured.
    """
    with started(launch) as server:
        server.wait_ready()
        answers = conversation.hold(server.url, requests)
        ranks = server.settled()
        mapped = {name: mapped_libraries(document["pid"]) for name, document in ranks.items()}
        seen = see(server) if METRICS in launch.arguments else None
        costs = cost(server) if checks else None
        second_answers, second_ranks = [], ranks
        if fault is not None:
            fault.touch()
        if fault is not None or again:
            # The prefix cache holds what the whole kernel computed; everybody asks with an empty one.
            server.flush_cache()
            second_answers, second_ranks = conversation.hold(server.url, requests[:1]), server.settled()
        status = None
        if kill:
            victim = next(iter(ranks.values()))["pid"]
            subprocess.run(["kill", "-KILL", str(victim)], check=True)
            status = server.wait_end()
        return Outcome(answers, ranks, second_answers, second_ranks, mapped, status, server.log(), seen, costs)


def mapped_libraries(pid: int) -> list[str]:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return sorted({line.split()[-1] for line in maps.splitlines() if "libkdtree_verify" in line})
