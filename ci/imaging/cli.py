"""The command ci/image."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import standin
from pinning import lockfile
from standin import ROOT

from . import contents, recipe
from .build import build
from .errors import EXIT_FAILED, EXIT_UNAVAILABLE, ImageError

REPORT = ROOT / "build" / "image.json"
ABOUT = """\
Builds docker/Dockerfile with the engine at hand, checks the result, and says what it adds to its base.

  ci/image [--stand-in] [--tag kdtree:local] [--archs "120a"]

--stand-in: on stand-in bases (ci/standin.py) in place of the pinned ones, without a network; inside `ci/engine run`.
The architectures are KDTREE_ARCHS's, else the pinned ones. Writes build/image.json.
"""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ci/image", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--tag", default="kdtree:local")
    pinned_archs = lockfile.get(lockfile.load(), "cuda.architectures")
    parser.add_argument("--archs", default=os.environ.get("KDTREE_ARCHS") or pinned_archs)
    return parser.parse_args()


def main() -> int:
    chosen = options()
    started = time.monotonic()
    try:
        contexts = recipe.stand_in_contexts() if chosen.stand_in else {}
        build(ROOT, recipe.arguments(ROOT, chosen.archs, contexts), contexts, "--load", f"--tag={chosen.tag}")
        pinned = lockfile.get(lockfile.load(), "images.sglang")
        base = contexts.get(pinned, pinned).removeprefix("docker-image://")
        found = contents.report(chosen.tag, chosen.tag, base, time.monotonic() - started)
    except ImageError as error:
        print(f"kdtree: {error}", file=sys.stderr)
        return EXIT_FAILED
    except standin.FAILURES as error:
        print(f"kdtree: the stand-in bases cannot be built: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{chosen.tag}: {found['added_bytes']:,} bytes on a base of {found['base_bytes']:,} (build/image.json)")
    return 0
