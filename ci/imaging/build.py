"""One build by BuildKit: which program asks for it, what it is given, where the result goes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .errors import ImageError

DOCKERFILE = "docker/Dockerfile"


def buildx() -> list[str]:
    """Buildx: a program inside `ci/engine run`, docker's plugin elsewhere. Raises ImageError where there is none."""
    for command in (["docker-buildx"], ["docker", "buildx"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True).returncode == 0:
            return command
    raise ImageError("no docker with buildx on PATH. Fix: install Docker Engine with its buildx plugin")


def build(source: Path, arguments: Mapping[str, str], contexts: Mapping[str, str], *output: str) -> None:
    """Builds a checkout's Dockerfile; `output` are buildx's options that say where to.

    The build's own output goes to stderr, for it is long and people watch it.
    """
    command = [*buildx(), "build", "--provenance=false", *output]
    command += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    command += [f"--build-context={name}={value}" for name, value in contexts.items()]
    certificates = os.environ.get("SSL_CERT_FILE")
    if contexts:
        command.append("--network=none")
    elif certificates:
        command.append(f"--secret=id=ca,src={certificates}")
    if not sys.stderr.isatty():
        command.append("--progress=plain")
    done = subprocess.run([*command, f"--file={DOCKERFILE}", "."], cwd=source, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise ImageError(f"the build failed with status {done.returncode}; its last lines say why")
