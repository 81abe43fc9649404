"""Reasons of results: the rank whose account of a failure counts, and how a lost rank is told."""

import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from real_ranks import run_processes
from torch import distributed as dist
from waiting import LONG_S

from engine.batch import Batch
from engine.comm.contact import Loss, LostContact, Roster, Route, own_row
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.comm.meeting import NotMet
from engine.errors import RunError
from engine.files import locked
from engine.grid import Grid
from engine.models.choice import ModelChoice
from engine.reporter import UNFINISHED, Terminated
from engine.result.schema import Result, read
from engine.training.checks import CheckedRun, checked
from engine.training.config import TrainConfig
from engine.training.failure import RunReporter
from engine.training.gathered import roster


class Seen(Roster):
    """A roster that sees what a test says."""

    def __init__(self, lost: dict[int, Loss], *, heard: bool = False) -> None:
        super().__init__(0, [own_row()] * 4)
        self._inbox.close()  # its address is this process's, which a real one may want
        self._seen, self._bye = lost, heard

    def lost(self) -> dict[int, Loss]:
        return self._seen

    watch = lost

    def exit_announced(self) -> bool:
        return self._bye


@pytest.fixture
def run(tmp_path: Path) -> CheckedRun:
    config = TrainConfig(
        model=ModelChoice(model="gpt-test"), batch=Batch(8), data="synthetic", out=tmp_path / "deep" / "r.json"
    )
    return checked(config, 4)


def reporter(run: CheckedRun, rank: int, seen: Roster | None = None) -> RunReporter:
    """Make the reporter of a rank that has met the others and trains, if it has a roster."""
    made = RunReporter(run, Launch(rank, 4, rank, "test", "", 0))
    made.met = made.training = seen is not None
    made.roster = seen
    return made


def begun(run: CheckedRun) -> RunReporter:
    """Rank 0's, with the result that it writes first."""
    first = reporter(run, 0)
    first.begin()
    return first


def told(run: CheckedRun) -> tuple[str | None, str | None]:
    result: Result = read(run.config.out)
    assert result.status == "failed"
    return result.diagnosis, result.reason


def tells(run: CheckedRun, diagnosis: str, *parts: str) -> bool:
    """Say whether the result has this diagnosis and a reason of one line that begins with the parts, in their order."""
    found, reason = told(run)
    return found == diagnosis and re.fullmatch(".*".join([*map(re.escape, parts), ""]), reason or "") is not None


def lost_contact(rank: int, other: int) -> LostContact:
    return LostContact(Route(rank, "on axis x", [other], "gloo"), RuntimeError("[/a/b.cc:1] closed\nmore"))


SYMPTOM = ("symptom", "Rank 1 lost ", " rank 0 ", " x ", " iteration 0 ", "(gloo: [/a/b.cc:1] closed)")


def test_a_result_is_there_before_anything_is_told_and_without_torch(run: CheckedRun, tmp_path: Path) -> None:
    begun(run)
    assert told(run) == ("nothing", UNFINISHED)
    code = "import sys, engine.cli.train; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LONG_S)


def test_a_cause_takes_the_place_of_a_symptom_and_not_the_other_way_round(run: CheckedRun) -> None:
    begun(run)
    reporter(run, 1, Seen({})).report(lost_contact(1, 0))
    assert tells(run, *SYMPTOM)
    reporter(run, 3, Seen({})).report(lost_contact(3, 1))
    assert tells(run, *SYMPTOM), "the later one may be its consequence"
    reporter(run, 2, Seen({})).report(RunError("The disk is full."))
    assert told(run) == ("cause", "The disk is full.")
    reporter(run, 1, Seen({3: Loss.GONE})).report(lost_contact(1, 3))
    assert told(run) == ("cause", "The disk is full.")


def test_who_is_known_to_be_lost_comes_first_and_the_messenger_behind(run: CheckedRun) -> None:
    begun(run)
    reporter(run, 3, Seen({2: Loss.STOPPED})).report(Terminated("rank 3 was told to end by SIGTERM"))
    assert tells(run, "cause", f"Rank 2 (process {os.getpid()} ", " SIGSTOP ", " rank 3 ", " SIGTERM in iteration 0.")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Seen({}), ("cause", " iteration 0, ", " other rank ")),
        (Seen({}, heard=True), ("symptom", " iteration 0.")),
        (None, ("symptom", " had met, ", " another ")),
    ],
    ids=["first", "after another", "not met"],
)
def test_a_rank_that_is_told_to_end_first_says_so(
    run: CheckedRun, seen: Roster | None, expected: tuple[str, ...]
) -> None:
    begun(run)
    reporter(run, 2, seen).report(Terminated("rank 2 was told to end by SIGINT"))
    diagnosis, *end = expected
    assert tells(run, diagnosis, "Rank 2 ", " SIGINT", *end)


