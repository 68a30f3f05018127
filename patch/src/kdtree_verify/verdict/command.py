"""`kdtree report`: reads the evidence, judges it, says so."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from ..config import IMAGE_EVIDENCE_DIR, Config
from ..errors import ExitCode, UsageError
from ..evidence import read
from ..reporting import state
from . import installed, judge, merge, page, saving, text
from .document import Report, document

DESCRIPTION = """\
Says whether what validate measured justifies KDTREE_VERIFY=on: "on is justified", "not yet" with what is missing, or
"no" with each reason. All runs of the setup that was served last count, also those before a restart.

exit codes:
  0   on is justified
  2   not yet
  3   no
  64  a bad argument, or nothing was measured"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    command = commands.add_parser(
        "report",
        help="whether what validate measured justifies on",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="all of it as JSON on stdout")
    command.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots, too")
    command.add_argument("--dir", type=Path, metavar="DIR", help="the evidence (default KDTREE_EVIDENCE_DIR)")
    command.set_defaults(command=main)


def main(parsed: argparse.Namespace, config: Config) -> ExitCode:
    """Raises UsageError where there is nothing to judge, or the page cannot be written."""
    report = make(parsed.dir or _default(config), config)
    if parsed.html:
        try:
            _write(parsed.html, page.page(report))
        except OSError as error:
            found = f"{parsed.html}: {error.strerror}"
            raise UsageError("the page cannot be written", found, "name a file in a folder of yours") from error
    print(json.dumps(document(report), indent=1) if parsed.json else text.text(report), end="\n" if parsed.json else "")
    return report.verdict.code


def _write(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # /dev/stdout is written to; replaced it would be gone for everybody
    else:
        state.replace(path, text)


def _default(config: Config) -> Path:
    # Where this user's server would write; else where a server of another user does.
    kept = (config.evidence_dir, IMAGE_EVIDENCE_DIR)
    return next((directory for directory in kept if _is_there(directory)), config.evidence_dir)


def _is_there(directory: Path) -> bool:
    try:
        return directory.is_dir()
    except OSError as error:
        # systemd keeps a DynamicUser's folder where root alone may look. Reading it says so.
        return isinstance(error, PermissionError)


def make(directory: Path, config: Config) -> Report:
    """The report on a folder of evidence.

    Raises:
        UsageError: It holds none.
    """
    fix = "serve with KDTREE_VERIFY=validate and the same KDTREE_EVIDENCE_DIR, then ask again"
    try:
        entries, unreadable = read.folder(directory)
    except OSError as error:
        if isinstance(error, PermissionError):
            fix = "ask as root, or as the server's user"
        raise UsageError("no evidence", f"{directory}: {error.strerror}", fix) from error
    now = time.time()
    evidence = merge.merge(entries, unreadable, now)
    if evidence is None:
        found = f"{directory} holds no file of it"
        if unreadable:
            found = f"of {directory} nothing can be read: {unreadable[-1].name}: {unreadable[-1].why}"
        raise UsageError("no evidence", found, fix)
    criteria = judge.judge(evidence, installed.differences(evidence.setup, config))
    return Report(str(directory), now, judge.verdict(criteria), criteria, evidence, saving.times(evidence))
