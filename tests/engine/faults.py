"""Random faults: runs of which one rank gets a signal at some moment, and what each run then told.

    python tests/engine/faults.py --faults 100 --seed 7

prints a table and exits with 1 if any run hung, left no result, hurt a checkpoint or named a wrong rank. What is done
follows from the seed; when exactly it hits does not, so what is demanded depends on neither.
"""

import argparse
import gc
import math
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from itertools import cycle, islice, product
from pathlib import Path

import torch
from engine_command import free_port
from real_ranks import CONTEXT
from trainers import trainer_of
from waiting import LONG_S, until

from engine.batch import Batch
from engine.checkpoint.manifest import STEP
from engine.comm.funnel import Comm
from engine.errors import EngineError
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.models.choice import ModelChoice
from engine.reporter import FOLLOWS
from engine.result.schema import Result, read
from engine.training.config import TrainConfig
from engine.training.trainer import Trainer

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)
SAVE_EVERY = 2


class Moment(StrEnum):
    """Moment of the signal: once this has been seen, and a random while later."""

    START = "process there"
    MEETING = "result begun"
    TRAINING = "iteration"
    SAVING = "checkpoint begun"
    END = "last iteration"


WHILE_S = {Moment.START: 0.2, Moment.MEETING: 0.4, Moment.TRAINING: 0.2, Moment.SAVING: 0.02, Moment.END: 0.3}


