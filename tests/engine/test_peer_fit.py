"""Contests that a device has no room for are rows and no jobs; sides that it can't hold at once come one after the
other, and neither always first.
"""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_python import forked_python
from real_ranks import run_processes, take_part_again
from waiting import LONG_S

from engine.batch import Batch
from engine.cli.main import main
from engine.comm.funnel import Comm
from engine.errors import RunError
from engine.footprint.memory import USABLE
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.peers import alternate, compare
from engine.peers.apart import order_in_a_job, parts_in_a_launch, put_together
from engine.peers.comparison import Case, Comparison, Unavailable
from engine.peers.memory import Room, choose_apart, side_bytes
from engine.peers.ranks import Job
from engine.peers.registry import COMPARISONS
from engine.result.schema.peers import NOTHING, PeerContest, PeerSide, PeersResult, SideName, parse

SHAPE = {"--layers": 1, "--hidden": 16, "--heads": 2, "--vocab": 32, "--seq": 8, "--batch-size": 2, "--device": "cpu"}
TINY = [str(word) for pair in (SHAPE | {"--rounds": 3, "--steps-per-round": 1}).items() for word in pair]
CASE = Case(GPTConfig("tiny", layers=1, hidden=16, heads=2, vocabulary=32, sequence=8), Batch(2), rounds=3, steps=1)


def for_one(contest: Comparison) -> float:
    """Memory that holds either side, but not both."""
    return 1.5 * max(side_bytes(contest, CASE, "cpu")) / USABLE


def written(out: Path) -> PeersResult:
    return parse(json.loads(out.read_text()), str(out))


def test_what_does_not_fit_is_a_row_and_no_rank_is_started_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> Job:
        raise AssertionError("a rank was started")

    monkeypatch.setattr(compare, "run_ranks", start)
    out, contest = tmp_path / "a.json", COMPARISONS["ddp"]
    needed = side_bytes(contest, CASE, "cpu")
    words = ["--peer", "ddp", "--device-memory", "1000", "--label", "study=baselines", "--out", str(out)]
    assert main(["bench", "peers", *TINY, *words]) == 0
    found = written(out)
    (asked,) = found.contests
    assert f"needs {needed.ours / 1e9:.3g} of 7e-07 GB" in str(asked.missing)
    assert asked.needs == (round(needed.ours), round(needed.peer))
    assert (found.status, found.comparisons) == ("ok", ())
    assert f"skipped: {asked.missing}" in capsys.readouterr().out
    older = json.loads(out.read_text())
    del older["contests"][0]["needs"]
    assert parse(older, "older.json").contests[0].needs is None


def test_on_gpus_that_are_not_here_what_does_not_fit_is_told_all_the_same(tmp_path: Path) -> None:
    """Where a system's jobs are started there need be none."""
    out = tmp_path / "a.json"
    words = [*TINY, "--peer", "ddp", "--grid", "1x1x1x2", "--device", "cuda", "--device-memory", "1000"]
    assert main(["bench", "peers", *words, "--out", str(out)]) == 0
    assert "does not fit" in str(written(out).contests[0].missing)


@pytest.mark.usefixtures("forked_contests")
def test_sides_that_fit_alone_but_not_together_are_apart_and_each_comes_first_in_every_other_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[Sequence[SideName]] = []
    run_ranks = compare.run_ranks

    def noted(contest: Comparison, case: Case, names: Sequence[SideName]) -> Job:
        order.append(names)
        return run_ranks(contest, case, names)

    monkeypatch.setattr(compare, "run_ranks", noted)
    out = tmp_path / "a.json"
    words = ["--peer", "plain", "--jobs", "3", "--device-memory", f"{for_one(COMPARISONS['plain']):.0f}"]
    assert main(["bench", "peers", *TINY, *words, "--out", str(out)]) == 0
    assert order == [("ours",), ("peer",), ("peer",), ("ours",), ("ours",), ("peer",)]
    found = written(out)
    (contest,) = found.comparisons
    assert contest.apart
    assert found.case["apart"] is None, "nobody asked for it"
    assert len(contest.jobs) == 3
    assert "one after the other" in capsys.readouterr().out


def test_memory_decides_unless_it_is_told() -> None:
    contest = COMPARISONS["plain"]
    one, two = for_one(contest), 2 * for_one(contest)
    assert choose_apart(contest, CASE, Room("cpu", one)).apart is True
    assert choose_apart(contest, CASE, Room("cpu", two)).apart is False
    assert choose_apart(contest, CASE, Room("cpu")).apart is False
    assert choose_apart(contest, replace(CASE, apart=False), Room("cpu", one)).apart is False
    assert choose_apart(contest, replace(CASE, apart=True), Room("cpu")).apart is True
    with pytest.raises(Unavailable, match="does not fit: needs"):
        choose_apart(contest, CASE, Room("cpu", 1000))


