"""Write why a command failed into its result, first that it has not ended. No torch, which takes long to load.

Rank 0 writes a failed result before anything else, so that even a command that is killed has said so. A later report
takes the place of one that explains less: the cause (a failure of the rank's own, or a rank that it knows to be lost)
that of a symptom (it lost contact and sees nobody lost), a symptom that of nothing. Of two that explain as much the
first stays: the later one may be its consequence.
"""

import logging
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, Literal, NoReturn, TypeVar

from engine.comm.contact import Roster
from engine.comm.launch import Launch
from engine.comm.meeting import NotMet
from engine.errors import OUT_OF_MEMORY, ContactError, EngineError, UsageError, is_out_of_memory, of_a_file, sentence
from engine.files import locked
from engine.result import provenance
from engine.result.schema import Diagnosis, Result, ResultError
from engine.result.schema.machine import Bindings
from engine.result.schema.peers import PeersResult

log = logging.getLogger(__name__)

UNFINISHED = "The run ended before it could write its result: it was killed, or its time limit passed."
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOCK_S = 5.0
REPORT_S = 30.0
"""Longest time for a report on a slow file system, within the minute that NCCL's watchdog leaves."""
ONE_LAUNCH = timedelta(minutes=1)
"""Longest time between the starts of ranks, their clocks' difference included."""
FOLLOWS = ", which may follow from the loss of another one"
"""Said of a rank that can't know: without a roster none sees another one's end."""

Status = Literal["ok", "failed"]
WEIGHT: dict[Diagnosis | None, int] = {None: 0, "nothing": 0, "symptom": 1, "cause": 2}
Kept = TypeVar("Kept", Result, PeersResult)


class Terminated(ContactError):
    """Signal to this rank to end: because another one failed, because time is up, or by a person."""


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


