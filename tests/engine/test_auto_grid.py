"""`--grid auto` takes what a plan finds the fastest, as far as a person left it to us, and says so."""

import json
from pathlib import Path

import pytest

import systems
from engine.cli.main import main
from engine.grid import Grid
from systems import store

JOB = ["--system", "vcluster", "--model", "gpt-vcluster-deep", "--batch-size", "16"]
CHECK = ["check", *JOB, "--data", "synthetic", "--device", "cpu", "--checkpoint-activations", "--ranks", "8"]


def taken(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, object], str]:
    """What `check` says of a run, and the sentence about its grid."""
    assert main([*CHECK, *words, "--json"]) == 0
    told = capsys.readouterr()
    return json.loads(told.out), told.err


def test_the_fastest_of_a_short_plan_is_taken_with_its_micro_batch_and_schedule(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, said = taken(capsys)
    assert Grid.parse(str(found["grid"])).stages > 1
    words = f"{found['grid']} --micro-batch {found['micro_batch']} --schedule {found['schedule']}"
    assert said.startswith(f"--grid auto takes {words}, the fastest on vcluster by simulation: ")


def test_what_a_person_has_chosen_stays(capsys: pytest.CaptureFixture[str]) -> None:
    found, said = taken(capsys, "--pipe", "4", "--schedule", "1f1b", "--micro-batch", "2")
    assert (found["schedule"], found["micro_batch"]) == ("1f1b", 2)
    assert Grid.parse(str(found["grid"])).stages == 4
    assert said.startswith(f"--grid auto takes {found['grid']} --micro-batch 2 --schedule 1f1b, the fastest on ")


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
    assert "To predict times on vcluster in fp32 its file lacks " in capsys.readouterr().err
    assert main([*words, "--pipe", "2"]) == 2
    assert "give --grid XxYxZxDATA, or --system NAME." in capsys.readouterr().err
