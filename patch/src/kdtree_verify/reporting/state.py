"""State files: what the launcher and each rank say about themselves, where `kdtree status` and the health check look.

`server.json` is the launcher's, `rank-<name>.json` a rank's. Each is replaced in one step, so a reader sees a whole
file. Nothing of the kernel is imported here: off reports too.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .. import jsonfile, redaction
from ..config import Mode
from ..errors import ExitCode, UsageError
from ..versions import versions

SCHEMA = 1
MOST_BYTES = 16 << 20
"""Of a file that is read."""
SERVER_FILE = "server.json"
RANK_FILES = "rank-*.json"


class State(StrEnum):
    LOADING = "loading"
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
    """Makes the state folder, takes it for this process and removes what an earlier server left in it.

    Raises:
        UsageError: It cannot be written to, or another server that runs reports there.
    """
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not _take(directory):
            raise UsageError(
                "the state folder is another server's, which runs",
                str(directory),
                "give each server a KDTREE_STATE_DIR of its own, or stop the other",
            )
        for path in (directory / SERVER_FILE, *directory.glob(RANK_FILES)):
            path.unlink(missing_ok=True)
        probe = directory / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unwritable(directory, error) from error


def unwritable(directory: Path, error: OSError) -> UsageError:
    return UsageError(
        "the state folder cannot be written",
        f"{directory}: {error.strerror}",
        "set KDTREE_STATE_DIR to a folder of this user",
    )


def _take(directory: Path) -> bool:
    # A lock on the folder itself: it leaves no file, and the kernel lets go of it however this process ends.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    except OSError:
        os.close(descriptor)  # a file system without locks
    return True


def write(path: Path, document: dict[str, Any]) -> None:
    """Replaces `path` by `document` in one step.

    Raises:
        OSError: The folder is gone or full.
    """
    replace(path, json.dumps(document, indent=1) + "\n")


def replace(path: Path, text: str) -> None:
    """Replaces what `path` holds by `text` in one step; its folder is made if it is not there.

    Raises:
        OSError: The folder is gone or full.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # Always a new file: where others can write to the folder, one of this name may be their link.
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def rank_path(directory: Path, identity: Identity) -> Path:
    return directory / f"rank-{identity.name}.json"


def server_document(
    mode: Mode, arguments: list[str], expected_ranks: int | None, endpoint: dict[str, Any] | None = None
) -> dict[str, Any]:
    """server.json of this process.

    Args:
        mode: What was asked for.
        arguments: The command line without secrets.
        expected_ranks: Scheduler processes on this host, None where not known.
        endpoint: Where it will listen: host, port and tls (a bool); None where not known.
    """
    return {
        "schema": SCHEMA,
        "mode": mode.value,
        "pid": os.getpid(),
        "argv": arguments,
        "expected_ranks": expected_ranks,
        "endpoint": endpoint,
        "started_at": time.time(),
    }


def rank_document(
    mode: Mode, identity: Identity, verdict: Verdict, exit_code: ExitCode | None = None
) -> dict[str, Any]:
    """A rank's file without figures: report.py adds those of an armed rank, and since when; Phases how far it is.

    `exit_code` is the code with which the rank is about to end, where it fails closed.
    """
    now = time.time()
    return {
        "schema": SCHEMA,
        "mode": mode.value,
        "state": verdict.state.value,
        "reason": None if verdict.reason is None else redaction.hide(verdict.reason),
        "phase": None,
        "phase_since": None,
        "phases": [],
        "rank": {"name": identity.name, **asdict(identity)},
        "pid": identity.pid,
        "device": None,
        "library": None,
        "versions": versions(),
        "counters": None,
        "layers": [],
        "exit_code": None if exit_code is None else int(exit_code),
        "started_at": now,
        "state_since": now,
        "updated_at": now,
    }


def first_failure(directory: Path) -> tuple[str, int] | None:
    """Reason and exit code of the rank in `directory` that failed closed first, if one did."""
    failed = []
    for path in directory.glob(RANK_FILES):
        try:
            document = jsonfile.read(path, MOST_BYTES)
        except (OSError, ValueError):
            continue
        if document.get("exit_code"):
            failed.append((document["updated_at"], document["reason"], document["exit_code"]))
    return min(failed)[1:] if failed else None
