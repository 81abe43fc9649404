"""Accuracy by epoch of each tensor mode: digits that are written, prepared, trained on and evaluated; the paper's own;
maps of links and counts of two layers, whose jobs a dry run writes.
"""

import sys
from pathlib import Path

import pytest
from running import ROOT, call, option, ranks, reframe, succeed

from suites.base.series import points

MODES = ["data", "1d", "2d", "2.5d", "3d"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    done = call([sys.executable, ROOT / "ci" / "digits", "written"], folder)
    assert done.returncode == 0, done.stderr
    return folder / "written"


def test_every_digit_is_written_once_for_training_or_for_the_test(digits: Path) -> None:
    parts = {part: sorted((digits / part).glob("*/*.png")) for part in ("train", "test")}
    assert {part: len(files) for part, files in parts.items()} == {"train": 1536, "test": 261}
    names = [file.name for files in parts.values() for file in files]
    assert len(set(names)) == 1797
    for files in parts.values():
        assert {file.parent.name for file in files} == {str(digit) for digit in range(10)}


@pytest.mark.parametrize("system", ["local", "system-iii"])
def test_each_mode_and_data_parallelism_train_alike_but_for_the_grid(system: str) -> None:
    found = points("evaluation", system)
    assert [point.series.name.rpartition("-")[2] for point in found] == MODES
    assert len({(point.model, point.sequences, point.series.optim, point.series.iterations) for point in found}) == 1
    assert {point.series.iterations % point.series.evaluations for point in found} == {0}


def test_a_mode_is_evaluated_after_each_epoch(tmp_path: Path) -> None:
    few = ["-S", "iterations=36", "-S", "evaluation_data=other"]
    done = succeed(
        tmp_path, "-c", "suites/evaluation.py", "--system", "local", "-n", "start=1%point=small-2d", *few, "-r"
    )
    (case,) = [case for case in done.cases() if case.get("record")]
    config, evaluated = case["record"]["config"], case["record"]["evaluations"]
    assert (case["record"]["ranks"], config["tensor_mode"], config["seed"]) == (4, "2d", 1)
    assert [one["step"] for one in evaluated] == list(range(3, 37, 3))
    assert {one["samples"] for one in evaluated} == {256}


def test_the_papers_run_takes_the_users_images(tmp_path: Path) -> None:
    paper = ["-c", "suites/evaluation.py", "--system", "system-iii"]
    listed = reframe(tmp_path / "none", *paper, "-l")
    assert listed.out.count("OnImageNet %start") >= 10
    assert "10 will be skipped" in listed.out
    given = ["-S", "data=train", "-S", "evaluation_data=val"]
    done = succeed(tmp_path / "given", *paper, *given, "-n", "start=0%point=colossal-ai-3d")
    (script,) = done.trainings
    assert (ranks(script), option(script, "--tensor-mode")) == (8, "3d")
    assert (option(script, "--learning-rate"), option(script, "--weight-decay")) == ("0.003", "0.3")


def test_links_are_mapped_on_a_node_or_between_nodes(tmp_path: Path) -> None:
    gpus = succeed(tmp_path / "gpus", "-c", "suites/pairs.py", "--system", "system-ii")
    (script,) = gpus.jobs("bench collectives")
    assert ranks(script) == 8
    assert "--pairs" in script
    nodes = succeed(tmp_path / "nodes", "-c", "suites/pairs.py", "--system", "vcluster-pairs", "--dry-run")
    (script,) = nodes.jobs("bench collectives")
    assert ranks(script) == 4
    assert "#SBATCH --ntasks-per-node=1" in script


def test_two_layers_are_counted_in_each_mode(tmp_path: Path) -> None:
    done = succeed(tmp_path, "-c", "suites/layers.py", "--system", "system-i", "-n", "ByWidth")
    scripts = done.jobs("bench layers")
    assert sorted(option(script, "--tensor-mode") for script in scripts) == ["1d", "1d", "2.5d", "2.5d", "2d", "3d"]
    assert {option(script, "--hidden") for script in scripts} == {"1024..16384"}
