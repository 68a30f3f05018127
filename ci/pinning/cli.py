"""The command for ci/pins.toml, the one file of pins.

ci/pins get KEY             one value by its dotted path; an image's table prints as name:tag@digest
ci/pins requirements SET..  the sets' locked wheels as pip --require-hashes lines
ci/pins check               holds the repository to the pins
ci/pins lock SET            resolves the set's roots anew and rewrites its lock
ci/pins contract [FOLDER]   the contract check on every pinned SGLang release, as a table; or on a package folder
"""

from __future__ import annotations

import sys
from pathlib import Path

from . import check, relock
from .lockfile import PinsError, get, load, merged

EXIT_USAGE, EXIT_CONTRACT, EXIT_INTERRUPTED = 64, 78, 130


def main(argv: list[str]) -> int:
    try:
        match argv:
            case ["get", key]:
                print(get(load(), key))
            case ["requirements", *set_names] if set_names:
                print("\n".join(wheel.pip_line for wheel in merged(load(), set_names)))
            case ["check"]:
                return check.main()
            case ["lock", set_name]:
                relock.relock(load(), set_name)
            case ["contract", *folder] if len(folder) < 2:
                return _contract(*map(Path, folder))
            case _:
                print(__doc__, file=sys.stderr)
                return EXIT_USAGE
    except PinsError as error:
        print(f"pins: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _contract(folder: Path | None = None) -> int:
    from . import releases  # the patch's package, which a build has not

    found = [releases.check(folder, str(folder))] if folder else releases.check_all()
    print("\n".join(verdict.row for verdict in found))
    return EXIT_CONTRACT if folder and found[0].reason else 0
