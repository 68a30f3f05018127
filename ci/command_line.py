"""How the programs of this folder take their arguments."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

EXIT_USAGE = 64


class Parser(argparse.ArgumentParser):
    """Arguments of a program, described as its author laid it out; a bad one is one line, and EXIT_USAGE."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **given})

    def error(self, message: str) -> NoReturn:
        print(f"kdtree: bad usage of {self.prog}: {message}. Fix: see {self.prog} --help", file=sys.stderr)
        sys.exit(EXIT_USAGE)
