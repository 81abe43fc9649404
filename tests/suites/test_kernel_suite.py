"""Kernel tuning as tests: whose products are timed on which systems, what is skipped, and why one fails."""

import re
from pathlib import Path
from typing import Any

import pytest
from forked_python import BRIEFLY, FIRST
from running import ONCE, Run, figures, option, options, ranks, reframe, succeed, tells_a_hang_in_time

import systems
from engine.grid import Grid
from engine.models.catalogue import lookup
from reports.read.load import load
from suites.base.series import points

LOCAL = ["-c", "suites/kernel_tuning.py", "--system", "local", "-S", "model=gpt-test", *ONCE]
LOCAL += ["-r", "-n"]
PRODUCTS, BOTH = "KernelTuning.*local-1-gpt-", "local-1-gpt-"


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
    done = succeed(tmp_path, "-c", "suites/kernel_tuning.py", "--system", name, PAR4D_ACCOUNT="abc123")
    every = [point for point in points("weak_scaling", name) if "nightly" not in point.series.tags]
    every = [point for point in every if not point.series.training.offload]  # the same networks in stages
    series = points("kernel_tuning", name)
    of_images = {point.model for point in every if lookup(point.model).task.data.kind == "images"}
    assert {point.model for point in every} - {point.model for point in series} == of_images - {"unet-250m"}
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
            assert ("--checkpoint-activations" in text) == (point.series.training.recomputed_together != 0)
            assert f"--label study=kernel_tuning --label system={name}" in text
        whole = Grid.parse(option(products, "--grid"))
        at_once = point.micro_batch or point.sequences // whole.batch_split
        assert option(products, "--micro-batch") == option(step, "--batch-size") == str(at_once)
        assert "--twice" in products
        assert option(step, "--grid") == str(Grid(x=whole.x, y=whole.y))
        assert ranks(step) == whole.x * whole.y
        assert option(step, "--peer") == "untuned"
        alike = lookup(point.model).network().alike
        assert options(step, "--layers") == (["2"] if alike else []), "or a U-Net would lose what joins its levels"


def test_another_network_is_no_point_of_the_published_series(tmp_path: Path) -> None:
    words = ["-c", "suites/kernel_tuning.py", "--system", "alps", "-n", "par4d-64-", "-S", "model=llama-3.2-1b"]
    done = succeed(tmp_path, *words, PAR4D_ACCOUNT="abc123")
    for command in ("bench matmul", "bench peers"):
        assert option(script(done, command), "--model") == "llama-3.2-1b"
        assert "--label 'series=par4d with llama-3.2-1b'" in script(done, command)


def test_a_list_costs_what_the_scripts_of_a_dry_run_ask_for(tmp_path: Path) -> None:
    """A step of the largest network takes the plane of a node, of the 4096 nodes that the point has."""
    words = ["-c", "suites/kernel_tuning.py", "--system", "frontier", "-n", "axonn-sc24-32768-gpt-320b"]
    told = [
        re.search(r"([\d,]+\.\d) node-hours", succeed(tmp_path / kind[0], *words, *kind, PAR4D_ACCOUNT="abc123").out)
        for kind in (("-l",), ("--dry-run",))
    ]
    assert [one and one[1] for one in told] == ["1.0", "1.0"]


SLOWEST_WAY = """
from engine.tuning import timing
from engine.tuning import tune
timing.FEWEST = timing.MOST = 16    # of seven rounds the interval ends with the slowest, which others here decide
tune.wins, tune.min = lambda *_: True, max
"""
"""The slowest way with copies is taken."""


def tuned(folder: Path, *which: str, first: str) -> Run:
    """The suite on this machine, whose processes begin with this Python."""
    return reframe(folder, *LOCAL, *which, XDG_CACHE_HOME=str(folder / "cache"), **{FIRST: first})


def cases(done: Run) -> dict[str, dict[str, Any]]:
    """By the first word of their names."""
    return {case["name"].split()[0]: case for case in done.cases()}


@pytest.mark.slow
def test_products_and_a_step_are_measured_here_and_kept_in_reframes_own_report(tmp_path: Path) -> None:
    """The gain is not asserted: seven rounds on a loaded machine may not show it."""
    first = f"{BRIEFLY}; from engine.result.judges import choices; choices.SLOWEST = 100.0"
    done = tuned(tmp_path, BOTH, "-S", "rounds=1", first=first)
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
    (job, *_) = contest.result.comparisons[0].jobs
    assert job.tuning is not None
    assert job.tuning.shapes


@pytest.mark.slow
def test_a_step_that_gains_nothing_by_definition_is_skipped_unless_it_is_asked_for(tmp_path: Path) -> None:
    first = f"{BRIEFLY}; from engine.tuning import tune; tune.MARGIN = 2.0"  # nothing wins
    done = tuned(tmp_path, BOTH, "-S", "always=no", first=first)
    assert done.code == 0, done.out
    assert "gpt-test on 1x1x1x1" in done.out
    assert not done.jobs("bench peers")
    assert figures(cases(done)["KernelTuning"])["speed_up"] == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.weekly
def test_a_choice_that_is_slower_than_pytorchs_own_fails_in_words(tmp_path: Path) -> None:
    done = tuned(tmp_path, PRODUCTS, first=SLOWEST_WAY)
    assert done.code == 1
    slower = re.search(r"128 x (.*1\.03)", done.out)
    assert slower
    assert len(re.findall(r"[\d.]*\d", slower[1])) >= 6, "three sizes, two ends of an interval and the limit"
    assert "undecided:" not in done.out
    assert load([tmp_path / "results"]).runs[0].result.status == "failed"
