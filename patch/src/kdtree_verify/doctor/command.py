"""`kdtree doctor`: every check, whatever the others say; the exit code is the first failure's."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from typing import Any, NoReturn

from ..config import Config, Mode
from ..errors import ExitCode
from . import arguments, report, run
from .finding import Finding, Status

DESCRIPTION = """\
Asks whether a server would start here: the GPUs and their driver, CUDA, memory, shared memory, versions, SGLang, the
kernel library and its self-test. What it needs of the server's arguments (--model-path, --tp-size, ...) goes after --:

  kdtree doctor -- --model-path /models/m --tp-size 8

Each finding is ok, a warning, failed or skipped; a warning stops nothing. The exit code is the first failure's."""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    command = commands.add_parser(
        "doctor",
        help="whether a server would start here, and what to do if not",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--mode",
        choices=[str(mode) for mode in Mode],
        help="the mode to judge by (default KDTREE_VERIFY's; on where that is off, which needs little)",
    )
    command.add_argument(
        "--p2p", action="store_true", help="copies and an NCCL all-reduce between all GPUs, which must be idle"
    )
    command.add_argument("--json", action="store_true", help="every finding as JSON on stdout")
    command.add_argument("server_arguments", nargs="*", metavar="-- ARGUMENTS", help="the server's arguments")
    command.set_defaults(command=main)


def main(parsed: argparse.Namespace, config: Config) -> ExitCode:
    """Raises UsageError where a variable holds what it may not."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    mode = Mode(parsed.mode) if parsed.mode else Mode.ON if config.mode is Mode.OFF else config.mode
    about = run.subject(mode, arguments.read(parsed.server_arguments), os.environ)
    checks = (*run.BEFORE_KERNEL, *run.INSTALLATION, run.PEERS if parsed.p2p else run.NO_PEERS)
    findings: list[Finding] = []
    for finding in run.examine(about, checks):
        findings.append(finding)
        if not parsed.json:
            print(report.lines(finding), flush=True)
    if parsed.json:
        print(json.dumps(report.document(about, findings), indent=1), flush=True)
    else:
        print(report.summary(findings, mode), flush=True)
    if first := next((each for each in findings if each.status is Status.FAILED), None):
        print(first.line(), file=sys.stderr, flush=True)
    return report.code(findings)


def _end(number: int, _: object) -> NoReturn:
    # As an exception, so that a child process is ended on the way; with the shell's code.
    sys.exit(128 + number)
