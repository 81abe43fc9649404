"""Turns of both sides on one rank of a comparison, so that the machine's drift cancels. A peer whose libraries are in
another environment has a process beside it (external_side.py).
"""

import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.errors import ContactError
from engine.grid import Grid
from engine.layers.compiled import compiles
from engine.measure.rounds import alternating, take_turns
from engine.output import RENEWED
from engine.peers.comparison import Case, Comparison
from engine.peers.external_side import ExternalSide
from engine.peers.ours import Ours, connect
from engine.peers.peer import Peer, StepMetrics
from engine.peers.registry import ROOT
from engine.peers.timed_side import LocalSide, on_batches
from engine.peers.watchdog import At, Fail, Turn, end, limited, nobody, profiled, timed, warm_up
from engine.result.schema.peers import NOTHING, SIDES, PeerContest, SideName
from engine.training.equality import TOLERANCES, check_equal
from engine.training.run import tuned
from engine.training.stall import Stalled, watched

log = logging.getLogger(__name__)

ALONE = Launch(0, 1, 0, "none", "127.0.0.1", 0)


@contextmanager
def watch_turns(comm: Comm, comparison: Comparison, case: Case, fail: Fail) -> Iterator[At]:
    """Call fail if a turn lasts too long, or at one that isn't the peer's a rank waits nearly as long for a collective.

    At the peer's turn, whom we wait for may be waiting for its peer: that the engine stands still would be wrong.
    """

    def fail_for_ours(stalled: Stalled) -> None:
        clause = f"in the comparison with {comparison.name} the engine stands still: {stalled.story()}"
        fail(ContactError(clause, stalled.detail))

    with watched(comm, case.meeting_timeout_s, fail_for_ours) as watch, limited(comparison, comm.rank, fail) as begin:

        def at(turn: Turn) -> None:
            watch.allow(math.inf if turn.peers else turn.limit_s)
            begin(turn)

        yield at


def _toss_coin(comm: Comm) -> bool:
    """Toss a coin on rank 0. Collective. As long as ours was always built first it was slower by 0.4 % than the same
    code, and since then by 0.1 % (30 and 54 jobs of gpt-local-1 on an AMD EPYC, standard errors 0.1 %).
    """
    return bool(comm.gather_rows(torch.tensor([random.random()], dtype=torch.float64))[0] < 0.5)


def peer_side(case: Case, comm: Comm, peer: Peer) -> Callable[[], StepMetrics]:
    """Make the peer's steps on the rows that the engine's ranks have of each batch."""
    return on_batches(peer.step, case, Batch(case.batch.sequences).rows(comm.grid, comm.coords), comm.device)


def measure(
    comm: Comm,
    comparison: Comparison,
    case: Case,
    names: Sequence[SideName] = SIDES,
    launch: Launch = ALONE,
    at: At = nobody,
) -> PeerContest:
    """Warm the sides up, check that they train alike, and time them in turns; before, tune ours where the comparison
    asks for it, and after part steps of each by a profile where the case does. Collective.

    names: of the sides; of one that is left out nothing is measured. launch: this rank's. at: called with each turn.
    Raises RunError if losses or gradient norms of the warm-up steps differ, Unavailable for a peer that can't be run
    here.
    """
    here = "ours" in names and not comparison.checkout
    kernels, tuning = tuned(case, comm) if here and (comparison.tunes or case.tune_matmul) else ({}, None)
    with ExitStack() as processes:

        def beside(comparison: Comparison) -> ExternalSide:
            return processes.enter_context(ExternalSide(comparison, case, comm, launch))

        def theirs() -> LocalSide | ExternalSide:
            if comparison.external:
                return beside(comparison)
            peer = comparison.implementation()
            own = comm
            if isinstance(comparison.layout, Grid) and comparison.layout != comparison.grid:
                own = connect(comparison.layout, case, comm.device)
            return LocalSide(lambda: peer_side(case, own, peer(case, own)), comm.device, case.warmup)

        def ours() -> LocalSide | ExternalSide:
            if comparison.checkout:  # both sides are processes of the same kind
                return beside(replace(comparison, name="the engine", checkout=str(ROOT)))
            return LocalSide(lambda: Ours(case, comm, kernels).step, comm.device, case.warmup)

        sides: dict[SideName, LocalSide | ExternalSide] = {}
        if comparison.checkout and _toss_coin(comm):
            names = names[::-1]
        for name in names:
            at(warm_up(name, comparison, case))
            log.info("%s: warm-up of %s", comparison.name, name, extra=RENEWED)
            sides[name] = ours() if name == "ours" else theirs()
        if len(sides) == len(SIDES):
            check_equal(comparison.name, sides["ours"].values, sides["peer"].values, TOLERANCES[case.precision])

        def begin(index: int) -> bool:
            log.info("%s: round %d/%d", comparison.name, index + 1, case.rounds, extra=RENEWED)
            return True

        for index, name in take_turns(names, case.rounds, alternating, begin):
            comm.barrier()  # until which a rank is at the turn that others are still at
            at(timed(name, comparison, case, index))
            sides[name].take(case.steps)
        for name in names if case.breakdown else ():
            comm.barrier()
            at(profiled(name, comparison, case))
            log.info("%s: profile of %s", comparison.name, name, extra=RENEWED)
            sides[name].part(case.steps)
        at(end(case))
        measured = {name: sides[name].measured() if name in sides else NOTHING for name in SIDES}
    compiled = compiles(comm.device) if "ours" in names else None
    return PeerContest.of(measured["ours"], measured["peer"], tuning, compiled)