def test_memory_that_has_run_out_is_a_cause_in_nccls_words_too(run: CheckedRun) -> None:
    begun(run)
    reporter(run, 1, Seen({})).report(lost_contact(1, 2))
    words = "NCCL error in: /c10d/NCCLUtils.cpp:94, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"
    reporter(run, 2, Seen({1: Loss.GONE})).report(dist.DistBackendError(words))
    assert tells(run, "cause", "Rank 2 failed ", " iteration 0: Cuda failure", " 2 'out of memory'")


def test_a_rank_alone_follows_nobody(run: CheckedRun) -> None:
    only = RunReporter(run, Launch(0, 1, 0, "test", "", 0))
    only.report(Terminated("rank 0 was told to end by SIGTERM"))
    assert tells(run, "symptom", "Rank 0 ", " SIGTERM ", " had met.")


def test_a_rank_tells_once(run: CheckedRun) -> None:
    begun(run)
    rank = reporter(run, 1, Seen({}))
    rank.report(lost_contact(1, 0))
    rank.report(RunError("A second thought."))
    assert tells(run, *SYMPTOM)


def test_where_no_result_was_begun_or_only_an_earlier_runs_is_there_any_rank_writes_one(run: CheckedRun) -> None:
    reporter(run, 2).report(NotMet("rank 2 met nobody", "why"))
    assert tells(run, "symptom", "Rank 2 ", " nobody (why).")
    earlier = json.loads(run.config.out.read_text())
    earlier |= {"told": "cause", "reason": "Something else."}
    run.config.out.write_text(json.dumps(earlier))
    reporter(run, 1).report(NotMet("rank 1 met nobody"))
    assert told(run) == ("cause", "Something else."), "written in this launch"
    earlier["provenance"]["end"] = "2020-01-01T00:00:00+00:00"
    run.config.out.write_text(json.dumps(earlier))
    reporter(run, 1).report(NotMet("rank 1 met nobody"))
    assert told(run) == ("symptom", "Rank 1 met nobody.")
    run.config.out.write_text(json.dumps(earlier | {"status": "ok"}))
    reporter(run, 3).report(NotMet("rank 3 met nobody"))
    assert told(run) == ("symptom", "Rank 3 met nobody.")


def test_memory_that_runs_out_is_a_cause_and_torchs_other_errors_may_be_symptoms(run: CheckedRun) -> None:
    begun(run)
    reporter(run, 1, Seen({})).report(RuntimeError("NCCL is unwell"))
    assert tells(run, "symptom", "Rank 1 failed ", " iteration 0 ", "(NCCL is unwell).")
    reporter(run, 2, Seen({})).report(torch.OutOfMemoryError("all 80 GB are taken"))
    assert tells(run, "cause", "Rank 2 failed ", " iteration 0: ", "80 GB are taken")
    with pytest.raises(torch.OutOfMemoryError), Route(0, "on axis x", [1], "gloo").guard():
        raise torch.OutOfMemoryError


def test_of_many_ranks_that_tell_at_once_a_cause_stays(run: CheckedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock on the result, which every rank reads and writes with its own reason, the cause would be lost."""
    monkeypatch.setattr("engine.reporter.LOCK_S", LONG_S)
    begun(run)
    start = threading.Barrier(16)

    def tell(rank: int) -> None:
        own = reporter(run, rank, Seen({}))
        start.wait(LONG_S)
        own.report(RunError("The cause.") if rank == 7 else lost_contact(rank, 0))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(tell, range(16)))
    assert told(run) == ("cause", "The cause.")


def test_a_lock_keeps_others_out_and_is_given_up_in_the_end(tmp_path: Path) -> None:
    inside: list[str] = []
    with locked(tmp_path, LONG_S):
        other = threading.Thread(target=_enter, args=(tmp_path, inside))
        other.start()
        with locked(tmp_path, 0.1):
            inside.append("in spite of it")
    other.join(LONG_S)
    assert inside == ["in spite of it", "after it"]
    with locked(tmp_path / "nowhere", LONG_S):
        pass


def _enter(folder: Path, inside: list[str]) -> None:
    with locked(folder, LONG_S):
        inside.append("after it")


@pytest.mark.parametrize(
    ("others", "lost", "whom"),
    [
        ([3], (), "rank 3"),
        ([1, 2, 3], (), "one of ranks 1, 2, 3"),
        ([1, 2, 3], (2, 7), "rank 2"),
        ([1, 2, 3], (7,), "one of ranks 1, 2, 3"),
        (list(range(1, 64)), (), "one of 63 ranks"),
    ],
)
def test_with_whom_contact_was_lost(others: list[int], lost: tuple[int, ...], whom: str) -> None:
    error = LostContact(Route(0, "on axis z", others, "gloo"), RuntimeError("closed"))
    assert error.story(lost).startswith("rank 0 lost ")
    assert error.story(lost).endswith(f" with {whom} on axis z")
    assert str(error).endswith(" z (gloo: closed).")


def _whole(comm: Comm) -> tuple[bool, dict[int, Loss]]:
    known = roster(comm)
    comm.barrier()
    return known.whole, known.lost()


def test_ranks_that_have_met_know_each_others_processes() -> None:
    assert run_processes(Grid(x=2, z=2), _whole) == [(True, {})] * 4
