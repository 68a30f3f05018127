"""The command for ci/pins.toml, the one file of pins.

ci/pins get KEY             one value by its dotted path; an image's table prints as name:tag@digest
ci/pins requirements SET..  the sets' locked wheels as pip --require-hashes lines
ci/pins check               holds the repository to the pins
ci/pins lock SET            resolves the set's roots anew and rewrites its lock
ci/pins contract [FOLDER]   the contract check on every pinned SGLang release, as a table; or on a package folder

Of a registry (KDTREE_MIRROR=HOST/PREFIX asks a mirror in place of where the images are from):

ci/pins verify [--write]    whether it has every pinned image, as pinned; --write fills in manifests that are unknown
ci/pins newer               SGLang's nightlies that are newer than the pinned one, newest first
ci/pins update [TAG] [--no-tests]
                            tries the newest of them (or TAG) and writes the change to build/pins-update.diff

Exit codes: 0, 1 not so, 64 usage, 69 a registry or index that does not answer, or a file that cannot
be read or written, 78 an SGLang that is refused, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from oci.errors import EXIT_INTERRUPTED, RegistryError

from . import check, releases, relock, update, verify
from .lockfile import ROOT, PinsError, get, load, merged


def main(argv: list[str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
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
            case ["verify", *options] if options in ([], ["--write"]):
                return verify.verify(load(), write=bool(options))
            case ["newer"]:
                print("\n".join(nightly.tag for nightly in update.choices(load())))
            case ["update", *words] if len(tags := [word for word in words if word != "--no-tests"]) < 2:
                return _update(*tags, tests="--no-tests" not in words)
            case ["-h" | "--help"]:
                print(__doc__)
            case _:
                print(__doc__, file=sys.stderr)
                return os.EX_USAGE
    except (PinsError, RegistryError) as error:
        print(f"kdtree: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"kdtree: cannot be written or read: {error}. Fix: room and rights there", file=sys.stderr)
        return os.EX_UNAVAILABLE
    except KeyboardInterrupt:
        print("kdtree: interrupted: the lock is what it was. Fix: run it again", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def _update(tag: str | None = None, *, tests: bool) -> int:
    written = update.update(load(), tag, tests=tests)
    if written is None:
        print(f"nothing is newer than {get(load(), 'images.sglang.tag')}")
    else:
        print(f"git apply {written.relative_to(ROOT)}")
    return 0


def _contract(folder: Path | None = None) -> int:
    found = [releases.check(folder, str(folder))] if folder else releases.check_all()
    print("\n".join(verdict.row for verdict in found))
    return update.Refused.code if folder and found[0].reason else 0