class Reporter(ABC, Generic[Kept]):
    """Result of a command on one of its ranks: failed until it has ended, and once why."""

    def __init__(
        self, launch: Launch, out: Path, read: Callable[[Path], Kept], write: Callable[[Kept, Path], None]
    ) -> None:
        """Begin nothing yet. read: gives the file back, or raises ResultError. write: replaces it in one step."""
        self.launch = launch
        self.out = out
        self._read: Callable[[Path], Kept] = read
        self._write: Callable[[Kept, Path], None] = write
        self.start = provenance.now()
        self.began = time.monotonic()
        self.met = False
        """Whether the ranks have found each other, after which the file is surely this command's."""
        self.roster: Roster | None = None
        """Processes of this host's ranks; None before the ranks have met."""
        self.bindings: Bindings | None = None
        """Where all ranks are bound; known to rank 0, once they have met."""
        self._turn = threading.Lock()
        self._over = self._listens = False

    @abstractmethod
    def document(self, status: Status, reason: str | None, diagnosis: Diagnosis | None) -> Kept:
        """Make the file with what this rank knows so far."""

    def known(self, document: Kept) -> dict[str, Any]:
        """Give fields of the file that is there, of which this rank knows more."""
        return {}

    def when(self, error: Exception) -> str:
        """Say at what the command is, to end a clause about the error."""
        return "" if self.met else "before the ranks had met"

    def begin(self) -> None:
        """Write that the command has not ended yet."""
        if self.launch.rank == 0:
            self._write(self.document("failed", UNFINISHED, "nothing"), self.out)

    def listen(self) -> None:
        """Report a signal that tells this rank to end, from now on."""
        signal_pipe, speaking = os.pipe()
        os.set_blocking(speaking, False)
        signal.set_wakeup_fd(speaking)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # the pipe has it, without waiting for the main thread
        threading.Thread(target=self._await_signal, args=(signal_pipe,), daemon=True).start()
        self._listens = True

    def _await_signal(self, signal_pipe: int) -> None:
        number = os.read(signal_pipe, 1)[0]
        self.fail(Terminated(f"rank {self.launch.rank} was told to end by {signal.Signals(number).name}"))

    @contextmanager
    def meeting(self, seconds: float) -> Iterator[None]:
        """End this process if the ranks meet for longer than that, whatever it does.

        The time-out of torch's store is kept by its host: if that is stopped, nothing else ends what waits for it.
        """
        launch = self.launch
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

    def report(self, error: Exception, *, logged: bool = True) -> None:
        """Write why this rank fails, if nobody has reported as much. logged: whether to log it, too."""
        with self._turn:
            if self._over:
                return
            self._over = True
            reason, reported = self._judge(error)
            if not isinstance(error, EngineError) and not of_a_file(error):
                log.error("", exc_info=error)
            if logged and not isinstance(error, UsageError):
                log.error("%s", reason)
            with suppress(EngineError, OSError):
                if not self._reported_already(reported):
                    with locked(self.out.parent, LOCK_S):
                        self._write_reason(reason, reported)
            if self.roster is not None:
                self.roster.announce_exit()

    def succeed(self, document: Kept) -> Kept:
        """Write the file of a command that has ended well; nothing that a rank reports takes its place."""
        with self._turn, locked(self.out.parent, LOCK_S):
            self._write(document, self.out)
        return document

    def end(self) -> None:
        """Restore the default handlers of signals and close the roster, so that this process can begin another run."""
        if self._listens:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
        if self.roster is not None:
            self.roster.close()

    def _judge(self, error: Exception) -> tuple[str, Diagnosis]:
        """Give the reason as one sentence, and how much it explains."""
        lines = str(error).strip().splitlines()
        words = next(
            (line for line in lines if OUT_OF_MEMORY in line.lower()), lines[0] if lines else type(error).__name__
        )
        rank, roster = self.launch.rank, self.roster
        when = f" {self.when(error)}".rstrip()
        if isinstance(error, ContactError):
            clause, detail = error.story(), error.detail
        elif isinstance(error, RuntimeError) and not is_out_of_memory(error):  # torch's of a broken connection is one
            clause, detail = f"rank {rank} failed", words
        else:
            return words if isinstance(error, EngineError) else f"Rank {rank} failed{when}: {words}", "cause"
        lost = {} if roster is None else roster.lost() if isinstance(error, Terminated) else roster.watch()
        when = "" if isinstance(error, NotMet) else when
        alone = roster is not None or self.launch.world_size == 1 or isinstance(error, NotMet)
        follows = "" if alone else FOLLOWS
        if roster is not None and lost:
            if isinstance(error, ContactError):
                clause = error.story(lost)
            return sentence(f"{roster.describe(lost)}, so {clause}{when}", detail), "cause"
        first = isinstance(error, Terminated) and roster is not None and roster.whole and not roster.exit_announced()
        return sentence(f"{clause}{when}{', before any other rank was lost' if first else follows}", detail), (
            "cause" if first else "symptom"
        )

    def _reported_already(self, reported: Diagnosis) -> bool:
        """Say whether the file says so much that this adds nothing."""
        present = self._present()
        return present is not None and (present.status == "ok" or WEIGHT[present.diagnosis] >= WEIGHT[reported])

    def _write_reason(self, reason: str, reported: Diagnosis) -> None:
        if self._reported_already(reported):
            return
        document = self._present() or self.document("failed", reason, reported)
        origin = {"end": provenance.now(), "bindings": self.bindings or document.provenance.bindings}
        ended = document.provenance.model_copy(update=origin)
        update = {"reason": reason, "diagnosis": reported, "provenance": ended, **self.known(document)}
        self._write(document.model_copy(update=update), self.out)

    def _present(self) -> Kept | None:
        """Read this command's file as it stands. Before the ranks have met it may be an earlier one's."""
        try:
            present = self._read(self.out)
        except ResultError:
            return None
        if self.met or self.launch.rank == 0:
            return present
        age = datetime.fromisoformat(self.start) - datetime.fromisoformat(present.provenance.end)
        return present if present.status == "failed" and age < ONE_LAUNCH else None
