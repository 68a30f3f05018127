#!/usr/bin/env python3
"""The command for ci/pins.toml, the one file of pins.

pins.py get KEY            one value by its dotted path; an image's table prints as name:tag@digest
pins.py requirements SET.. the sets' locked wheels as pip --require-hashes lines
pins.py check              holds the repository to the pins (pins_check.py)
pins.py lock SET           resolves the set's roots anew and rewrites its lock (pins_lock.py)
"""

from __future__ import annotations

import sys

import pins_check
import pins_lock
from pins_reader import PinsError, get, load, merged

EXIT_USAGE = 64


def main(argv: list[str]) -> int:
    try:
        match argv:
            case ["get", key]:
                print(get(load(), key))
            case ["requirements", *set_names] if set_names:
                print("\n".join(wheel.pip_line for wheel in merged(load(), set_names)))
            case ["check"]:
                return pins_check.main(load())
            case ["lock", set_name]:
                pins_lock.relock(load(), set_name)
            case _:
                print(__doc__, file=sys.stderr)
                return EXIT_USAGE
    except PinsError as error:
        print(f"pins: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
