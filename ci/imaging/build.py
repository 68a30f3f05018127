"""One build by BuildKit: which program asks for it, what it is given, where the result goes, why there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from pinning import lockfile

from .errors import ImageError, Unavailable

DOCKERFILE = "docker/Dockerfile"
ENDING_SECONDS = 20.0
NETWORK = re.compile(
    r"dial tcp|no such host|i/o timeout|TLS handshake|connection re(set|fused)|unexpected EOF|short read"
    r"|context deadline exceeded|server misbehaving|network is unreachable|50[0234] "
)


def buildx() -> list[str]:
    """Buildx: a program inside `ci/engine run`, docker's plugin elsewhere. Raises Unavailable where there is none."""
    for command in (["docker-buildx"], ["docker", "buildx"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True).returncode == 0:
            return command
    raise Unavailable("no docker with buildx on PATH. Fix: install Docker Engine with its buildx plugin")


def build(source: Path, arguments: Mapping[str, str], contexts: Mapping[str, str], *options: str) -> None:
    """Builds a checkout's Dockerfile; `options` are buildx's, and say where to.

    The build's own output goes to stderr, for it is long and people watch it.

    Raises:
        ImageError: It failed; the text says why, as far as the last lines tell.
    """
    platform = lockfile.get(lockfile.load(), "images.sglang.platform")
    command = [*buildx(), "build", "--progress=plain", "--provenance=false", f"--platform={platform}", *options]
    command += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    command += [f"--build-context={name}={value}" for name, value in contexts.items()]
    certificates = os.environ.get("SSL_CERT_FILE")
    if "wheels" in contexts:  # all that a build fetches is given
        command.append("--network=none")
    elif certificates:
        command.append(f"--secret=id=ca,src={certificates}")
    said: deque[str] = deque(maxlen=50)
    with subprocess.Popen(
        [*command, f"--file={DOCKERFILE}", "."], cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as building:
        assert building.stdout is not None
        try:
            for line in building.stdout:
                said.append(line.decode(errors="replace"))
                sys.stderr.write(said[-1])
                sys.stderr.flush()
            building.wait()
        except BaseException:
            _end(building)
            raise
    if building.returncode != 0:
        raise ImageError(f"the build failed: {reason([*said], engine_answers())}")


def _end(building: subprocess.Popen[bytes]) -> None:
    """Ends buildx, which ends the build; one that has lost its engine may not listen."""
    building.terminate()
    try:
        building.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        building.kill()


def engine_answers() -> bool:
    return subprocess.run(["docker", "version"], capture_output=True, check=False).returncode == 0


def reason(said: list[str], engine_is_up: bool) -> str:
    """Why a build failed, from the end of its output; with what to do about it where that can be told."""
    error = next((line for line in reversed(said) if line.startswith("ERROR: ")), said[-1] if said else "no output")
    error = error.removeprefix("ERROR: ").removeprefix("failed to solve: ").strip()
    told = "".join(said)
    if not engine_is_up:
        return f"the engine ended: {error}. Fix: start it (its log says why it ended), and build again"
    if "no space left on device" in told:
        return f"the engine's disk is full: {error}. Fix: docker system df; docker system prune; or a larger disk"
    if re.search(r"unexpected commit digest|failed size validation|digest mismatch", error):
        return f"a registry sent other bytes than the digest's: {error}. Fix: ci/pins check, and that registry"
    if missing := re.search(r"(\S+): not found$|manifest unknown", error):
        image = missing[1] or "the base image"
        return f"{image} is not in its registry: {error}. Fix: a mirror of it, or another pin (ci/pins)"
    if NETWORK.search(error):
        return f"the network ended: {error}. Fix: build again; what was fetched whole is kept"
    return f"{error}. Fix: what the lines above say"