def test_where_ranks_make_whole_networks_their_node_has_to_hold_them() -> None:
    contest = COMPARISONS["axonn"].with_grid(Grid(x=2))
    choose_apart(contest, CASE, Room("cpu", None, 1e9))
    of_one = 2 * 4 * CASE.model.parameters / USABLE
    with pytest.raises(Unavailable, match="make whole networks first"):
        choose_apart(contest, CASE, Room("cpu", None, 1.5 * of_one))
    choose_apart(contest, replace(CASE, devices_per_node=1), Room("cpu", None, 1.5 * of_one))
    parts = COMPARISONS["megatron-core"].with_grid(Grid(x=2))
    choose_apart(parts, CASE, Room("cpu", None, 1))


def parts(comm: Comm, device_memory: float) -> tuple[list[tuple[Sequence[SideName], int]], Job | Unavailable]:
    """Measurements by ranks of a launcher, and what they tell."""
    order: list[tuple[Sequence[SideName], int]] = []
    measure = alternate.measure

    def noted(comm: Comm, contest: Comparison, case: Case, names: Sequence[SideName], *rest: Any) -> PeerContest:
        order.append((names, case.rounds))
        return measure(comm, contest, case, names, *rest)

    alternate.measure = noted  # type: ignore[assignment]
    case = replace(CASE, device="cpu", device_memory=device_memory)
    (job,) = take_part_again(comm, [COMPARISONS["ddp"]], case)
    return order, job


def test_under_a_launcher_half_of_our_rounds_come_before_the_peers_and_half_after() -> None:
    for order, job in run_processes(Grid(data=2), parts, for_one(COMPARISONS["ddp"])):
        assert order == [(("ours",), 2), (("peer",), 3), (("ours",), 1)]
        assert isinstance(job, Job)
        assert job.apart
        assert [len(steps) for steps in job.contest.ours.rounds_s] == [1, 1, 1]
        assert [len(steps) for steps in job.contest.peer.rounds_s] == [1, 1, 1]
        assert job.contest.ours.losses == pytest.approx(job.contest.peer.losses, rel=1e-5)


def test_ranks_of_a_launcher_build_nothing_that_does_not_fit() -> None:
    for order, told in run_processes(Grid(data=2), parts, 1000.0):
        assert order == []
        assert "does not fit" in str(told)


@pytest.mark.slow
def test_a_launched_command_tells_that_sides_came_one_after_the_other(tmp_path: Path) -> None:
    out, memory = tmp_path / "a.json", for_one(COMPARISONS["ddp"])
    torchrun = [str(forked_python()), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher = [*torchrun, "-m", "engine"]
    words = ["bench", "peers", "--peer", "ddp", *TINY, "--device-memory", f"{memory:.0f}", "--out", str(out)]
    done = subprocess.run([*launcher, *words], capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 0, done.stderr
    (contest,) = written(out).comparisons
    assert contest.apart
    (job,) = contest.jobs
    assert len(job.ours.rounds_s) == len(job.peer.rounds_s) == 3


def test_the_order_of_sides_is_balanced() -> None:
    assert [order_in_a_job(number)[0] for number in range(4)] == ["ours", "peer", "ours", "peer"]
    assert parts_in_a_launch(4) == [(("ours",), 2), (("peer",), 4), (("ours",), 2)]
    assert parts_in_a_launch(1) == [(("ours",), 1), (("peer",), 1)]


def side(seconds: Sequence[float], loss: float = 2.0, peak: int = 1) -> PeerSide:
    rounds = tuple((s,) for s in seconds)
    return PeerSide(losses=(loss,), gradient_norms=(1.0,), rounds_s=rounds, cpu_s=rounds, peak_bytes=peak)


def test_parts_of_a_side_become_one_and_each_is_held_to_the_peer() -> None:
    peer = PeerContest.of(NOTHING, side([7.0, 8.0, 9.0]))
    halves = side([1.0, 2.0]), side([3.0], peak=5)
    first, last = (PeerContest.of(one, compiled=False) for one in halves)
    found = put_together(COMPARISONS["ddp"], CASE, [first, peer, last])
    assert found.ours.rounds_s == found.ours.cpu_s == ((1.0,), (2.0,), (3.0,))
    assert found.ours.peak_bytes == 5
    assert (found.peer, found.compiled) == (peer.peer, False)
    with pytest.raises(RunError, match="loss was"):
        put_together(COMPARISONS["ddp"], CASE, [first, peer, PeerContest.of(side([3.0], loss=2.1), NOTHING)])


@pytest.mark.parametrize(
    ("option", "sentence"),
    [("--device-memory", "--device-memory is a positive number"), ("--devices-per-node", "is at least 1")],
)
def test_a_machine_without_room_is_refused(
    option: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "peers", *TINY, "--peer", "plain", option, "0", "--out", str(tmp_path / "a.json")]) == 2
    assert sentence in capsys.readouterr().err
