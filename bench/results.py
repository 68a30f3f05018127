"""The file of results: one a card, a section a run, the grid's cells added as they come."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kdtree_verify.errors import UsageError

SCHEMA = 1
RUN_KEYS = {"date", "commit", "hardware", "versions", "library", "ceilings", "missing_peers", "rows"}

Run = dict[str, Any]


class Results:
    """Sections by name: "table", "table-e4m3", "grid", each a run.

    Args:
        path: The file; made on the first `save`.

    Raises:
        UsageError: The file is there and is not such a file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sections: dict[str, Run] = {}
        if path.exists():
            self.sections = _read(path)

    def begin(self, name: str, run: Run) -> Run:
        """The section for a run: what is there already where it is of the same library and card, else a new one."""
        there = self.sections.get(name)
        if there and identity(there) == identity(run):
            return there
        self.sections[name] = run
        return run

    def save(self) -> None:
        """Writes the file whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._part.write_text(_text(self.sections))
        os.replace(self._part, self.path)

    def check_writable(self) -> None:
        """What takes minutes to measure shall have a place.

        Raises:
            UsageError: `save` would fail.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._part.touch()
            self._part.unlink()
        except OSError as error:
            raise UsageError(
                "the file of results cannot be written", str(error), "name another with --results"
            ) from error

    @property
    def _part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")


def identity(run: Run) -> tuple[Any, ...]:
    """What two runs must share for their cells to stand in one section."""
    return run["library"]["source_hash"], run["hardware"]["name"], run["versions"].get("sglang")


def finished(run: Run) -> set[str]:
    """Keys of the cells that the run has and need not do again."""
    return {row["key"] for row in run["rows"]}


def _text(sections: dict[str, Run]) -> str:
    """JSON with a line for each row, so that a file under version control can be read and compared."""

    def value(thing: Any) -> str:
        if isinstance(thing, list) and thing:
            return "[\n" + ",\n".join(f"   {json.dumps(item)}" for item in thing) + "\n  ]"
        return json.dumps(thing)

    runs = []
    for name, run in sections.items():
        entries = ",\n".join(f"  {json.dumps(key)}: {value(thing)}" for key, thing in run.items())
        runs.append(f" {json.dumps(name)}: {{\n{entries}\n }}")
    return f'{{"schema": {SCHEMA}, "sections": {{\n' + ",\n".join(runs) + "\n}}\n"


def _read(path: Path) -> dict[str, Run]:
    fix = "name another file, or remove it"
    try:
        content = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError("the file of results cannot be read", f"{path}: {error}", fix) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UsageError("not a file of results of this version", str(path), fix)
    sections: dict[str, Run] = content["sections"]
    for name, run in sections.items():
        if missing := RUN_KEYS - run.keys():
            raise UsageError("a section lacks its keys", f"{path}: {name}: {', '.join(sorted(missing))}", fix)
    return sections
