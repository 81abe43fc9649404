"""Ranks report why a run failed, and one report is the result's reason. No torch, which takes long to load.

Rank 0 writes a failed result before anything else, so that even a run that is killed has said so. A later report
takes the place of one that explains less: the cause (a failure of the rank's own, or a rank that it knows to be lost)
that of a symptom (it lost contact and sees nobody lost), a symptom that of nothing. Of two that explain as much the
first stays: the later one may be its consequence.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from engine.comm.launch import Launch
from engine.comm.meeting import NotMet
from engine.comm.roster import Roster
from engine.errors import OUT_OF_MEMORY, ContactError, EngineError, UsageError, is_out_of_memory, of_a_file, sentence
from engine.files import locked
from engine.result import provenance
from engine.result.binding import Bindings
from engine.result.schema import Iteration, Result, ResultError, read, write
from engine.training.checks import CheckedRun
from engine.training.model_record import recorded

if TYPE_CHECKING:
    from engine.training.gathered import Ranks

log = logging.getLogger(__name__)

UNFINISHED = "The run ended before it could write its result: it was killed, or its time limit passed."
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOCK_S = 5.0
REPORT_S = 30.0
"""A report may take so long on a slow file system, within the minute that NCCL's watchdog leaves."""
ONE_LAUNCH = timedelta(minutes=1)
"""Ranks may start so far apart, their clocks' difference included."""
FOLLOWS = ", which may follow from the loss of another one"
"""It is said of a rank that can't know: without a roster none sees another one's end."""

Reported = Literal["nothing", "symptom", "cause"]
WEIGHT: dict[Reported | None, int] = {None: 0, "nothing": 0, "symptom": 1, "cause": 2}


class Terminated(ContactError):
    """This rank was asked to end: because another one failed, because time is up, or by a person."""


def end_after(report: Callable[[], object]) -> NoReturn:
    """Report, and end this process, whatever its main thread is at.

    The main thread may hold what reporting needs, such as a log that nobody reads: then it ends after REPORT_S.
    """
    late = threading.Timer(REPORT_S, os._exit, [1])
    late.daemon = True
    late.start()
    try:
        report()
        logging.shutdown()
    finally:
        os._exit(1)  # also if that fails, as nobody else would end this process


