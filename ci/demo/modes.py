"""One image serving in each mode, asked the same: what `make demo` and `ci/first-build` do alike."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from . import conversation, report, verdict
from .progress import Progress
from .stack import Stack, StackError

MODES = ("off", "validate", "on")
TREE = "--speculative-algorithm NGRAM"
"""Server arguments: a tree of draft tokens that needs no draft model."""


def make_model(image: str, models: Path, *, wide: bool = False) -> str:
    """Makes the model in `models`, with the image's own Python, unless it is there; returns its folder's name.

    Args:
        image: Whose Python.
        models: Where models are.
        wide: The one for a GPU.

    Raises:
        StackError: It was not made.
    """
    maker = Path(__file__).with_name("model.py")
    name = f"mla-{'wide-' if wide else ''}{hashlib.sha256(maker.read_bytes()).hexdigest()[:12]}"
    models.mkdir(parents=True, exist_ok=True)
    models.chmod(0o755)  # the server is another user
    if (models / name).exists():
        return name
    done = subprocess.run(
        [
            *("docker", "run", "--rm", "--network=none", f"--user={os.getuid()}:{os.getgid()}"),
            *(f"--volume={maker}:/model.py:ro", f"--volume={models}:/models"),
            *(image, "python3", "/model.py", f"/models/{name}.part", *(["--wide"] if wide else [])),
        ],
        stdout=sys.stderr,
        check=False,
    )
    if done.returncode != 0:
        raise StackError("the model was not made; the lines above say why")
    (models / f"{name}.part").rename(models / name)
    return name


def serve_all(stack: Stack, progress: Progress) -> dict[str, verdict.Run]:
    """Each mode, from up to down. Whatever ends it, no server is left.

    Raises:
        StackError: A server does not come up, or does not do as it should; the log's end is on stderr.
        OSError: It does not answer a request; likewise.
    """
    runs = {}
    try:
        stack.down()  # what an interrupted run may have left
        for mode in MODES:
            runs[mode] = _serve(stack, mode, progress)
    except (StackError, OSError):
        print(stack.log(15), file=sys.stderr)
        raise
    finally:
        if len(runs) < len(MODES):
            _stop(stack, progress)
    return runs


def _serve(stack: Stack, mode: str, progress: Progress) -> verdict.Run:
    progress.say(f"{mode}: starting")
    stack.up(mode)
    stack.wait_healthy(progress.tick)
    progress.say(f"{mode}: healthy; {len(conversation.REQUESTS)} requests")
    answers = conversation.hold(stack.url, heard=lambda answer: progress.tick(f"{answer.text}"))
    figures = report.figures(answers, stack.ranks())
    said = None
    if mode == "validate":
        progress.say("validate: answered; kdtree report")
        said = stack.report(figures.kernel_calls)
    run = verdict.Run(answers, figures, said, stack.status())
    progress.say(f"{mode}: answered; stopping")
    stack.down()
    return run


def _stop(stack: Stack, progress: Progress) -> None:
    # A second interrupt does not end the cleaning up.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    progress.say("stopping the server")
    with suppress(StackError):
        stack.down()
    for number, handler in before.items():
        signal.signal(number, handler)
