"""Which server a rank belongs to, as far as the rank's process can tell."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from .. import jsonfile
from ..reporting.state import MOST_BYTES, SERVER_FILE

_MOST_ANCESTORS = 16
_SGLANGS = "sglang.srt.runtime_context"  # asked only where it is loaded: importing it takes seconds


@dataclass(frozen=True)
class Server:
    """One run of a server on one host.

    Attributes:
        run: A name that all ranks of the run share, and no other run has.
        host: The host's, or the container's, name.
        expected_ranks: Scheduler processes that it starts on this host; None where nothing said.
        model: The target model's path or name, with what of SGLang's settings makes another model of it.
    """

    run: str
    host: str
    expected_ranks: int | None
    model: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def of_this_process(state_dir: Path) -> Server:
    """The server that this process is a rank of: what its launcher wrote, where a launcher started it."""
    host, parents = socket.gethostname(), list(_ancestors())
    launcher = _launcher(state_dir, [pid for pid, _ in parents])
    if launcher is not None:
        run = f"{host}-{launcher['pid']}-{launcher['started_at']:.0f}"
        return Server(run, host, launcher.get("expected_ranks"), _as_loaded(_model(launcher.get("argv") or [])))
    # Started without it: the ranks have their parent in common.
    pid, started = parents[0] if parents else (os.getpid(), "0")
    return Server(f"{host}-{pid}-{_boot()}-{started}", host, None, _as_loaded(_sglangs_model()))


def _launcher(state_dir: Path, parents: Sequence[int]) -> dict[str, Any] | None:
    # A file of an earlier server may lie there still, if this one has no launcher.
    try:
        document = jsonfile.read(state_dir / SERVER_FILE, MOST_BYTES)
        known = document["pid"] in parents and document["started_at"] >= 0
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return document if known else None


def _ancestors() -> Iterator[tuple[int, str]]:
    """(pid, start in ticks since boot) of this process's parent, its parent, and so on."""
    pid = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        try:
            # After the name, which may hold anything: state, ppid, ... starttime is the 20th of these.
            values = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            found, pid = (pid, values[19]), int(values[1])
        except (OSError, IndexError, ValueError):
            return
        yield found


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


def _model(arguments: Sequence[str]) -> str | None:
    named, found = False, None
    for argument, following in zip_longest(arguments, arguments[1:]):
        name, equals, value = argument.partition("=")
        if name == "--model" or (name.startswith("--model-p") and "--model-path".startswith(name)):
            named, found = True, value if equals else following  # as argparse has it: the last one counts
    return found if named else _sglangs_model()


def _sglangs_model() -> str | None:
    """What SGLang itself says; None where it has not been configured: a notebook, a test."""
    try:
        return str(sys.modules[_SGLANGS].get_server_args().model_path)
    except Exception:
        return None


def _as_loaded(model: str | None) -> str | None:
    """The model, and how SGLang was told to load it where that is not as it would by itself."""
    if model is None:
        return None
    try:
        told = sys.modules[_SGLANGS].get_server_args()
        revision, load, overrides = (
            str(getattr(told, name) or "") for name in ("revision", "load_format", "json_model_override_args")
        )
    except Exception:
        return model
    settings = [f"revision {revision}"] if revision else []
    settings += [f"load format {load}"] if load not in ("", "auto") else []
    if overrides not in ("", "{}"):  # whatever they say stays out of the file: it is anybody's text
        settings.append(f"overrides {hashlib.sha256(overrides.encode()).hexdigest()[:12]}")
    return f"{model} ({', '.join(settings)})" if settings else model


def sizes() -> dict[str, int | None]:
    """tp_size, pp_size and dp_size as SGLang has them; None where it has not said."""
    found: dict[str, int | None] = {}
    for name in ("tp_size", "pp_size", "dp_size"):
        try:
            found[name] = int(getattr(sys.modules[_SGLANGS].get_parallel(), name))
        except Exception:
            found[name] = None
    return found
