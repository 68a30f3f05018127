"""Why one of the commands of this folder ended, in one line, and their exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from imaging import interruption
from imaging.errors import ImageError
from oci.errors import RegistryError
from pinning.lockfile import PinsError

EXIT_FAILED = 1
"""What was asked for is not so: a signature, a label, a finding, an image that is not there."""
EXIT_SKIPPED = 77
"""Nothing was asked, and the line says why: the database cannot be had."""


class ShippingError(RuntimeError):
    """The text is one line: what, what was found, and what to do."""

    def __init__(self, text: str, code: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.code = code


def in_one_line(command: Callable[[], int]) -> int:
    """Runs a command; what it cannot do is one line on stderr, and its exit code. A signal's is 128 and its number."""
    interruption.listen()
    try:
        return command()
    except (ShippingError, RegistryError) as error:
        text, code = str(error), error.code
    except (ImageError, PinsError) as error:
        text, code = str(error), EXIT_FAILED
    except OSError as error:
        text, code = f"cannot be read or written: {error}. Fix: rights and room there", os.EX_CANTCREAT
    except interruption.Interrupted as interrupted:
        text, code = f"interrupted by {interrupted.name}: nothing was written. Fix: run it again", interrupted.code
    print(f"kdtree: {text}", file=sys.stderr)
    return code
