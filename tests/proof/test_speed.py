"""What is timed of a batch: the time in which all of it is decoded."""

from __future__ import annotations

import pytest

from proof import speed
from proof.speed import Progress


def answered(begin: float, interval: float, pieces: int, tokens: int, steps: int) -> Progress:
    """An answer that comes in so many pieces of so many tokens."""
    progress = Progress()
    for i in range(pieces):
        progress.add(begin + i * interval, (i + 1) * tokens, steps)
    return progress


def test_one_request() -> None:
    # 11 pieces of 2 tokens, 10 ms apart: 10 of them after the first; 11 steps.
    found = speed.timed([answered(1.0, 0.01, 11, 2, 11)])
    assert found.tokens_a_second == pytest.approx(200)
    assert found.accept_length == 2
    assert found.step_ms == pytest.approx(10)


def test_only_while_the_whole_batch_is_decoded() -> None:
    # The second begins 50 ms later and both go on until the first ends: 60 ms, 6 pieces of 2 tokens each.
    both = [answered(0.0, 0.01, 12, 2, 12), answered(0.05, 0.01, 30, 2, 30)]
    found = speed.timed(both)
    assert found.tokens_a_second == pytest.approx(2 * 12 / 0.06)
    assert found.step_ms == pytest.approx(10)


def test_a_batch_that_never_decodes_together_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="more tokens"):
        speed.timed([answered(0.0, 0.01, 3, 1, 3), answered(1.0, 0.01, 3, 1, 3)])
    with pytest.raises(ValueError, match="not answered"):
        speed.timed([answered(0.0, 0.01, 3, 1, 3), Progress()])


def test_the_full_model_is_estimated_by_its_layers() -> None:
    assert speed.full_model_ms(5.0, 7.0) == pytest.approx(5.0 + 25.0)
