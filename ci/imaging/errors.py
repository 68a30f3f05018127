"""Why there is no image, in one line, and the exit codes of ci/image."""

from __future__ import annotations

import subprocess
from pathlib import Path

EXIT_FAILED = 1
EXIT_UNAVAILABLE = 69


class ImageError(RuntimeError):
    """The image cannot be built or is not what it should be; the text is one line."""

    code = EXIT_FAILED


class Unavailable(ImageError):
    """This machine cannot build an image at all."""

    code = EXIT_UNAVAILABLE


def output(*command: str | Path, folder: Path | None = None) -> str:
    """What a command prints, stripped. Raises ImageError with its last words when it fails."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ImageError(f"no {command[0]} that runs: {error.strerror}. Fix: install it, or put it on PATH") from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ImageError(f"{' '.join(map(str, command[:3]))} failed: {said}")
    return done.stdout.strip()
