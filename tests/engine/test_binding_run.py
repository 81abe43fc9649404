"""Real ranks tell each other where they are bound, and their result has what is wrong with it."""

import os
import shutil
from pathlib import Path

import pytest
from engine_command import SMALL, finish, start

from engine.comm import binding as told
from engine.loading import cores
from engine.measure import binding
from engine.measure.binding import Gpu
from engine.result.schema import read
from engine.result.schema.machine import Bindings

TWO = ["train", *SMALL, "--grid", "1x1x2x1", "--iterations", "2", "--warmup", "1"]
two_cores = pytest.mark.skipif(len(cores()) < 2, reason="takes two cores")


def of(out: Path) -> Bindings:
    found = read(out).provenance.bindings
    assert found is not None
    return found


@pytest.mark.skipif(shutil.which("taskset") is None, reason="takes taskset")
def test_two_ranks_on_one_core_are_told_and_marked(tmp_path: Path) -> None:
    core, out = str(min(cores())), tmp_path / "result.json"
    codes, said = finish(start(2, *TWO, "--out", str(out), under=("taskset", "-c", core)))
    assert codes == [0, 0]
    assert [text.count("Binding: cores shared") for text in said] == [1, 0]
    (node,), (fault,) = of(out).nodes, of(out).faults
    assert [one.cores for one in node.ranks] == [core, core]
    assert (fault.kind, fault.first_rank, fault.ranks) == ("cores shared", 0, 2)


def _own_core() -> None:
    own = sorted(cores())[int(os.environ["RANK"])]
    os.sched_setaffinity(0, {own})
    binding.AT_START = frozenset({own})


@two_cores
def test_two_ranks_that_are_bound_apart_are_not(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    codes, said = finish(start(2, *TWO, "--out", str(out), before=_own_core))
    assert codes == [0, 0]
    assert "Binding" not in "".join(said)
    assert of(out).faults == ()
    assert [one.cores for one in of(out).nodes[0].ranks] == [str(core) for core in sorted(cores())[:2]]


def _one_gpu() -> None:
    told.gpu_of = lambda device: Gpu("0000:c1:00.0", "GPU-1", 0)


@pytest.mark.parametrize("words", [TWO, ["bench", "latency", "--device", "cpu"]], ids=["train", "bench"])
def test_two_ranks_on_one_gpu_are_refused_on_both(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    codes, said = finish(start(2, *words, "--out", str(out), before=_one_gpu))
    assert codes == [2, 2]
    assert all("Ranks 0, 1 on" in text and "0000:c1:00.0" in text for text in said)
    assert (read(out).status, "0000:c1:00.0" in str(read(out).reason)) == ("failed", True)


def test_one_rank_is_recorded_and_judged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", str(len(cores()) + 1))
    out = tmp_path / "result.json"
    codes, said = finish(start(1, "bench", "latency", "--device", "cpu", "--out", str(out)))
    assert (codes, said[0].count("Binding: ")) == ([0], 1)
    assert [fault.kind for fault in of(out).faults] == ["fewer cores than asked"]
