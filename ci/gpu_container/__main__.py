"""ci/gpu-container: see --help."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from command_line import Parser
from pinning import lockfile

from . import pack, packs
from .errors import EXIT_INTERRUPTED, EXIT_UNAVAILABLE, ContainerError, Unavailable

ROOT = pack.ROOT
WORK = Path("/var/tmp/kdtree-container")
ENGINE = Path("/var/tmp/kdtree-engine")
ABOUT = f"""\
Runs the image in containers on a GPU machine that has neither Docker nor a network (docs/proof.md).

  ci/gpu-container pack            with a network, as root on Debian: makes the packs in build/gpu-container
  ci/gpu-container engine          on the GPU machine: unpacks Docker's engine into {ENGINE}
  ci/gpu-container run             there, as root: the image on a base of that machine's Python, served in each mode

Exit codes: 0 as it should be, 1 not so (the last lines say what), 64 bad usage, 69 this machine cannot run it,
130 interrupted."""


def parser() -> argparse.ArgumentParser:
    parsed = Parser(prog="ci/gpu-container", description=ABOUT)
    verbs = parsed.add_subparsers(dest="verb", required=True, metavar="pack | engine | run")
    packing = verbs.add_parser("pack")
    archs = lockfile.get(lockfile.load(), "cuda.architectures")
    packing.add_argument(
        "--archs", default=f"{archs} 90a", help="of the CUDA library (default: the product's and an H200's)"
    )
    engine = verbs.add_parser("engine")
    engine.add_argument("folder", nargs="?", type=Path, default=ENGINE)
    run = verbs.add_parser("run")
    run.add_argument("--engine", type=Path, default=ENGINE, help=f"the unpacked engine (default: {ENGINE})")
    run.add_argument("--work", type=Path, default=WORK, help=f"for what is removed at the end (default: {WORK})")
    run.add_argument("--results", type=Path, default=pack.BUILD / "results", help="where result.json and logs go")
    run.add_argument("--seconds", type=int, default=420, help="it is ended after these (default: 420)")
    run.add_argument("--rehearse", action="store_true", help="without a GPU: the host library, the same steps")
    return parsed


def main(argv: list[str]) -> int:
    asked = parser().parse_args(argv)
    if asked.verb == "pack":
        if not os.environ.get("DOCKER_HOST"):
            command = [str(ROOT / "ci" / "engine"), "run", str(ROOT / "ci" / "gpu-container"), *argv]
            os.execv(command[0], command)
        pack.main(asked.archs)
        return 0
    if asked.verb == "engine":
        packs.unpack(pack.ENGINE, asked.folder)
        print(f"gpu-container: the engine is in {asked.folder}")
        return 0
    from . import run  # what it imports is not there where packs are made

    return run.main(asked)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except ContainerError as error:
        print(f"kdtree: {error}", file=sys.stderr)
        sys.exit(EXIT_UNAVAILABLE if isinstance(error, Unavailable) else 1)
    except KeyboardInterrupt:
        print("kdtree: interrupted; nothing of it runs any more", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
