"""Random faults, weekly each signal at each moment once: none hangs, each is told, and no checkpoint is hurt."""

from pathlib import Path

import pytest
from faults import SIGNALS, Moment, campaign, draw

from engine.grid import Grid

SEED = 11
GRID, FEW = Grid(data=3), Grid(data=2)


def test_what_is_done_follows_from_the_seed() -> None:
    assert draw(40, 4, 7) == draw(40, 4, 7)
    assert draw(40, 4, 7) != draw(40, 4, 8)
    assert len({(fault.signal, fault.moment) for fault in draw(20, 4, 7)}) == len(SIGNALS) * len(Moment) == 20


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, pytest.param(20, marks=pytest.mark.weekly)])
def test_a_rank_that_is_lost_at_any_moment_is_told_and_no_checkpoint_is_hurt(count: int, tmp_path: Path) -> None:
    told = list(campaign(draw(count, GRID.size, SEED, FEW.size), GRID, tmp_path, jobs=3, few=FEW))
    assert len(told) == count
    assert not any(one.problems for one in told), "\n".join(one.row() for one in told)
