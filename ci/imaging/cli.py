"""The command ci/image."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import standin
from command_line import Parser
from pinning import lockfile
from standin import ROOT

from . import contents, interruption, recipe
from .build import build
from .errors import EXIT_FAILED, EXIT_UNAVAILABLE, ImageError
from .naming import build_and_name

REPORT = ROOT / "build" / "image.json"
ABOUT = """\
Builds docker/Dockerfile with the engine at hand, checks the result, and says what it adds to its base.

  ci/image [--stand-in] [--tag kdtree:local] [--archs "120a"] [--archive FILE]

--stand-in: on stand-in bases (ci/standin.py) in place of the pinned ones, without a network; inside `ci/engine run`.
Else KDTREE_MIRROR=HOST/PREFIX takes the bases from where ci/mirror put them.
--archive: into FILE first, an OCI archive that the commit alone decides (docs/supply-chain/reproduce.md), and the
engine loads that; without it, files bear the time of the build. The architectures are KDTREE_ARCHS's, else the pinned
ones. Writes build/image.json. The tag is given last: a build that fails or is interrupted leaves it as it was.

Exit codes: 0, 1 no image, 64 bad usage, 69 this machine cannot build it, 128 and a signal's number.
"""


def options() -> argparse.Namespace:
    parser = Parser(prog="ci/image", description=ABOUT)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--tag", default="kdtree:local")
    pinned_archs = lockfile.get(lockfile.load(), "cuda.architectures")
    parser.add_argument("--archs", default=os.environ.get("KDTREE_ARCHS") or pinned_archs)
    parser.add_argument("--archive", type=lambda text: Path(text).absolute())
    return parser.parse_args()


def make(chosen: argparse.Namespace) -> dict[str, object]:
    """Builds, checks and names the image; returns its report."""
    started = time.monotonic()
    contexts = recipe.stand_in_contexts() if chosen.stand_in else recipe.mirror_contexts()
    pinned = lockfile.get(lockfile.load(), "images.sglang")
    base = contexts.get(pinned, pinned).removeprefix("docker-image://")
    return build_and_name(
        chosen.tag,
        partial(build, ROOT, recipe.arguments(ROOT, chosen.archs, contexts), contexts),
        lambda image: contents.report(image, chosen.tag, base, time.monotonic() - started),
        REPORT,
        chosen.archive,
    )


@contextmanager
def alone() -> Iterator[None]:
    """One build of a checkout at a time: its report is of one image. A killed one's lock goes with it."""
    REPORT.parent.mkdir(exist_ok=True)
    with REPORT.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("image: another ci/image of this checkout builds; waiting", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    chosen = options()
    interruption.listen()
    try:
        with alone():
            found = make(chosen)
    except ImageError as error:
        print(f"kdtree: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"kdtree: the image cannot be kept: {error}. Fix: room and rights for that file", file=sys.stderr)
        return EXIT_FAILED
    except standin.FAILURES as error:
        print(f"kdtree: the stand-in bases cannot be built: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except interruption.Interrupted as interrupted:
        what = f"interrupted by {interrupted.name}: {chosen.tag} is what it was"
        print(f"kdtree: {what}. Fix: run it again", file=sys.stderr)
        return interrupted.code
    print(f"{chosen.tag}: {found['added_bytes']:,} bytes on a base of {found['base_bytes']:,} (build/image.json)")
    return 0
