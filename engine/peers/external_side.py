"""Side in another Python, whose libraries contradict ours, or of another commit: a process beside each rank, to which a
baton passes; against another commit ours is one, too.

A rank that waits, ours or the peer's, blocks on a pipe and leaves its core to the other. The peer's ranks meet among
themselves. What they write goes into a file, whose end is logged when one fails.
"""

import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, Self

import torch
from pydantic import ValidationError

from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.errors import ContactError, RunError
from engine.peers.comparison import Case, Comparison, Unavailable
from engine.peers.peer import StepMetrics
from engine.peers.pickled import dumps
from engine.peers.registry import ROOT, choose_environ, python_of
from engine.peers.timed_side import PART
from engine.peers.watchdog import Turn, end, profiled, timed, warm_up
from engine.processes import ends, kill_group
from engine.result.schema.peers import PeerSide

log = logging.getLogger(__name__)

LEAVE_S = 10.0
BEFORE_OUR_OWN = 0.9
"""Part of a turn's limit after which our own process ends the other and logs what that wrote, before it is ended."""
OVER_GLOO = {"PAR4D_SHARED_MEMORY": "0"}
"""Some commits send between ranks of a host through shared memory unless this is set; here both sides take gloo."""
LINES = 20
"""Lines of what a peer wrote that are logged when it fails."""


def inherit(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a peer's process takes over: all but those of NCCL's log, which goes to one of our own
    files by its number (transport.py), and would overwrite whichever file has that number there.
    """
    return {name: value for name, value in environ.items() if not name.startswith("NCCL_DEBUG")}


class ExternalSide:
    """Side as LocalSide, in a process of its own. Collective: every rank has one. To be closed, which ends it."""

    def __init__(self, comparison: Comparison, case: Case, comm: Comm, launch: Launch) -> None:
        self._comparison, self._case, self._rank = comparison, case, launch.rank
        self._begin(warm_up("peer", comparison, case))
        self._rounds = 0
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        here, there = Pipe()
        words = [str(python_of(comparison.library)), "-P", "-m", "engine.peers.external", str(there.fileno())]
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(case.threads)}
        if comparison.checkout:  # whose Python is ours, with what it finds by that
            own["PYTHONPATH"] = os.pathsep.join(filter(None, [comparison.checkout, os.environ.get("PYTHONPATH")]))
            own |= OVER_GLOO
        own |= {"PYTHONUNBUFFERED": "1"} | choose_environ(comparison.library, comm.device.type)
        self._process = subprocess.Popen(
            words,
            pass_fds=(there.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=inherit(os.environ) | own,
            process_group=0,  # an interrupt is ours to handle: the pipe says it. A session has its own share of time
        )
        there.close()
        self._pipe: Connection = here
        try:
            with suppress(OSError):  # that it has died shows when it is to answer
                here.send_bytes(dumps((comparison, case, launch)))
            port = self._answer() if launch.rank == 0 else 0
            self._send(int(comm.gather_rows(torch.tensor([port], dtype=torch.float64))[0]))
            self.values: Sequence[StepMetrics] = self._answer()
        except BaseException:
            self.close()
            raise

    def take(self, steps: int) -> None:
        self._begin(timed("peer", self._comparison, self._case, self._rounds))
        self._rounds += 1
        self._send(steps)
        self._answer()

    def part(self, steps: int) -> None:
        self._begin(profiled("peer", self._comparison, self._case))
        self._send((PART, steps))
        self._answer()

    def measured(self) -> PeerSide:
        self._begin(end(self._case))
        self._send(None)
        try:
            return PeerSide.model_validate(self._answer())
        except ValidationError as error:
            raise RunError(f"What {self._comparison.name} measured isn't as here, so take a later commit.") from error

    def close(self) -> None:
        """End the process: it ends by itself when nobody holds the pipe any more."""
        self._pipe.close()
        ends(self._process, time.monotonic() + LEAVE_S)
        kill_group(self._process)
        self._output.close()

    def _begin(self, turn: Turn) -> None:
        self._turn, self._until = turn, time.monotonic() + BEFORE_OUR_OWN * turn.limit_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _send(self, what: Any) -> None:
        """Send to the process; whether it has died shows when it is to answer."""
        with suppress(OSError):
            self._pipe.send(what)

    def _answer(self) -> Any:
        """Receive an answer. Raises RunError, Unavailable."""
        if not self._pipe.poll(max(0.0, self._until - time.monotonic())):
            raise self._time_out()
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            answer = RunError(f"A rank of {self._comparison.name} died: is memory short for two models?")
        if isinstance(answer, Unavailable):
            raise answer
        if isinstance(answer, Exception):
            self._log_last_lines()
            raise answer
        return answer

    def _time_out(self) -> ContactError:
        """Kill the peer, which may not notice a closed pipe; return the error."""
        kill_group(self._process)
        self._log_last_lines()
        turn = self._turn
        return ContactError(
            f"{self._comparison.name} beside rank {self._rank} has been at {turn.at} for "
            f"{BEFORE_OUR_OWN * turn.limit_s:.3g} s, as {turn.option} allows {turn.limit_s:g} s"
        )

    def _log_last_lines(self) -> None:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()[-LINES:]
        log.error("The last that %s wrote:\n%s", self._comparison.name, "\n".join(lines))
