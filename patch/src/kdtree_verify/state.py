"""State files: what the launcher and each rank say about themselves, where `kdtree status` and the health check look.

`server.json` is the launcher's, `rank-<name>.json` a rank's. Each is replaced in one step, so a reader sees a whole
file. Nothing of the kernel is imported here: off reports too.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .config import Mode
from .errors import ExitCode, UsageError
from .versions import versions

SCHEMA = 1
SERVER_FILE = "server.json"
RANK_FILES = "rank-*.json"


class State(StrEnum):
    OFF = "off"
    ARMED = "armed"
    SERVING = "serving"
    NOT_SERVING = "armed, not serving"
    FAILED = "failed"


@dataclass(frozen=True)
class Verdict:
    """A rank's state, with the reason where one is needed."""

    state: State
    reason: str | None = None


@dataclass(frozen=True)
class Identity:
    """Where a scheduler process stands in its server. `known` is False where SGLang has not said."""

    tp: int
    pp: int
    dp: int
    pid: int
    known: bool = True

    @property
    def name(self) -> str:
        """Unique in a server on one host."""
        return f"dp{self.dp}-pp{self.pp}-tp{self.tp}" if self.known else f"pid{self.pid}"


def this_rank() -> Identity:
    """The rank that SGLang gave this process; one named by its pid where SGLang has not said."""
    try:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        return Identity(int(parallel.tp_rank), int(parallel.pp_rank), int(parallel.dp_rank or 0), os.getpid())
    except Exception:
        # A notebook or a test: a backend without a published server configuration.
        return Identity(0, 0, 0, os.getpid(), known=False)


def prepare(directory: Path) -> None:
    """Makes the state folder and removes what an earlier server left in it.

    Raises:
        UsageError: It cannot be written to.
    """
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path in (directory / SERVER_FILE, *directory.glob(RANK_FILES)):
            path.unlink(missing_ok=True)
        probe = directory / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            "the state folder cannot be written",
            f"{directory}: {error.strerror}",
            "set KDTREE_STATE_DIR to a folder of this user",
        ) from error


def write(path: Path, document: dict[str, Any]) -> None:
    """Replaces `path` by `document` in one step.

    Raises:
        OSError: The folder is gone or full.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def rank_path(directory: Path, identity: Identity) -> Path:
    return directory / f"rank-{identity.name}.json"


def server_document(mode: Mode, arguments: list[str], expected_ranks: int | None) -> dict[str, Any]:
    """server.json of this process. `expected_ranks`: scheduler processes on this host, None where not known."""
    return {
        "schema": SCHEMA,
        "mode": mode.value,
        "pid": os.getpid(),
        "argv": arguments,
        "expected_ranks": expected_ranks,
        "started_at": time.time(),
    }


def rank_document(
    mode: Mode, identity: Identity, verdict: Verdict, exit_code: ExitCode | None = None
) -> dict[str, Any]:
    """A rank's file without figures; report.py adds those of an armed rank.

    `exit_code` is the code with which the rank is about to end, where it fails closed.
    """
    return {
        "schema": SCHEMA,
        "mode": mode.value,
        "state": verdict.state.value,
        "reason": verdict.reason,
        "rank": {"name": identity.name, **asdict(identity)},
        "pid": identity.pid,
        "device": None,
        "library": None,
        "versions": versions(),
        "counters": None,
        "layers": [],
        "exit_code": None if exit_code is None else int(exit_code),
        "updated_at": time.time(),
    }


def first_failure(directory: Path) -> tuple[str, int] | None:
    """Reason and exit code of the rank in `directory` that failed closed first, if one did."""
    failed = []
    for path in directory.glob(RANK_FILES):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if document.get("exit_code"):
            failed.append((document["updated_at"], document["reason"], document["exit_code"]))
    return min(failed)[1:] if failed else None
