"""The same tests against SGLang 0.5.21, the sources of the pinned image's next day."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pinning import patch_tests

NEIGHBOUR = Path(__file__).parents[2] / "build" / "sglang-0.5.21"


def is_neighbour() -> bool:
    return any(Path(entry).resolve() == NEIGHBOUR for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep))


@pytest.mark.slow
@pytest.mark.skipif(is_neighbour(), reason="this is the run against the neighbour")
@pytest.mark.skipif(not NEIGHBOUR.is_dir(), reason="ci/venv has not unpacked SGLang 0.5.21")
def test_sglang_0_5_21() -> None:
    assert patch_tests.origin(NEIGHBOUR) == str(NEIGHBOUR / "sglang" / "__init__.py")
    assert (NEIGHBOUR / "sglang-0.5.21.dist-info").is_dir()
    passed, said = patch_tests.run(NEIGHBOUR)
    assert passed, said