BEFORE_THEY_MEET = (Moment.START, Moment.MEETING)


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of one run. iteration: the awaited one, from 1; after_s: how long after the moment."""

    number: int
    signal: signal.Signals
    rank: int
    moment: Moment
    iteration: int
    after_s: float

    @property
    def step(self) -> int:
        """Step of the earliest checkpoint that is awaited."""
        return math.ceil(self.iteration / SAVE_EVERY) * SAVE_EVERY

    def __str__(self) -> str:
        which = {Moment.TRAINING: f" {self.iteration}", Moment.SAVING: f" {self.step}"}.get(self.moment, "")
        return f"{self.signal.name[3:]:4} rank {self.rank} {self.moment}{which} + {self.after_s:.3f} s"


def draw(faults: int, ranks: int, seed: int, few: int | None = None) -> list[Fault]:
    """Draw faults: every signal at every moment in turn, otherwise at random. few: ranks that have not met."""
    chance = random.Random(seed)
    kinds = list(product(SIGNALS, Moment))
    chance.shuffle(kinds)
    return [
        Fault(
            number,
            sent,
            chance.randrange((few or ranks) if moment in BEFORE_THEY_MEET else ranks),
            moment,
            chance.randint(1, 8),
            chance.uniform(0, WHILE_S[moment]),
        )
        for number, (sent, moment) in enumerate(islice(cycle(kinds), faults))
    ]


BLAMES_NOBODY = re.compile(FOLLOWS + "|did not meet the others|lost contact .* before iteration 0")
ENDLESS, SHORT = 100_000, 6
STOPPED_S = {True: 30, False: 45}
"""How long others wait for a rank that is stopped, before the ranks have met or later: far longer than they wait for
each other on a loaded machine.
"""
POLL_S, OFTEN_S = 0.05, 0.003


@dataclass(frozen=True, slots=True)
class Told:
    """Outcome of a run. problems: what should not have been."""

    fault: Fault
    exit_code: int | None
    seconds: float
    result: Result | None
    checkpoints: str
    problems: list[str] = field(default_factory=list)

    def row(self) -> str:
        status = "none" if self.result is None else self.result.status
        reason = (self.result.reason if self.result else None) or "-"
        verdict = f"WRONG: {'; '.join(self.problems)}" if self.problems else "right"
        return (
            f"{self.fault.number:3}  {self.fault!s:46}  exit {self.exit_code!s:4}  {self.seconds:5.1f} s  {status:6}  "
            f"{self.checkpoints:18}  {verdict}: {reason[:160]}"
        )


class Ranks:
    """Processes of a run, forked from the server of real_ranks. Once one fails all are told to end, as by torchrun.

    Their threads start and ask one after the other, because multiprocessing asks of all processes at each start.
    """

    _turn = threading.Lock()

    def __init__(self, count: int, options: Sequence[str], log: Path) -> None:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
        self._told = False
        with self._turn:
            self._processes = [
                CONTEXT.Process(
                    target=_rank, args=(place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, options, log), daemon=True
                )
                for rank in range(count)
            ]
            for process in self._processes:
                process.start()

    def codes(self) -> list[int | None]:
        """Return the exit codes; None while one runs."""
        with self._turn:
            codes = [process.exitcode for process in self._processes]
        if any(codes) and not self._told:
            self._told = True
            self.send(signal.SIGTERM, *(rank for rank, code in enumerate(codes) if code is None))
        return codes

    def send(self, number: signal.Signals, *ranks: int) -> None:
        for rank in ranks:
            process = self._processes[rank].pid
            assert process
            with suppress(ProcessLookupError):  # it has ended
                os.kill(process, number)

    def kill(self) -> None:
        with self._turn:
            for process in self._processes:
                process.kill()
                process.join()


def _rank(environment: dict[str, str], options: Sequence[str], log: Path) -> None:
    gc.freeze()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.environ.update(environment)
    from engine.cli.main import main as engine

    sys.exit(engine(options))


class Campaign:
    """Runs of one small network. few: grid of runs whose fault comes before the ranks know of each other."""

    def __init__(self, grid: Grid, few: Grid, folder: Path) -> None:
        self._grid, self._few, self._folder = grid, few, folder
        self._one = threading.Lock()
        self.config = TrainConfig(
            model=ModelChoice(model="gpt-test"), batch=Batch(2 * grid.batch_split), data="synthetic", device="cpu"
        )

    def run(self, fault: Fault) -> Told:
        """Make one run with its fault."""
        folder = self._folder / str(fault.number)
        folder.mkdir(parents=True)
        out, save, log = folder / "result.json", folder / "saved", folder / "stderr"
        iterations = SHORT if fault.moment is Moment.END else ENDLESS
        grid = self._few if fault.moment in BEFORE_THEY_MEET else self._grid
        command = ["train", "--model", "gpt-test", "--batch-size", str(self.config.batch.sequences)]
        command += ["--data", "synthetic", "--device", "cpu"]
        command += ["--grid", str(grid), "--iterations", str(iterations)]
        command += _limits(fault)
        command += ["--save", str(save), "--save-every", str(SAVE_EVERY), "--out", str(out)]
        problems: list[str] = []
        log.touch()
        ranks = Ranks(grid.size, command, log)
        begin = time.monotonic()
        try:
            until(lambda: self._has_come(fault, folder) or None not in ranks.codes(), OFTEN_S)
            time.sleep(fault.after_s)  # not to wait for anything: to hit anywhere
            begin = time.monotonic()
            if any(ranks.codes()):
                problems.append(f"it ended by itself: {log.read_text()[:300]!r}")
            ranks.send(fault.signal, fault.rank)
            if fault.signal is signal.SIGSTOP:
                until(lambda: None not in ranks.codes()[: fault.rank] + ranks.codes()[fault.rank + 1 :], POLL_S)
                ranks.send(signal.SIGKILL, fault.rank)  # torchrun would do so after another half a minute
            until(lambda: None not in ranks.codes(), POLL_S)
        except TimeoutError:
            problems.append("it hung")
        finally:
            codes = ranks.codes()
            ranks.kill()
        exit_code = next((code for code in codes if code), None if None in codes else 0)
        told = Told(fault, exit_code, time.monotonic() - begin, _result(out), "", problems)
        problems += _wrong(told)
        with self._one:
            checkpoints = self._resumed(save, problems)
        return replace(told, checkpoints=checkpoints)

    def _has_come(self, fault: Fault, folder: Path) -> bool:
        if fault.moment is Moment.START:
            return True
        if fault.moment is Moment.MEETING:
            return (folder / "result.json").exists()
        if fault.moment is Moment.SAVING:
            begun = (folder / "saved").glob(".step-*.part")  # a save may be over before anybody looks: then a later one
            return any(int(path.name.split(".")[1].removeprefix("step-")) >= fault.step for path in begun)
        iteration = SHORT if fault.moment is Moment.END else fault.iteration
        return f"iteration {iteration}/" in (folder / "stderr").read_text()

    def _resumed(self, save: Path, problems: list[str]) -> str:
        """Go on from every checkpoint for a step, whose loss is that of a run without faults."""
        steps = sorted(int(m[1]) for path in save.glob("step-*") if (m := STEP.fullmatch(path.name)))
        for step in steps:
            try:
                loss = self._trainer(resume=save / f"step-{step}").step().loss
            except EngineError as error:
                problems.append(f"checkpoint {step} is hurt: {error}")
                continue
            expected = self._loss(step)
            if not math.isclose(loss, expected, rel_tol=1e-4):
                problems.append(f"checkpoint {step} goes on with a loss of {loss}, not {expected}")
        return f"resumed {','.join(map(str, steps))}" if steps else "no checkpoints"

    def _trainer(self, resume: Path | None = None) -> Trainer:
        return trainer_of(replace(self.config, resume=resume), Comm(Grid(), recorder=Recorder()))

    @cache  # noqa: B019
    def _losses(self) -> tuple[Trainer, list[float]]:
        return self._trainer(), []

    def _loss(self, step: int) -> float:
        """Return that of a run on one rank without faults, after these steps."""
        trainer, losses = self._losses()
        while len(losses) <= step:
            losses.append(trainer.step().loss)
        return losses[step]


def _limits(fault: Fault) -> list[str]:
    """Return short ones only where nothing else ends the wait for the rank."""
    stopped, early = fault.signal is signal.SIGSTOP, fault.moment in BEFORE_THEY_MEET
    collective_s, meeting_s = STOPPED_S[early] if stopped else LONG_S, STOPPED_S[early] if stopped and early else LONG_S
    return ["--timeout", str(collective_s), "--meeting-timeout", str(meeting_s)]


def _result(out: Path) -> Result | None:
    return read(out) if out.exists() else None


def _wrong(told: Told) -> list[str]:
    """List what isn't as it should be at a run's end."""
    fault, result = told.fault, told.result
    if result is None:  # nobody can tell of a process that ends before it has done anything
        return [] if fault.moment is Moment.START and told.exit_code else ["it left no result"]
    if result.status == "ok":
        return [] if fault.moment is Moment.END else ["it succeeded"]
    reason = result.reason or ""
    problems = [] if told.exit_code else ["its exit code is 0"]
    named = re.match(r"Rank (\d+) ", reason)
    early = fault.moment in BEFORE_THEY_MEET and BLAMES_NOBODY.search(reason)
    unheard = fault.moment is Moment.START and "ended before it could write" in reason
    if not early and not unheard and (named is None or int(named[1]) != fault.rank):
        problems.append("it named a wrong rank")
    return problems


def campaign(
    faults: Sequence[Fault], grid: Grid, folder: Path, *, jobs: int, few: Grid | None = None
) -> Iterator[Told]:
    """Carry the faults out, several at once; yield outcomes in order. few: the grid of ranks that have not met."""
    runs = Campaign(grid, few or grid, folder)
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(runs.run, faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grid", type=Grid.parse, default=Grid(x=2, z=2))
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        drawn = draw(options.faults, options.grid.size, options.seed)
        for told in campaign(drawn, options.grid, Path(folder), jobs=options.jobs):
            wrong += bool(told.problems)
            sys.stdout.write(f"{told.row()}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{options.faults} faults, {wrong} of them wrong\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
