"""The Docker engine of this machine, and what this job left on it."""

from __future__ import annotations

import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

EXIT_FAILED, EXIT_USAGE, EXIT_UNAVAILABLE = 1, 64, 69
ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "gpu-job"
LABEL = "kdtree.job"
"""On each container that a job starts: one at a time runs here, so that any that is there at its start is stale."""
_LIMITS = ("--ulimit=memlock=-1", "--ulimit=stack=67108864", "--shm-size=32g")


class JobError(RuntimeError):
    """A step of the job fails; the text is one line: what, what was found, and what to do."""

    def __init__(self, text: str, code: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.code = code


class Device(StrEnum):
    """What serves. CPU is a rehearsal: what needs a GPU says that it did not run."""

    CPU = "cpu"
    GPUS = "gpus"

    @property
    def options(self) -> tuple[str, ...]:
        """docker run's."""
        return ("--gpus=all", *_LIMITS) if self is Device.GPUS else ()


def output(*words: str) -> str:
    """What a docker command prints. Raises JobError with its last words."""
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise JobError(f"no docker that runs: {error.strerror}. Fix: ci/runner-setup", EXIT_UNAVAILABLE) from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise JobError(f"docker {words[0]} failed: {said}. Fix: what that says")
    return done.stdout.strip()


def run_in(name: str, image: str, *command: str, options: tuple[str, ...] = ()) -> int:
    """Runs a container to its end, its output on stderr; returns its exit code.

    It does not outlive us: a cancelled job is sent SIGINT, SIGTERM seconds later, and is then killed.
    """
    container = f"kdtree-job-{name}"
    words = ["docker", "run", "--rm", f"--name={container}", f"--label={LABEL}={name}", *options, image, *command]
    try:
        return subprocess.run(words, stdout=sys.stderr, check=False, start_new_session=True).returncode
    except BaseException:
        subprocess.run(["docker", "rm", "--force", "--volumes", container], capture_output=True, check=False)
        raise


def writable(folder: Path) -> Path:
    """A folder that the user of a container may write to, whoever that is."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise JobError(f"not a folder of ours: {folder}. Fix: remove it")
    folder.chmod(0o777)
    return folder
