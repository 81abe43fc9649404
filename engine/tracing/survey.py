"""Many trainings are traced, several at a time where there are several cores."""

import logging
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial

from engine.errors import RunError
from engine.grid import Grid
from engine.loading import cores
from engine.progress import RENEWED
from engine.tracing.predict import Traced, traced
from engine.tracing.stages import TracedStages, traced_stages
from engine.training_record import Training

log = logging.getLogger(__name__)

Predictor = Traced | TracedStages
"""It says how long a step of a training takes on any machine."""

BAR = 20
WORTH_A_POOL = {True: 4, False: 16}
"""So many whole networks (True), or grids by few layers, are worth the seconds that processes take to start."""


def survey(
    trainings: Sequence[Training], grids: Sequence[Grid], *, device_memory: float | None = None, exact: bool = False
) -> list[Predictor]:
    """Trace each training on its grid; log how far that is."""
    what = "whole networks" if exact else "grids"
    one = partial(_traced, device_memory=device_memory, exact=exact)
    found: list[Predictor] = []
    whole = exact or not all(training.model.network().alike for training in trainings)
    with _several(len(grids) >= WORTH_A_POOL[whole]) as each:
        for done in each(one, trainings, grids):
            found.append(done)
            log.info("%s traced %d of %d %s", _bar(len(found), len(grids)), len(found), len(grids), what, extra=RENEWED)
    return found


def _traced(training: Training, grid: Grid, *, device_memory: float | None, exact: bool) -> Predictor:
    if grid.stages > 1:
        return traced_stages(training, grid, device_memory)
    return traced(training, grid, device_memory=device_memory, exact=exact)


def _bar(done: int, of: int) -> str:
    return "#" * (BAR * done // of) + "." * (BAR - BAR * done // of)


@contextmanager
def _several(pool: bool) -> Iterator[type[map]]:
    """Give a map over processes, or in this one. New ones are forked from a server that has done nothing but load."""
    workers = min(len(cores()), 8)
    if not pool or workers == 1:
        yield map
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.tracing.predict"])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        with ProcessPoolExecutor(workers, mp_context=context) as executor:
            yield executor.map  # type: ignore[misc]
    except BrokenProcessPool:
        raise RunError("A process that traced was ended from outside, perhaps for want of memory: try again.") from None
