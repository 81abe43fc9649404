"""Kernel tuning as tests: whose products are timed on which systems, what is skipped, and why one fails."""

import re
from pathlib import Path
from typing import Any

import pytest
from running import ONCE, Run, figures, option, options, project, ranks, reframe, tells_a_hang_in_time

import systems
from engine.grid import Grid
from reports.load import load
from suites.base.series import points

LOCAL = ["-c", "suites/kernel_tuning.py", "--system", "local", "-S", "model=gpt-test", *ONCE, "-r", "-n"]
PRODUCTS, BOTH = "KernelTuning.*local-1-", "local-1-"


def script(done: Run, command: str, **wanted: str) -> str:
    """The one job script of a command with these options and labels."""
    found = [
        text
        for text in done.jobs(command)
        if all(value in (options(text, f"--{name}") + options(text, "--label")) for name, value in wanted.items())
    ]
    (one,) = found
    return one


@pytest.mark.parametrize("name", ["alps", "frontier", "perlmutter", "summit"])
def test_every_published_network_is_timed_on_one_device_as_a_rank_of_its_grid(name: str, tmp_path: Path) -> None:
    done = reframe(tmp_path, "-c", "suites/kernel_tuning.py", "--system", name, PAR4D_ACCOUNT="abc123")
    assert done.code == 0, done.out
    every = [point for point in points("weak_scaling", name) if point.series.name != "night"]
    series = [point for point in every if not point.series.offload]  # the same networks in stages
    assert len(done.jobs("bench matmul")) == len(done.jobs("bench peers")) == len(series)
    node = systems.load(name).node.devices
    assert node is not None
    for point in series:
        label = f"series={point.series.name}"
        products = script(done, "bench matmul", model=point.model, label=label)
        assert Grid.parse(option(products, "--grid")).size == point.devices
        assert ranks(products) == 1
        for text in (products, step := script(done, "bench peers", model=point.model, label=label)):
            assert option(text, "--precision") == point.series.precision
            assert option(text, "--device") == "cuda"
            assert tells_a_hang_in_time(text)
            assert "--checkpoint-activations" in text
            assert f"--label study=kernel_tuning --label system={name}" in text
        assert option(products, "--micro-batch") == option(step, "--batch-size") == str(point.micro_batch)
        assert "--twice" in products
        whole = Grid.parse(option(products, "--grid"))
        assert option(step, "--grid") == str(Grid(x=whole.x, y=whole.y))
        assert ranks(step) == whole.x * whole.y
        assert (option(step, "--peer"), option(step, "--layers")) == ("untuned", "2")


def test_another_network_is_no_point_of_the_published_series(tmp_path: Path) -> None:
    words = ["-c", "suites/kernel_tuning.py", "--system", "alps", "-n", "par4d-64-", "-S", "model=llama-3.2-1b"]
    done = reframe(tmp_path, *words, PAR4D_ACCOUNT="abc123")
    assert done.code == 0, done.out
    for command in ("bench matmul", "bench peers"):
        assert option(script(done, command), "--model") == "llama-3.2-1b"
        assert "--label 'series=par4d with llama-3.2-1b'" in script(done, command)


def few_rounds(folder: Path, rounds: int = 7, sample_s: float = 2e-4) -> Path:
    """A copy of the project that times each way as seldom as is allowed, and steps in two jobs."""
    copy = project(folder)
    change(copy / "engine" / "measure" / "sample.py", "SAMPLE_S = 0.002", f"SAMPLE_S = {sample_s}")
    change(copy / "engine" / "peers" / "comparison.py", "jobs: int = 4", "jobs: int = 2")
    change(copy / "engine" / "tuning" / "timing.py", "FEWEST, MOST = 7, 21", f"FEWEST, MOST = {rounds}, {rounds}")
    return copy


def change(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def cases(done: Run) -> dict[str, dict[str, Any]]:
    """By the first word of their names."""
    return {case["name"].split()[0]: case for case in done.cases()}


@pytest.mark.slow
def test_products_and_a_step_are_measured_here_and_kept_in_reframes_own_report(tmp_path: Path) -> None:
    """Whatever the choices are worth: on a machine that others load, seven rounds may not tell."""
    copy = few_rounds(tmp_path)
    change(copy / "engine" / "result" / "choices.py", "SLOWEST = 1.03", "SLOWEST = 100.0")
    done = reframe(tmp_path, *LOCAL, BOTH, "-S", "rounds=1", root=copy, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.code == 0, done.out
    found = cases(done)
    products, step = figures(found["KernelTuning"]), figures(found["TunedStep"])
    assert set(products) == {
        "speed_up",
        "choices_that_hold",
        "undecided_choices",
        "fastest_product",
        "slowest_product",
        "tuning",
    }
    assert 0 <= products["choices_that_hold"] <= 100 - products["undecided_choices"] <= 100
    assert 0 < products["slowest_product"] <= products["fastest_product"]
    assert set(step) == {
        *("tuned_step", "untuned_step", "speed_up_of_step", "speed_up_of_step_low", "speed_up_of_step_high")
    }
    assert 0 < step["speed_up_of_step_low"] <= step["speed_up_of_step"] <= step["speed_up_of_step_high"]
    loaded = load([tmp_path / "results"])
    (run,), (contest,) = loaded.runs, loaded.contests
    assert (run.result.kind, contest.result.comparisons[0].peer) == ("matmul", "untuned")
    assert run.result.tuning is not None
    assert len(run.result.tuning.again) == len(run.result.tuning.shapes) > 0
    (job, *_) = contest.result.comparisons[0].measured
    assert job.tuning is not None
    assert job.tuning.shapes


@pytest.mark.slow
def test_a_step_that_gains_nothing_by_definition_is_skipped_unless_it_is_asked_for(tmp_path: Path) -> None:
    copy = few_rounds(tmp_path)
    change(copy / "engine" / "tuning" / "choice.py", "MARGIN = 0.02", "MARGIN = 2.0")  # nothing wins
    done = reframe(tmp_path / "a", *LOCAL, BOTH, "-S", "always=no", root=copy, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.code == 0, done.out
    assert "the tuner leaves all products of gpt-test on 1x1x1x1 as they are" in done.out
    assert not done.jobs("bench peers")
    assert figures(cases(done)["KernelTuning"])["speed_up"] == pytest.approx(1.0)


@pytest.mark.slow
def test_a_choice_that_is_slower_than_pytorchs_own_fails_in_words(tmp_path: Path) -> None:
    # Of seven rounds the interval ends with the slowest, which others on the machine decide.
    copy = few_rounds(tmp_path, 16, sample_s=2e-3)
    choice = copy / "engine" / "tuning" / "choice.py"
    change(choice, "if not way.own and wins(of, own)", "if not way.own")
    change(choice, "fastest = min(faster,", "fastest = max(faster,")  # the slowest way with copies is taken
    done = reframe(tmp_path / "a", *LOCAL, PRODUCTS, root=copy, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.code == 1
    assert re.search(r"what was chosen for \S+, 128 x \d+ by \d+ x \d+, takes \S+ to \S+ times as long", done.out)
    assert "as PyTorch's own modes in the second timing, but 1.03 is allowed" in done.out
    assert "undecided:" not in done.out
    assert load([tmp_path / "a" / "results"]).runs[0].result.status == "failed"
