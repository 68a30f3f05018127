"""The runs: the table with every peer, the same on an fp8 pool, the grid in parts, what a mode costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from . import model, verdict
from .cells import LONG, MIXED, MODES, SMALL, TABLE, Cell, grid
from .contenders import Contender
from .results import Results, Run, finished
from .runner import Bench, Deadline, Row

Say = Callable[[str], None]
PEERS_OF_TABLE = ("stock_sm90", "stock_sm120", "flashinfer_fa2", "flashinfer_fa3")


@dataclass(frozen=True)
class Session:
    """What the runs share.

    Attributes:
        bench: Runs cells.
        ours, peers: Contenders; `peers` by name.
        own_stock: The peer that is SGLang's kernel as it would run on this card.
        recorded_fit: The model's, from a recorded run on another card; None: fitted to this run.
        results: Where everything is kept.
        deadline: After it no further cell begins.
        say: Takes a line of the report.
        line: Formats a row for it.
    """

    bench: Bench
    ours: Contender
    peers: dict[str, Contender]
    own_stock: str
    recorded_fit: model.Fit | None
    results: Results
    deadline: Deadline
    say: Say
    line: Callable[[Row], str]

    def contenders(self, names: Iterable[str]) -> list[Contender]:
        return [self.ours, *(self.peers[name] for name in names if name in self.peers)]

    def rows(self, cells: Sequence[Cell], names: Iterable[str]) -> list[Row]:
        """The cells' rows, up to the deadline."""
        contenders = self.contenders(names)
        rows = []
        for cell in cells:
            if self.deadline.passed():
                self.say(f"time is up before {cell.key}: its row and what follows are missing")
                break
            rows.append(self.bench.run(cell, contenders))
            self.say(self.line(rows[-1]))
        return rows


def peers_needed(what: str, pool: str, own_stock: str) -> list[str]:
    """Names of the peers that a run compares with."""
    if what != "table" or pool != "bf16":
        return [own_stock]
    return list(dict.fromkeys([*PEERS_OF_TABLE, own_stock]))


def run_table(session: Session, run: Run) -> Run:
    """The table with every peer; short prefixes; one long request beside short ones; a refilled graph."""
    run["rows"] = session.rows(TABLE, PEERS_OF_TABLE)
    run["small"] = session.rows(SMALL, [session.own_stock])
    run["mixed"] = session.rows(MIXED, [])
    if not session.deadline.passed():
        run["refilled"] = session.bench.run_refilled(LONG, SMALL[-1], session.ours)
        session.say(session.line(run["refilled"]))
    else:
        run["mixed"] = []
    found = session.recorded_fit or model.fit(run)
    estimates = model.table(run["rows"], model.measured_card(run), found) if found else []
    run["model"] = {"fit": asdict(found), "rows": estimates} if found else None
    return _close(session, "table", run)


def run_fp8(session: Session, run: Run, pool: str) -> Run:
    """The table on an fp8 pool, and on a bf16 one for comparison."""
    run["bf16_rows"] = session.rows(TABLE, [])
    run["rows"] = session.rows([replace(cell, pool=pool) for cell in TABLE], [session.own_stock])
    return _close(session, f"table-{pool}", run)


def run_grid(session: Session, run: Run) -> Run:
    """What the grid still lacks, up to the deadline; each row is kept as it comes."""
    cells = grid()
    part = {key: run[key] for key in ("date", "commit", "ceilings", "clocks")}
    run = session.results.begin("grid", {**run, "grid_cells": len(cells), "parts": []})
    run["parts"].append(part)
    missing = [cell for cell in cells if cell.key not in finished(run)]
    contenders = session.contenders([session.own_stock])
    for done, cell in enumerate(missing):
        if session.deadline.passed():
            break
        row = session.bench.run(cell, contenders)
        run["rows"].append(row)
        if done % 32 == 0:
            session.results.save()
            session.say(session.line(row))
    left = len(cells) - len(finished(run))
    session.say(f"grid: {len(cells) - left} of {len(cells)} cells" + (f", {left} to go: run it again" if left else ""))
    for row in verdict.slower_cells(run["rows"], session.own_stock):
        session.say(f"slower than SGLang's: {session.line(row)}")
    return _close(session, "grid", run)


def run_modes(session: Session, run: Run, modes: Sequence[Contender]) -> Run:
    """What a call costs in each mode, beside the kernel's and stock's alone."""
    contenders = [*session.contenders([session.own_stock]), *modes]
    for cell in MODES:
        if session.deadline.passed():
            session.say(f"time is up before {cell.key}: its row and what follows are missing")
            break
        run["rows"].append(session.bench.run(cell, contenders))
        session.say(session.line(run["rows"][-1]))
    session.results.sections["modes"] = run
    session.results.save()
    return run


def _close(session: Session, name: str, run: Run) -> Run:
    found = verdict.verdicts(run)
    run["verdicts"] = [asdict(one) for one in found]
    session.results.sections[name] = run
    session.results.save()
    for one in found:
        session.say(str(one))
    return run


def bad_rows(run: Run) -> list[Row]:
    """Rows in which our own kernel was wrong or failed."""
    refilled = [run["refilled"]] if "refilled" in run else []
    rows = [*run["rows"], *run.get("small", []), *run.get("mixed", []), *run.get("bf16_rows", []), *refilled]
    return [row for row in rows if row["times"].get("kdtree", {"status": "timed"})["status"] != "timed"]
