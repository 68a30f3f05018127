"""make demo, inside `ci/engine run`: builds the image on stand-in bases, serves with it in each mode, compares.

Exit codes: 0 as it should be, 1 not so (the last lines say what), 69 this machine cannot run it, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import indent

from . import report, verdict
from .modes import TREE, make_model, serve_all
from .progress import Progress
from .stack import Stack, StackError

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
IMAGE = "kdtree:stand-in"
ARGUMENTS = f"{TREE} --sleep-on-idle"

FAILED, UNAVAILABLE, INTERRUPTED = 1, 69, 130
MEMORY = 4 << 30  # bytes: the server in the container, beside the engine
DISK = 12 << 30  # bytes: what a first run leaves in build/, and what it needs on the way


class DemoError(RuntimeError):
    """The demo cannot go on; the text is one line."""

    code = FAILED


class Unavailable(DemoError):
    """This machine cannot run the demo."""

    code = UNAVAILABLE


def check_machine() -> None:
    """Raises Unavailable, with what to do, before anything is built."""
    host = os.environ.get("DOCKER_HOST", "")
    if not host.startswith("unix://"):
        raise Unavailable(f"the engine must be this machine's own: DOCKER_HOST is '{host}'. Fix: run ci/demo/run")
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:") and (free := int(line.split()[1]) << 10) < MEMORY:
            raise Unavailable(
                f"{MEMORY >> 30} GiB of memory are needed: {free >> 20} MiB are available. Fix: free some"
            )
    if not (BUILD / "image.json").exists() and (free := shutil.disk_usage(ROOT).free) < DISK:
        raise Unavailable(f"{DISK >> 30} GiB of disk are needed: {free >> 20} MiB are free at {ROOT}. Fix: free some")


def build_image() -> dict[str, object]:
    """Builds docker/Dockerfile on stand-in bases; returns build/image.json. Raises DemoError."""
    done = subprocess.run([ROOT / "ci" / "image", "--stand-in", f"--tag={IMAGE}"], stdout=sys.stderr, check=False)
    if done.returncode != 0:
        refusal = Unavailable if done.returncode == UNAVAILABLE else DemoError
        raise refusal("the image was not built; the lines above say why")
    found: dict[str, object] = json.loads((BUILD / "image.json").read_text(encoding="utf-8"))
    return found


def demonstrate(progress: Progress) -> int:
    """The whole of it; returns the exit code."""
    check_machine()
    progress.say("image: docker/Dockerfile on stand-in bases")
    image = build_image()
    models = BUILD / "demo" / "models"
    stack = Stack(ROOT, IMAGE, models, make_model(IMAGE, models), ARGUMENTS)
    runs = serve_all(stack, progress)
    seconds = progress.seconds
    report.write(BUILD / "demo.json", runs, seconds, image)
    print(f"\n{report.answers(runs)}\n\n{report.table(runs)}\n")
    print(f"kdtree report, after validate:\n\n{indent(runs['validate'].report or '', '  ')}")
    wrong = verdict.failures(runs)
    for line in wrong:
        print(f"kdtree: {line}", file=sys.stderr)
    if not wrong:
        print("off, validate and on answered as they must.")
    print(f"{seconds:.0f} s; figures in build/demo.json; what this does not show: docs/demo.md. {remains()}")
    return FAILED if wrong else 0


def remains() -> str:
    """What stays on disk, and how to be rid of it."""
    megabytes = subprocess.run(["du", "-sm", BUILD], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[0]
    private = os.environ.get("DOCKER_CONFIG", "").startswith(str(BUILD))  # as ci/engine has it for its own engine
    images = "images and all" if private else f"and your engine has {IMAGE} and kdtree-standin/*"
    return f"build/ holds {int(megabytes) / 1000:.1f} GB, {images}; make clean removes it."


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return demonstrate(Progress())
    except KeyboardInterrupt:
        print("kdtree: the demo was interrupted; nothing of it runs any more", file=sys.stderr)
        return INTERRUPTED
    except (DemoError, StackError, OSError) as error:
        print(f"kdtree: the demo failed: {error}", file=sys.stderr)
        return error.code if isinstance(error, DemoError) else FAILED


if __name__ == "__main__":
    sys.exit(main())
