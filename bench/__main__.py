"""python -m bench: see `ci/bench --help`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from kdtree_verify.errors import ContractError, DeviceError, ExitCode, KdtreeError, LibraryError, UsageError

from . import cells, model
from .results import Results

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "docs" / "benchmark" / "h200.json"
ABOUT = """\
Times kdtree_verify on an NVIDIA GPU beside SGLang's kernel, FlashInfer's and the card's ceilings (docs/benchmark.md).

  ci/bench [table]        the table with every peer, the goals, and the model's estimates
  ci/bench --pool e4m3    the table on an fp8 pool, beside the same on bf16
  ci/bench modes          what a call costs with on, with on that samples, and with validate
  ci/bench grid           the grid against SGLang's kernel, as far as the time allows; again to go on
  ci/bench plot FILE      draws a file of results; needs no GPU
  ci/bench compare FILE   holds a file of results to the card's record; needs no GPU"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("bad usage of ci/bench", message, "see ci/bench --help")


def parser() -> argparse.ArgumentParser:
    parsed = _Parser(
        prog="ci/bench",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parsed.add_argument("what", nargs="?", choices=["table", "modes", "grid", "plot", "compare"], default="table")
    parsed.add_argument("file", nargs="?", type=Path, help="of results, for plot and compare")
    parsed.add_argument(
        "--pool", choices=sorted(cells.POOLS), default="bf16", help="the pool's elements, for the table"
    )
    parsed.add_argument("--minutes", type=float, default=9.0, help="after these no cell begins (default: 9)")
    parsed.add_argument("--results", type=Path, help="the file of results (default: build/bench/CARD.json)")
    parsed.add_argument("--commit", help="what to record where there is no git checkout")
    parsed.add_argument("--into", type=Path, help="plot: the folder (default: the file's)")
    parsed.add_argument("--dry-run", action="store_true", help="list the cells and time nothing; needs no GPU")
    parsed.add_argument("--needs-gpu", action="store_true", help=argparse.SUPPRESS)  # ci/bench asks before it builds
    return parsed


def main(argv: list[str]) -> int:
    asked = parser().parse_args(argv)
    if not 0 < asked.minutes <= 600:
        raise UsageError("--minutes is out of range", str(asked.minutes), "give 0 .. 600")
    if asked.what in ("grid", "modes") and asked.pool != "bf16":
        raise UsageError(
            f"{asked.what} is of bf16 pools", f"--pool {asked.pool}", "leave --pool out, or time the table"
        )
    if (asked.what in ("plot", "compare")) != (asked.file is not None):
        raise UsageError("plot and compare take a file, the others none", str(asked.file), "see ci/bench --help")
    needs_gpu = asked.file is None and not asked.dry_run
    if needs_gpu and asked.results is not None:
        Results(asked.results).check_writable()
    if asked.needs_gpu:
        print("yes" if needs_gpu else "no")
        return 0
    if asked.what == "plot":
        from . import plot

        for drawn in plot.draw(asked.file, asked.into or asked.file.parent):
            print(drawn)
        return 0
    if asked.what == "compare":
        return compared(asked.file)
    if asked.dry_run:
        return dry_run(asked)
    return timed(asked)


def compared(file: Path) -> int:
    """Tells how a file of results differs from what is recorded; 1 where that is worse."""
    from .compare import compare

    told, worse = compare(file, RECORDED.parent)
    print("\n".join(told))
    for line in worse:
        print(f"kdtree: worse than recorded: {line}. Fix: the kernel, or record the new run", file=sys.stderr)
    return ExitCode.UNHEALTHY if worse else 0


def dry_run(asked: argparse.Namespace) -> int:
    """Lists what would be timed."""
    listed = cells.needed(asked.what, asked.pool)
    for cell in listed:
        print(f"{cell.key:<28} {cell.pool_bytes / 1e6:10.2f} MB {cell.flops / 1e9:12.2f} GFLOP")
    print(f"{len(listed)} cells")
    return 0


def timed(asked: argparse.Namespace) -> int:
    """Runs what was asked for on the first GPU."""
    from dataclasses import asdict

    import torch

    from kdtree_verify.config import Device
    from kdtree_verify.native.library import load

    from . import ceilings, environment, modes, peers, report, runner, sections
    from .contenders import Kdtree
    from .inputs import Inputs
    from .timing import GpuTimer

    if not torch.cuda.is_available():
        raise DeviceError("no GPU to time on", "torch sees none", "set PYTHON to one with a CUDA torch")
    deadline = runner.Deadline(asked.minutes * 60)
    device = torch.device("cuda", 0)
    capability = torch.cuda.get_device_capability(device)
    library = load(Path(os.environ.get("KDTREE_LIBRARY_DIR", ROOT / "build" / "lib")), Device.CUDA)
    library.check(library.supports_device(0), "kdtree_supports_device")
    ours = Kdtree(library, device)
    if not ours.takes(asked.pool):
        raise LibraryError(
            f"the library takes no {asked.pool} pool", str(library.description.path), "build a newer one"
        )

    run = environment.describe(library, device, asked.commit)
    results = Results(asked.results or ROOT / "build" / "bench" / f"{environment.slug(run['hardware']['name'])}.json")
    run["ceilings"] = asdict(ceilings.measure(device))
    run["clocks"] = environment.clocks()
    run["own_stock"] = peers.own_stock(capability)
    grid = asked.what == "grid"
    wanted = sections.peers_needed(asked.what, asked.pool, run["own_stock"])
    found, run["missing_peers"] = peers.load(wanted, device)
    if asked.what == "modes" and run["missing_peers"]:
        missing = "; ".join(run["missing_peers"].values())
        raise ContractError("no SGLang kernel for the modes to run", missing, "run ci/bench-peers")
    run["rows"] = []

    line = report.RowLine(cells.Ceilings(run["ceilings"]["copy"], run["ceilings"]["mma"]))
    print("\n".join(report.head(run, run["missing_peers"])), flush=True)
    rotation = max(256 << 20, 4 * torch.cuda.get_device_properties(device).L2_cache_size)
    memory = runner.memory_to_use(device)
    fitting = [cell for cell in cells.needed(asked.what, asked.pool) if runner.memory_needed(cell, 1) <= memory]
    bench = runner.Bench(
        inputs=Inputs(device, runner.slots(fitting, rotation)),
        timer=GpuTimer(replays=5, replay_us=1000) if grid else GpuTimer(replays=15, replay_us=4000),
        rotation_bytes=rotation,
        memory=memory,
    )
    session = sections.Session(
        bench=bench,
        ours=ours,
        peers={peer.name: peer for peer in found},
        own_stock=run["own_stock"],
        recorded_fit=recorded_fit(run["hardware"]["name"]),
        results=results,
        deadline=deadline,
        say=lambda text: print(text, flush=True),
        line=line,
    )
    if grid:
        run = sections.run_grid(session, run)
    elif asked.what == "modes":
        (stock,) = found
        assert isinstance(stock, peers.Stock)
        run = sections.run_modes(session, run, modes.contenders(library, stock.extend_attention_fwd, device))
    elif asked.pool == "bf16":
        run = sections.run_table(session, run)
    else:
        run = sections.run_fp8(session, run, asked.pool)
    print("\n".join([*report.model_lines(run), f"{results.path}; draw it: ci/bench plot {results.path}"]))
    bad = sections.bad_rows(run)
    for row in bad:
        print(f"kdtree: a cell is wrong: {line(row)}. Fix: the kernel", file=sys.stderr)
    return ExitCode.LIBRARY if bad else 0


def recorded_fit(card: str) -> model.Fit | None:
    """The model's fit to the run that the repository records, where that is of another card than this."""
    results = Results(RECORDED)
    run = results.sections.get("table")
    return None if run is None or run["hardware"]["name"] == card else model.fit(run)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KdtreeError as error:
        print(error, file=sys.stderr)
        sys.exit(int(error.code))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(int(ExitCode.UNHEALTHY))
