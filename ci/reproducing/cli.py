"""The command ci/reproduce."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import standin
from command_line import Parser
from engine_clients import environment
from engine_debs import DebsError
from engine_private import EngineError, PrivateEngine
from imaging import interruption
from imaging.errors import EXIT_FAILED, EXIT_UNAVAILABLE, ImageError, output
from pinning import files, lockfile
from standin import ROOT

from . import bases, compare, report
from .archive import Archive, ArchiveError
from .bases import Bases
from .twice import WAYS, Built, build_way

BUILD = ROOT / "build"
FOLDER = BUILD / "reproduce"
REPORT = BUILD / "reproduce.json"
ABOUT = """\
Builds the image of the commit at hand twice, from scratch, in different folders, with files of other ages and modes,
and compares the two to the bit: platform manifest, configuration, every layer, libraries, wheel, and the hashes that
kernel/hashes.toml records. A difference is told file by file. As root on Debian 12 or newer; an engine of its own is
started under build/, and removed at the end (docs/supply-chain/reproduce.md).

  ci/reproduce [--real | --stand-in] [--archs "120a"] [--keep]
  ci/reproduce --explain A.tar B.tar      compares two OCI archives, and builds nothing

Without --real or --stand-in: on the pinned images where their registry (KDTREE_MIRROR's, with one) answers, else on
stand-ins. --keep leaves the engine's data and the archives for the next run. Writes build/reproduce.json.

Exit codes: 0 the same, 1 they differ, 64 bad usage, 69 nothing was compared (the last line says why), 128 and a
signal's number when interrupted."""


def options() -> argparse.Namespace:
    parser = Parser(prog="ci/reproduce", description=ABOUT)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--real", dest="bases", action="store_const", const=Bases.REAL)
    what.add_argument("--stand-in", dest="bases", action="store_const", const=Bases.STAND_IN)
    what.add_argument("--explain", nargs=2, type=Path, metavar=("A.tar", "B.tar"))
    parser.add_argument("--archs", default=lockfile.get(lockfile.load(), "cuda.architectures"))
    parser.add_argument("--keep", action="store_true")
    return parser.parse_args()


@contextmanager
def engine_of_its_own(*, keep: bool) -> Iterator[None]:
    """A private engine that this process and what it starts speak to; its data go with it."""
    if os.geteuid() != 0:
        raise EngineError("an engine of its own needs root on Debian 12 or newer: you are not root. Fix: sudo")
    engine = PrivateEngine(BUILD, "reproduce")
    try:
        with engine.in_use():
            os.environ.update(environment(BUILD, engine.host, private=True))
            yield
    finally:
        if not keep:
            engine.remove()


@contextmanager
def alone() -> Iterator[None]:
    """Raises EngineError where another run is under way: they would build in the same folders."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (BUILD / "reproduce.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EngineError("another ci/reproduce of this checkout is under way. Fix: wait for it") from error
        yield


def build_twice(chosen: argparse.Namespace) -> tuple[compare.Comparison, dict[str, Any]]:
    """Builds both ways and compares; returns what was found, and what there is to say of the builds."""
    kind = chosen.bases or bases.at_hand()
    commit = output("git", "rev-parse", "HEAD", folder=ROOT)
    bases.need_room(kind, FOLDER)
    contexts = bases.contexts(kind)
    built = []
    for way in WAYS:
        print(f"reproduce: build {way.name} on {kind.value}", file=sys.stderr)
        built.append(build_way(way, FOLDER, commit, chosen.archs, contexts, *bases.options(kind)))
    a, b = built
    found = compare.archives(Archive(a.archive), Archive(b.archive))
    found.add(compare.folders(a.artifacts, b.artifacts))
    found.add(recorded(a))
    about = {
        "commit": commit,
        "bases": kind.value,
        "contexts": contexts,
        "engine": output("docker", "version", "--format={{.Server.Version}}"),
        "builds": [
            asdict(one.way) | {"began": one.began, "seconds": one.seconds, "archive_bytes": one.archive.stat().st_size}
            for one in built
        ],
    }
    return found, about


def recorded(built: Built) -> compare.Comparison:
    """What the table of hashes in the commit says of the libraries that the image's own compiler made."""
    tools = output(ROOT / "ci" / "cuda-toolchain")
    checking = subprocess.run(
        ["python3", built.source / "kernel" / "hashes.py", "check", built.artifacts],
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"},
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        text=True,
    )
    found = compare.Comparison()
    if checking.returncode != 0:
        found.differences.append(compare.Difference("kernel/hashes.toml", "", checking.stderr.splitlines()))
    return found


def clean(*, archives: bool) -> None:
    """Removes the checkouts, and the archives where nothing is left to ask of them. What was compiled stays."""
    for path in FOLDER.iterdir():
        if path.is_dir() and not path.name.endswith("-artifacts"):
            shutil.rmtree(path)
        elif archives and path.suffix == ".tar":
            path.unlink()


def reproduce(chosen: argparse.Namespace) -> int:
    if output("git", "status", "--porcelain", "--untracked-files=no", folder=ROOT):
        print("reproduce: what is not committed is not built", file=sys.stderr)
    REPORT.unlink(missing_ok=True)
    done = False
    try:
        with engine_of_its_own(keep=chosen.keep):
            found, about = build_twice(chosen)
        done = True
    finally:
        clean(archives=not chosen.keep and (not done or found.same))
    files.replace(REPORT, json.dumps(report.document(found, about), indent=1) + "\n")
    return tell(found)


def tell(found: compare.Comparison) -> int:
    print("\n".join(report.lines(found)))
    if found.same:
        print(f"the same to the bit: {found.rows[0].a}")
        return 0
    print(f"kdtree: the two images differ: {len(found.differences)} differences, above. Fix: them", file=sys.stderr)
    return EXIT_FAILED


def main() -> int:
    chosen = options()
    interruption.listen()
    try:
        if chosen.explain:
            a, b = map(Archive, chosen.explain)
            return tell(compare.archives(a, b))
        with alone():
            return reproduce(chosen)
    except (ImageError, ArchiveError, DebsError, EngineError, *standin.FAILURES) as error:
        print(f"kdtree: nothing was compared: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except OSError as error:
        print(f"kdtree: nothing was compared: {error}. Fix: room and rights there", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except interruption.Interrupted as interrupted:
        print(f"kdtree: interrupted by {interrupted.name}: nothing was compared. Fix: run it again", file=sys.stderr)
        return interrupted.code
