"""`docker run` lines of the pages, read as far as the pages use it."""

from __future__ import annotations

import argparse
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"docker run: {message}")


def parse(words: list[str]) -> argparse.Namespace:
    """The options of `docker run`; `image`, and `command`, the words behind it.

    Raises:
        ValueError: An option that the pages do not use so far, or no image.
    """
    parser = _Parser(allow_abbrev=False, add_help=False)
    for option in ("--name", "--gpus", "--shm-size", "--restart", "--stop-timeout", "--user"):
        parser.add_argument(option)
    for flag in ("-d", "--rm", "--read-only"):
        parser.add_argument(flag, action="store_true")
    for option in ("--ulimit", "--tmpfs", "--cap-drop", "--security-opt"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("-p", "--publish", action="append", default=[])
    parser.add_argument("-v", "--volume", action="append", default=[])
    parser.add_argument("-e", "--env", action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(words)