class RunReporter:
    """It writes the result of a run, and reports once why it failed on this rank.

    began: when it started, on time.monotonic()'s clock. iterations: those so far. devices, resolved: of this rank, and
    the options that only torch settles, once known. met: whether the ranks have found each other, after which the
    result is surely this run's. training: whether iterations have begun. roster: None before the ranks have met.
    """

    def __init__(self, run: CheckedRun, launch: Launch) -> None:
        self._run, self._launch = run, launch
        self._start, self.began = provenance.now(), time.monotonic()
        self.iterations: list[Iteration] = []
        self.devices: tuple[str, ...] = ()
        self.resolved: dict[str, Any] = {}
        self.met = self.training = False
        self.roster: Roster | None = None
        self.bindings: Bindings | None = None
        """Of all ranks; known to rank 0, once the ranks have met."""
        self._turn = threading.Lock()
        self._over = False

    def begin(self) -> None:
        """Write that the run has not ended yet, and listen to signals from now on."""
        if self._launch.rank == 0:
            write(self._result("failed", UNFINISHED, "nothing"), self._run.config.out)
        ears, mouth = os.pipe()
        os.set_blocking(mouth, False)
        signal.set_wakeup_fd(mouth)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # the pipe has it, without waiting for the main thread
        threading.Thread(target=self._listen, args=(ears,), daemon=True).start()

    def _listen(self, ears: int) -> None:
        number = os.read(ears, 1)[0]
        self.fail(Terminated(f"rank {self._launch.rank} was told to end by {signal.Signals(number).name}"))

    @contextmanager
    def meeting(self, seconds: float) -> Iterator[None]:
        """End this process if the ranks meet for longer than that, whatever it does.

        The time-out of torch's store is kept by its host: if that is stopped, nothing else ends what waits for it.
        """
        launch = self._launch
        late = NotMet(
            f"rank {launch.rank} of {launch.world_size} did not meet the others within {seconds:g} s: the process that "
            f"they meet at, at {launch.master_addr}:{launch.master_port}, answers no more"
        )
        timer = threading.Timer(seconds, self.fail, [late])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def fail(self, error: Exception) -> NoReturn:
        """Report, and end this process, whatever its main thread is at."""
        end_after(lambda: self.report(error))

    def succeed(self, ranks: "Ranks", fields: Mapping[str, Any]) -> None:
        """Write the result of a run that has ended well, with these fields, on rank 0.

        Nothing that a rank reports takes its place. ranks: what they say of themselves.
        """
        update = {"memory": ranks.memory, "transport": ranks.transport, **fields}
        result = self._result("ok", None, None, ranks).model_copy(update=update)
        with self._turn, locked(self._run.config.out.parent, LOCK_S):
            write(result, self._run.config.out)

    def end(self) -> None:
        """Restore the default handlers of signals and close the roster, so that this process can begin another run."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self.roster is not None:
            self.roster.close()

    def report(self, error: Exception) -> None:
        """Log why this rank fails, and write it if nobody has reported as much."""
        with self._turn:
            if self._over:
                return
            self._over = True
            reason, reported = self._judge(error)
            if not isinstance(error, EngineError) and not of_a_file(error):
                log.error("", exc_info=error)
            if not isinstance(error, UsageError):  # which the command says at its end
                log.error("%s", reason)
            with suppress(EngineError, OSError):
                if not self._reported_already(reported):
                    with locked(self._run.config.out.parent, LOCK_S):
                        self._write(reason, reported)
            if self.roster is not None:
                self.roster.goodbye()

    def _judge(self, error: Exception) -> tuple[str, Reported]:
        """Give the reason as one sentence, and how much it explains."""
        lines = str(error).strip().splitlines()
        words = next(
            (line for line in lines if OUT_OF_MEMORY in line.lower()), lines[0] if lines else type(error).__name__
        )
        rank, roster = self._launch.rank, self.roster
        if isinstance(error, ContactError):
            clause, detail = error.story(), error.detail
        elif isinstance(error, RuntimeError) and not is_out_of_memory(error):  # torch's of a broken connection is one
            clause, detail = f"rank {rank} failed", words
        else:
            return words if isinstance(error, EngineError) else f"Rank {rank} failed {self._when()}: {words}", "cause"
        lost = {} if roster is None else roster.lost() if isinstance(error, Terminated) else roster.watch()
        when = "" if isinstance(error, NotMet) else f" {self._when()}"
        alone = roster is not None or self._launch.world_size == 1 or isinstance(error, NotMet)
        follows = "" if alone else FOLLOWS
        if roster is not None and lost:
            if isinstance(error, ContactError):
                clause = error.story(lost)
            return sentence(f"{roster.describe(lost)}, so {clause}{when}", detail), "cause"
        first = isinstance(error, Terminated) and roster is not None and roster.whole and not roster.heard()
        return sentence(f"{clause}{when}{', before any other rank was lost' if first else follows}", detail), (
            "cause" if first else "symptom"
        )

    def _when(self) -> str:
        if not self.met:
            return "before the ranks had met"
        if not self.training:
            return "before iteration 0"
        done = len(self.iterations)
        return f"in iteration {done}" if done < self._run.config.iterations else "after the last iteration"

    def _reported_already(self, reported: Reported) -> bool:
        """Say whether the result says so much that this adds nothing."""
        present = self._present()
        return present is not None and (present.status == "ok" or WEIGHT[present.told] >= WEIGHT[reported])

    def _write(self, reason: str, reported: Reported) -> None:
        if self._reported_already(reported):
            return
        result = self._present() or self._result("failed", reason, reported)
        origin = {"end": provenance.now(), "bindings": self.bindings or result.provenance.bindings}
        ended = result.provenance.model_copy(update=origin)
        update = {
            "reason": reason,
            "told": reported,
            "config": result.config | self.resolved,
            "iterations": tuple(self.iterations),
            "provenance": ended,
        }
        write(result.model_copy(update=update), self._run.config.out)

    def _present(self) -> Result | None:
        """Read this run's result as it stands. Before the ranks have met a file may be an earlier run's."""
        try:
            present = read(self._run.config.out)
        except ResultError:
            return None
        if self.met or self._launch.rank == 0:
            return present
        age = datetime.fromisoformat(self._start) - datetime.fromisoformat(present.provenance.end)
        return present if present.status == "failed" and age < ONE_LAUNCH else None

    def _result(
        self,
        status: Literal["ok", "failed"],
        reason: str | None,
        reported: Reported | None,
        ranks: "Ranks | None" = None,
    ) -> Result:
        """Make what every result of this run holds. ranks: without them host and device are this rank's."""
        run, config = self._run, self._run.config
        return Result(
            kind=run.kind,
            status=status,
            reason=reason,
            told=reported,
            labels=dict(config.labels),
            config=run.as_options() | self.resolved,
            ranks=self._launch.world_size,
            grid=str(run.grid),
            model=recorded(run.training, run.grid),
            iterations=tuple(self.iterations),
            dtype=config.precision,
            provenance=provenance.collect(
                start=self._start,
                launcher=self._launch.launcher,
                hosts=ranks.hosts if ranks else [socket.gethostname()],
                devices=ranks.devices if ranks else self.devices,
                clocks=ranks.clocks if ranks else (),
                bindings=self.bindings,
            ),
        )
