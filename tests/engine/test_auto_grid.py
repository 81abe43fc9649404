"""`--grid auto` takes what a plan finds the fastest, as far as a person left it to us, and says so."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from engine_command import SMALL, finish, start, train
from waiting import LONG_S

import systems
from engine.cli.main import main
from engine.grid import Grid
from engine.pipeline.registry import ScheduleChoice
from engine.planning import plan
from engine.result.schema import read
from systems import store

JOB = ["--system", "vcluster", "--model", "gpt-vcluster-deep", "--batch-size", "16"]
CHECK = ["check", *JOB, "--data", "synthetic", "--device", "cpu", "--checkpoint-activations", "--ranks", "8"]


def taken(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, object], str]:
    """Return what `check` says of a run, and the sentence about its grid."""
    assert main([*CHECK, *words, "--json"]) == 0
    told = capsys.readouterr()
    return json.loads(told.out), told.err


def test_the_fastest_of_a_short_plan_is_taken_with_its_micro_batch_and_schedule(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, said = taken(capsys)
    assert Grid.parse(str(found["grid"])).stages > 1
    schedule = " ".join(ScheduleChoice.parse(str(found["schedule"])).words)
    words = f"{found['grid']} --micro-batch {found['micro_batch']} {schedule}"
    assert re.match(f"--grid auto takes {words}, .*vcluster .*simulation", said)


def test_what_a_person_has_chosen_stays(capsys: pytest.CaptureFixture[str]) -> None:
    found, said = taken(capsys, "--pipe", "4", "--schedule", "1f1b", "--micro-batch", "2")
    assert (found["schedule"], found["micro_batch"]) == ("1f1b", 2)
    assert Grid.parse(str(found["grid"])).stages == 4
    assert said.startswith("--grid auto ")
    assert f" {found['grid']} --micro-batch 2 --schedule 1f1b, " in said


@pytest.mark.parametrize("words", ["--pipe 1", "--grid 2x1x2x2"])
def test_nothing_is_simulated_where_a_grid_or_one_stage_is_asked_for(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = taken(capsys, *words.split())
    assert Grid.parse(str(found["grid"])).stages == 1
    assert said == ""


def test_a_machine_that_can_t_be_simulated_is_refused_by_name_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    monkeypatch.setattr(systems, "here", lambda: systems.load("vcluster"))
    words = [*CHECK[:1], *CHECK[3:]]
    assert main([*words, "--json"]) == 0
    told = capsys.readouterr()
    assert Grid.parse(json.loads(told.out)["grid"]).stages == 1
    assert told.err == ""
    assert main(CHECK) == 2
    assert re.search("vcluster in fp32 .*lacks", capsys.readouterr().err)
    assert main([*words, "--pipe", "2"]) == 2
    assert re.search("--grid XxYxZxDATA, .*--system NAME", capsys.readouterr().err)


def test_a_dry_run_takes_the_same_grid(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["--model", "gpt-test", "--batch-size", "8", "--system", "vcluster", "--ranks", "2", "--pipe", "2", "--json"]
    assert main(["check", *job, "--data", "synthetic", "--device", "cpu"]) == 0
    expected = capsys.readouterr()
    assert main(["bench", "dry", *job, "--precision", "fp32", "--rank", "1"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["grid"] == json.loads(expected.out)["grid"]
    assert told.err == expected.err.splitlines(keepends=True)[0]


def test_a_dry_run_wants_either_a_grid_or_a_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["bench", "dry", "--model", "gpt-test", "--batch-size", "8"]
    assert main(job) == 2
    assert main([*job, "--grid", "2x1x1x1", "--ranks", "4"]) == 2
    neither, both = capsys.readouterr().err.splitlines()
    assert re.search("--grid XxYxZxDATA,.*--grid auto .*--ranks", neither)
    assert re.search(r"2x1x1x1\D+2 ranks\D+4 ", both)


TRAIN = [*SMALL, "--system", "vcluster", "--device", "cpu", "--iterations", "2", "--warmup", "1"]


def _on(rank: str, planned: Callable[..., NoReturn]) -> None:
    """Replace the plan of that rank of a launch."""
    if os.environ["RANK"] == rank:
        plan.make_plan = planned


def _not_here(*_: object, **__: object) -> NoReturn:
    raise AssertionError("Rank 1 makes a plan of its own.")


def _die(*_: object, **__: object) -> NoReturn:
    os._exit(9)


def _hang(*_: object, **__: object) -> NoReturn:
    time.sleep(10 * LONG_S)
    os._exit(9)


def _first_alone() -> None:
    _on("1", _not_here)


def _first_dies() -> None:
    _on("0", _die)


def _first_hangs() -> None:
    _on("0", _hang)


def test_rank_0_plans_for_all_and_they_train_on_its_grid(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    codes, said = train(2, *TRAIN, "--pipe", "2", "--out", str(out), before=_first_alone)
    assert codes == [0, 0], said
    assert f"--grid auto takes {read(out).grid} --micro-batch " in said[0]
    assert said[1] == ""


@pytest.mark.parametrize("command", ["train", "bench overlap", "bench pipeline"])
def test_all_ranks_say_why_rank_0_found_no_grid(command: str) -> None:
    codes, said = finish(start(2, *command.split(), *TRAIN[:-4], "--pipe", "4", before=_first_alone))
    assert codes == [2, 2]
    assert said[0] == said[1]
    assert re.match(r"No grid\D+2 devices\D+4 stages", said[0])
    assert said[0].count("\n") == 1


@pytest.mark.parametrize("before", [_first_dies, _first_hangs])
def test_a_rank_to_which_rank_0_tells_no_grid_gives_up_in_time(before: Callable[[], None]) -> None:
    first, second = start(2, "train", *TRAIN, "--timeout", "2", before=before)
    try:
        _, said = second.communicate(timeout=LONG_S)
    finally:
        first.kill()
    assert second.returncode == 1
    reasons = [r"Rank 1\b.*\brank 0\b.*\bgrid \(store: "]
    if before is _first_dies:  # on a busy machine before the other has met it
        reasons.append("Rank 1 of 2 ")
    assert re.match("|".join(reasons), said.splitlines()[-1])
