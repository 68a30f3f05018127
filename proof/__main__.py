"""python -m proof: see `ci/gpu-proof --help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

import torch

from kdtree_verify.config import Device
from kdtree_verify.errors import ContractError, DeviceError, KdtreeError, UsageError
from kdtree_verify.native.library import load

from . import answers, dialogue, speed, speed_plot, summary
from .results import HERE, Identity, Results, hash_of, identity_in, questions_of, sglang_of
from .starts import STARTS, TWO_RANKS, Start

ROOT = HERE.parent
SPEED_FILE = "speed.json"
LONGEST = 64_000
"""Tokens of the longest prompt, unless told."""
GIB_A_SERVER = 16
"""Of a GPU's memory, for how many servers stand side by side."""
ABOUT = """\
Starts real SGLang servers on this machine's GPUs, patched and not, and compares what they answer (docs/proof.md).

  ci/gpu-proof            every configuration's servers: off, validate, on; what is done already is not done again
  ci/gpu-proof --list     which there are, and which are done; needs no GPU
  ci/gpu-proof report     the verdict and the figures of what is done, of --results FOLDER; needs no GPU
  ci/gpu-proof speed      decode throughput over context and batch, one server at a time"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("bad usage of ci/gpu-proof", message, "see ci/gpu-proof --help")


def parser() -> argparse.ArgumentParser:
    parsed = _Parser(
        prog="ci/gpu-proof",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parsed.add_argument("what", nargs="?", choices=["answers", "report", "speed"], default="answers")
    parsed.add_argument("--only", help="configurations whose name holds one of these words, as eagle4,h20")
    parsed.add_argument("--minutes", type=float, default=9.0, help="after these no server is started (default: 9)")
    parsed.add_argument("--side-by-side", type=int, help=f"servers at once (default: one for each {GIB_A_SERVER} GiB)")
    parsed.add_argument("--longest", type=int, help=f"tokens of the longest prompt (default: {LONGEST})")
    parsed.add_argument(
        "--results", type=Path, help="the folder of results (default: build/proof/answers, build/proof/speed)"
    )
    parsed.add_argument("--list", action="store_true", help="list the servers and start none")
    # ci/gpu-proof asks, before it builds.
    parsed.add_argument("--needs-gpu", action="store_true", help=argparse.SUPPRESS)
    return parsed


def main(argv: list[str]) -> int:
    asked = parser().parse_args(argv)
    if not 0 < asked.minutes <= 600:
        raise UsageError("--minutes is out of range", str(asked.minutes), "give 0 .. 600")
    if asked.side_by_side is not None and asked.side_by_side < 1:
        raise UsageError("--side-by-side is out of range", str(asked.side_by_side), "give 1 or more")
    if asked.longest is not None and asked.longest < 16:
        raise UsageError("--longest is out of range", str(asked.longest), "give 16 or more")
    if asked.what == "speed":
        given = [flag for flag in ("--only", "--side-by-side", "--longest") if vars(asked)[flag[2:].replace("-", "_")]]
        if given:
            raise UsageError("speed always measures the same servers", " ".join(given), "leave that out")
    if asked.needs_gpu:
        _chosen((*STARTS, *TWO_RANKS), asked.only)
        print("no" if asked.list or asked.what == "report" else "yes")
        return 0
    folder = asked.results or ROOT / "build" / "proof" / ("speed" if asked.what == "speed" else "answers")
    if asked.list and asked.what == "speed":
        print("\n".join(speed.name_of(mode, layers) for mode, layers in speed.SERVERS))
        return 0
    if asked.list:
        return listed(_chosen((*STARTS, *TWO_RANKS), asked.only), folder)
    if asked.what == "report":
        return report(folder, _chosen((*STARTS, *TWO_RANKS), asked.only))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError("results cannot be kept", f"{folder}: {error.strerror}", "name another --results") from error
    return served(asked, folder)


def listed(starts: Sequence[Start], folder: Path) -> int:
    """Lists the servers; done are those with an answer of whatever kernel."""
    for job in answers.jobs(starts):
        done = (folder / job.start.name / f"{job.mode}.json").exists()
        print(f"{'done ' if done else 'to do'}  {job.start.name} {job.mode}")
    return 0


def served(asked: argparse.Namespace, folder: Path) -> int:
    """Runs what is not done yet and tells what was found."""
    begun = time.monotonic()
    requests = dialogue.requests(asked.longest or LONGEST)
    if asked.what == "speed":
        questions = questions_of([cell.request(speed.TOKENS) for cell in speed.CELLS], (speed.WIDTH, speed.START))
    else:
        questions = questions_of(requests, answers.SIZE)
    if not torch.cuda.is_available():
        raise DeviceError("no GPU to serve on", "torch sees none", "set PYTHON to one with a CUDA torch")
    try:
        sglang = version("sglang")
    except PackageNotFoundError:
        raise ContractError(
            "no SGLang to serve with", "it is not installed", "see docs/proof.md for a bundle"
        ) from None
    cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    library = load(Path(os.environ.get("KDTREE_LIBRARY_DIR", ROOT / "build" / "lib")), Device.CUDA)
    library.check(library.supports_device(0), "kdtree_supports_device")
    identity = Identity(
        kernel=library.description.source_hash,
        patch=hash_of(ROOT / "patch" / "src"),
        questions=questions,
        sglang=sglang_of(sglang),
        card=cards[0].name,
    )
    deadline = begun + asked.minutes * 60
    if asked.what == "speed":
        return timed(folder, identity, deadline)
    results = Results(folder, identity)
    starts = _chosen((*STARTS, *(TWO_RANKS if len(cards) > 1 else ())), asked.only)
    gib = min(card.total_memory for card in cards) / 2**30
    side_by_side = asked.side_by_side or max(1, int(gib) // GIB_A_SERVER)
    servers = answers.Servers(results, folder.parent / "models", requests, len(cards))
    servers.run(answers.jobs(starts), side_by_side, deadline)
    return verdict(results, starts)


def timed(folder: Path, identity: Identity, deadline: float) -> int:
    """Measures what is not measured yet; 1 where some is left."""
    file = folder / SPEED_FILE
    document: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if document.get("identity") != asdict(identity):
        document = {"identity": asdict(identity), "times": {}}
    folder.mkdir(parents=True, exist_ok=True)

    def save() -> None:
        document["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        part = file.with_name(file.name + ".part")
        part.write_text(json.dumps(document, indent=1) + "\n")
        os.replace(part, file)

    speed.run(document["times"], folder, deadline, save)
    return timings(folder, document)


def timings(folder: Path, document: Mapping[str, Any]) -> int:
    """Tells and draws what is measured; 1 where some is left."""
    print("\n".join(speed.table(document["times"])))
    told = document["identity"]
    date = document.get("date", "")[:10]
    caption = (
        f"{told['card']}, {date}; sources {told['kernel'][:12]}, SGLang {told['sglang'].split()[0]}, {speed.START.name}"
    )
    for name, draw in (("throughput", speed_plot.throughput), ("step", speed_plot.step)):
        if page := draw(document["times"], caption):
            (folder / f"speed-{name}.svg").write_text(page, encoding="utf-8")
    left = len(speed.left(document["times"]))
    print(f"{left} cells left; {folder / SPEED_FILE} and its plots")
    return 0 if left == 0 else 1


def report(folder: Path, starts: Sequence[Start]) -> int:
    """The verdict on what was brought here from where it ran; the timings, where the folder holds those."""
    if (folder / SPEED_FILE).exists():
        return timings(folder, json.loads((folder / SPEED_FILE).read_text()))
    results = Results(folder, identity_in(folder))
    begun = [start for start in starts if any(results.document(start, mode) for mode in start.modes)]
    return verdict(results, begun)


def verdict(results: Results, starts: Sequence[Start]) -> int:
    """Tells and keeps what each configuration's servers did; 1 where one is wrong or not run."""
    found, figures = answers.verdicts(results, starts), summary.gathered(results, starts)
    document = {"identity": asdict(results.identity), "failures": found, "figures": figures}
    (results.folder / "verdicts.json").write_text(json.dumps(document, indent=1) + "\n")
    print("\n".join(summary.table(figures)))
    for name, wrong in found.items():
        print("\n       ".join([f"{'wrong' if wrong else 'ok   '}  {name}", *wrong]))
    right = sum(not wrong for wrong in found.values())
    print(f"{right} of {len(found)} configurations answer as they must; {results.folder}")
    return 0 if right == len(found) else 1


def _chosen(starts: Sequence[Start], words: str | None) -> list[Start]:
    if words is None:
        return list(starts)
    chosen = [start for start in starts if any(word in start.name for word in words.split(","))]
    if not chosen:
        raise UsageError("no such configuration", f"--only {words}", "ci/gpu-proof --list names them")
    return chosen


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KdtreeError as refusal:
        print(refusal, file=sys.stderr)
        raise SystemExit(int(refusal.code)) from None
