"""What the GPU runner does with an image that was pushed by its digest, a step a call.

  ci/gpu-job clean [--keep IMAGE]   remove what earlier jobs left: containers, volumes; other digests of IMAGE's name
  ci/gpu-job pull IMAGE             pull it where there is room
  ci/gpu-job doctor IMAGE           whether a server would start on this machine's GPUs
  ci/gpu-job gpu-test IMAGE         make gpu-test inside it (its test stage, built here, never pushed)
  ci/gpu-job bench IMAGE            make bench inside it: build/gpu-job/bench.json
  ci/gpu-job compare                hold that to docs/benchmark/
  ci/gpu-job smoke IMAGE            serve a small model with off, validate and on: build/gpu-job/smoke.json
  ci/gpu-job summary FILE           add what was found to a Markdown file

IMAGE is NAME@sha256:…, as ci/push prints it. KDTREE_JOB_DEVICE=cpu rehearses all of it without a GPU.
Exit codes: 0, 1 the step fails, 64 bad usage, 69 this machine cannot, 128 and a signal's number.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from command_line import Parser
from imaging import interruption
from imaging.errors import ImageError
from oci import names
from oci.errors import RegistryError
from pinning.lockfile import PinsError

from . import image, smoke, steps
from .clean import clean
from .engine import EXIT_FAILED, EXIT_UNAVAILABLE, EXIT_USAGE, Device, JobError

OF_AN_IMAGE = {
    "doctor": steps.doctor,
    "gpu-test": steps.gpu_test,
    "bench": steps.bench,
    "smoke": smoke.smoke,
}


def arguments() -> argparse.Namespace:
    parser = Parser(prog="ci/gpu-job", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("clean").add_argument("--keep", default="")
    verbs.add_parser("compare")
    verbs.add_parser("summary").add_argument("file", type=Path)
    for verb in ("pull", *OF_AN_IMAGE):
        verbs.add_parser(verb).add_argument("image")
    return parser.parse_args()


def device() -> Device:
    given = os.environ.get("KDTREE_JOB_DEVICE") or Device.GPUS
    try:
        return Device(given)
    except ValueError:
        raise JobError(f"KDTREE_JOB_DEVICE is neither gpus nor cpu: {given!r}. Fix: one of them", EXIT_USAGE) from None


def do(asked: argparse.Namespace) -> None:
    if asked.verb == "clean":
        if asked.keep:
            names.by_digest(asked.keep)
        for line in clean(asked.keep):
            print(f"gpu-job: removed {line}", file=sys.stderr)
    elif asked.verb == "pull":
        image.pull(asked.image)
    elif asked.verb == "compare":
        steps.compare(device())
    elif asked.verb == "summary":
        steps.summary(asked.file)
    else:
        names.by_digest(asked.image)
        OF_AN_IMAGE[asked.verb](asked.image, device())


def main() -> int:
    asked = arguments()
    interruption.listen()
    try:
        do(asked)
    except (JobError, RegistryError, ImageError) as error:
        print(f"kdtree: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"kdtree: {asked.verb}: {error}. Fix: room and rights there", file=sys.stderr)
        return EXIT_FAILED
    except PinsError as error:
        print(f"kdtree: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except interruption.Interrupted as ended:
        print(f"kdtree: {asked.verb} was ended by {ended.name}: nothing of it runs any more", file=sys.stderr)
        return ended.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
