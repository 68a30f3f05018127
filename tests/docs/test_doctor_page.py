"""docs/doctor.md: its table has the doctor's checks, in the order in which they are asked."""

from __future__ import annotations

import documents
from kdtree_verify.doctor import run

PAGE = documents.ROOT / "docs" / "doctor.md"


def test_every_check_is_in_the_table_in_its_order() -> None:
    told = [row[0].strip("`") for row in documents.rows(documents.section(PAGE, "The checks, in their order"))]
    first = len(run.BEFORE_KERNEL)
    assert told[: first + len(run.INSTALLATION) + 1] == [
        check.name for check in (*run.BEFORE_KERNEL, *run.INSTALLATION, run.PEERS)
    ]
    assert f"The entrypoint asks `{told[0]}` to `{told[first - 1]}`;" in PAGE.read_text()
