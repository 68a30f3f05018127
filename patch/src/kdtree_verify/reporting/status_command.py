"""`kdtree status` and `kdtree health`: what the server and its ranks report, and whether that is good."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import ExitCode
from ..replay import folder
from ..terminal import printable
from . import health, status, status_table

_HEALTH = """\
For a container's health check, and for probes. It asks the state folder, and SGLang only what costs the GPU nothing.

  health          every expected rank reports the mode that was asked for. A rank that is 'armed, not serving' is not
                  healthy: stock answers rightly, but what was asked for does not happen
  health --ready  that, and SGLang takes requests
  health --live   the server's process and its ranks live and report; one that still loads lives. What is not live,
                  a restart may mend"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    command = commands.add_parser(
        "status",
        help="what the server and each of its ranks report",
        description="Shows mode, state and since when, counters and worst layers of each rank; dead and silent ranks "
        "are marked.",
    )
    command.add_argument("--json", action="store_true", help="the state files, and whether healthy, as JSON on stdout")
    command.add_argument(
        "--watch",
        type=_seconds,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="again and again (default every 2), until Ctrl-C; with --json a line each time",
    )
    command.set_defaults(command=_status)

    command = commands.add_parser(
        "health",
        help="exit 0 only when every rank reports the mode that was asked for",
        description=_HEALTH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    asked = command.add_mutually_exclusive_group()
    asked.add_argument("--live", action="store_true", help="only whether the processes live and report")
    asked.add_argument(
        "--ready",
        action="store_const",
        const=health.AUTO,
        dest="url",
        help="and /ready answers 200 where the server's own arguments say that it listens; the same as --url auto",
    )
    asked.add_argument("--url", metavar="URL", help="and this http URL answers 200")
    command.add_argument(
        "--timeout", type=_seconds, default=25.0, metavar="SECONDS", help="how long the URL may take (default 25)"
    )
    command.set_defaults(command=_health)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds up to 3600")
    return value


def _status(arguments: argparse.Namespace, config: Config) -> ExitCode:
    if arguments.watch is not None:
        return _watch(arguments, config)
    snapshot = status.read(config.state_dir)
    if arguments.json:
        print(json.dumps(_document(snapshot, config), indent=1))
    elif snapshot.server or snapshot.ranks:
        print(_table(snapshot, config))
    else:
        raise health.Unhealthy(
            "nothing to show",
            snapshot.error or f"no server has reported in {snapshot.directory}",
            "start it with python -m kdtree_verify.launch, with the same KDTREE_STATE_DIR",
        )
    return ExitCode.OK if snapshot.server else ExitCode.UNHEALTHY


def _watch(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Shows what is there, also where no server has reported yet, until somebody has seen enough."""
    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
    try:
        while True:
            snapshot = status.read(config.state_dir)
            if arguments.json:
                print(json.dumps(_document(snapshot, config)), flush=True)
            else:
                now = time.strftime("%H:%M:%S")
                print(f"{clear}{now}  every {arguments.watch:g} s\n{_table(snapshot, config)}\n", flush=True)
            time.sleep(arguments.watch)
    except KeyboardInterrupt:
        return ExitCode.OK


def _table(snapshot: status.Snapshot, config: Config) -> str:
    table = status_table.table(snapshot)
    if not (captures := _captures(config)):
        return table
    which = f"{len(captures)} calls out of bound are" if len(captures) > 1 else "a call out of bound is"
    return f"{table}\n{which} kept in {captures[0].parent}: kdtree replay FILE"


def _captures(config: Config) -> list[Path]:
    return folder.paths(config.evidence_dir / folder.NAME)


def _document(snapshot: status.Snapshot, config: Config) -> dict[str, Any]:
    try:
        healthy, reason = True, health.check(snapshot)
    except health.Unhealthy as error:
        healthy, reason = False, error.found
    captures = [str(path) for path in _captures(config)]
    return snapshot.as_dict() | {"healthy": healthy, "health": reason, "captures": captures}


def _health(arguments: argparse.Namespace, config: Config) -> ExitCode:
    snapshot = status.read(config.state_dir)
    line = health.check_live(snapshot) if arguments.live else health.check(snapshot, arguments.url, arguments.timeout)
    print(printable(line))
    return ExitCode.OK
