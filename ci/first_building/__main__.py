"""ci/first-build: tries on this host all that no other machine could, and writes it down to be pasted.

  ci/first-build [--until STEP] [--anew] [--out FOLDER] [--stand-in]

It looks at the host, asks the registries for every pinned digest, pulls the bases, holds them to the list of
assumptions, builds the image, proves the kernel on each card and serves a small model with off, validate and on. What
fails stops what needs it, and nothing else. Called again it goes on: what was ok with the same sources is not done
again, unless --anew. It ends with FOLDER/first-build.md (default build/), the body of an issue, and first-build.json.

--stand-in: without registry and GPU, on stand-ins for the bases; the CPU serves.
Exit codes: 0 all ok (with --stand-in: but for what needs a GPU), 1 something is not so, 64 usage, 69 no stand-in
registry here, 130 or 143 interrupted.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_line import Parser
from imaging import interruption, recipe
from imaging.errors import ImageError
from pinning import files, lockfile

from . import journal, report, stand_in
from .private import of_this_host
from .site import ROOT, Site, pinned
from .step import Status, Step, walk
from .steps import steps

FAILED, UNAVAILABLE = 1, 69
SHOWN = {Status.OK: "ok", Status.NOT_SO: "NOT SO", Status.UNDER_WAY: "..."}


def options() -> argparse.Namespace:
    parser = Parser(prog="ci/first-build", description=__doc__)
    parser.add_argument("--until", default="", choices=[step.name for step in steps(stand_in=True)])
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "build")
    parser.add_argument("--stand-in", action="store_true")
    return parser.parse_args()


class Run:
    """One run: its steps, what became of them, and the two files that say so."""

    def __init__(self, out: Path, *, stand_in: bool, anew: bool):
        self.out = out
        self.steps = steps(stand_in=stand_in)
        self._started = time.time()
        self._identity = journal.identity(stand_in=stand_in)
        self._privacy = of_this_host()
        self._about = {
            "stand_in": stand_in,
            "revision": _revision(),
            "sglang": lockfile.get(lockfile.load(), "sglang.commit"),
            "host": f"{_system()}, kernel {platform.release()}, {platform.machine()}",
            "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._started)),
        }
        self.outcomes = {} if anew else journal.kept(out / "first-build.json", self._identity)
        for step in self.steps:
            if step.name in self.outcomes and not step.anew:
                print(f"first-build: {step.name}: ok in the earlier run", file=sys.stderr)

    def walk(self, site: Site, until: str) -> None:
        site.data.update({name: outcome.data for name, outcome in self.outcomes.items()})
        walk(self.steps, site, self.outcomes, self._tell, until)

    def _tell(self, step: Step) -> None:
        outcome = self.outcomes[step.name]
        shown = SHOWN.get(outcome.status, outcome.status)
        print(f"first-build: {step.name}: {shown}: {outcome.summary}", file=sys.stderr, flush=True)
        self.write()

    def write(self) -> None:
        """Both files. Raises OSError."""
        about = self._about | {"seconds": round(time.time() - self._started, 1)}
        outcomes = {step.name: self.outcomes[step.name] for step in self.steps if step.name in self.outcomes}
        text = self._privacy.text(report.markdown(about, self.steps, outcomes))
        document = self._privacy.document(journal.document(about, self._identity, outcomes))
        files.replace(self.out / "first-build.json", journal.as_text(document))
        files.replace(self.out / "first-build.md", text)

    @property
    def wrong(self) -> bool:
        allowed = (Status.OK, Status.NOT_RUN) if self._about["stand_in"] else (Status.OK,)
        return any(outcome.status not in allowed for outcome in self.outcomes.values())


def _revision() -> str:
    """As the image says it."""
    try:
        return recipe.revision(ROOT)
    except ImageError:
        return "unknown"


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


@contextmanager
def site(chosen: argparse.Namespace) -> Iterator[Site]:
    """The place of the run. Raises stand_in.Unavailable."""
    if not chosen.stand_in:
        yield Site(pinned(), chosen.out)
        return
    with stand_in.registry(chosen.out / "first-build-registry") as images:
        yield Site(images, chosen.out, stand_in=True)


def main() -> int:
    chosen = options()
    interruption.listen()
    code = 0
    try:
        chosen.out.mkdir(parents=True, exist_ok=True)
        this = Run(chosen.out, stand_in=chosen.stand_in, anew=chosen.anew)
        try:
            with site(chosen) as place:
                this.walk(place, chosen.until)
        except interruption.Interrupted as interrupted:
            print("kdtree: the first build was interrupted; call it again and it goes on", file=sys.stderr)
            code = interrupted.code
        this.write()
    except interruption.Interrupted as interrupted:
        print("kdtree: the first build was interrupted before its first step", file=sys.stderr)
        return interrupted.code
    except stand_in.Unavailable as error:
        print(f"kdtree: {error}", file=sys.stderr)
        return UNAVAILABLE
    except OSError as error:
        print(f"kdtree: the report cannot be written: {error}. Fix: room, or --out FOLDER", file=sys.stderr)
        return FAILED
    print(
        f"{report.verdict(this.outcomes)}\n{chosen.out / 'first-build.md'} is the body of an issue; look at it first."
    )
    return code or (FAILED if this.wrong else 0)


if __name__ == "__main__":
    sys.exit(main())
