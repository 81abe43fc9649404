"""Strong scaling: the published series, what its jobs are told, and what they measure."""

import re
from collections import Counter
from pathlib import Path

import pytest
from running import ONCE, Run, figures, option, project, ranks, reframe, short, succeed

from engine.grid import Grid

STRONG_SCALING = ["-c", "suites/strong_scaling.py"]
DOUBLING = [2**power for power in range(14)]
POINTS = {
    "alps": {("axonn-sc24", "gpt-80b", 8192): [n for n in DOUBLING if 128 <= n <= 4096]},
    "frontier": {
        ("axonn-sc24", "gpt-80b", 8192): [n for n in DOUBLING if n >= 128],
        ("axonn-sc24", "gpt-640b", 8192): [n for n in DOUBLING if n >= 1024],
        ("par4d", "gpt-80b", 2048): [n for n in DOUBLING if 64 <= n <= 1024],
    },
    "perlmutter": {("par4d", "gpt-80b", 2048): [n for n in DOUBLING if 64 <= n <= 1024]},
    "summit": {
        (name, "gpt-12b", 32768 * n // 384): [n]
        for name in ("axonn-ipdps22", "axonn-ipdps22-table-2")
        for n in (48, 96, 192, 384)
    },
    "vcluster": {("vcluster", "gpt-local-4", 16): [1, 2, 4, 8]},
}
BUDGETS = {"axonn-sc24": "2e+12", "axonn-ipdps22": "3e+11", "axonn-ipdps22-table-2": "3e+11", "vcluster": "2.4e+08"}


@pytest.fixture(scope="module", params=POINTS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Run]:
    name = request.param
    return name, reframe(tmp_path_factory.mktemp(name), *STRONG_SCALING, "--system", name, "--dry-run")


def series(script: str) -> str:
    return next(word for word in script.split() if word.startswith("series=")).removeprefix("series=")


def test_there_is_a_job_for_every_point_with_its_model_its_batch_and_a_grid_of_its_ranks(run: tuple[str, Run]) -> None:
    name, done = run
    assert done.code == 0, done.out
    found = Counter(
        (series(script), option(script, "--model"), int(option(script, "--batch-size")), ranks(script))
        for script in done.trainings
    )
    assert found == Counter((*line, number) for line, numbers in POINTS[name].items() for number in numbers)
    for script in done.trainings:
        assert Grid.parse(option(script, "--grid")).size == ranks(script)
        assert "--label study=strong_scaling" in script


def test_a_token_budget_is_a_label_where_the_source_names_one(run: tuple[str, Run]) -> None:
    _, done = run
    for script in done.trainings:
        budget = BUDGETS.get(series(script))
        assert ("token_budget=" in script) == (budget is not None)
        assert budget is None or f"--label token_budget={budget} " in script


def test_the_slow_points_get_the_time_and_the_iterations_of_their_series_unless_told_otherwise(tmp_path: Path) -> None:
    slowest = [*STRONG_SCALING, "--system", "frontier", "-n", "sc24-2048-gpt-640b"]
    as_published = reframe(tmp_path / "a", *slowest).scripts[2048]
    assert "#SBATCH --time=6:0:0" in as_published
    assert option(as_published, "--iterations") == "10"
    told = reframe(tmp_path / "b", *slowest, "-S", "iterations=3", "-S", "time_limit=12h").scripts[2048]
    assert "#SBATCH --time=12:0:0" in told
    assert option(told, "--iterations") == "3"


def test_a_point_that_the_queue_would_end_is_skipped_unless_the_user_sets_its_time(tmp_path: Path) -> None:
    root = project(tmp_path)
    file = root / "suites" / "series.yaml"
    file.write_text(file.read_text().replace("{2048: gpt-640b,", "{512: gpt-640b,"))
    slow = [*STRONG_SCALING, "--system", "frontier", "-n", "sc24-512-gpt-640b"]
    refused = reframe(tmp_path / "a", *slow, root=root)
    assert re.search("6h.* 64 nodes.* 2h", refused.out)
    assert refused.code == 1
    assert not refused.scripts
    assert reframe(tmp_path / "b", *slow, "-S", "time_limit=12h", root=root).scripts.keys() == {512}


@pytest.mark.slow
def test_on_this_machine_the_time_to_solution_follows_from_the_time_of_an_iteration_and_the_peak_is_measured(
    tmp_path: Path,
) -> None:
    few = ["-S", "iterations=2", "-S", "warmup=1", *ONCE]
    root = short(tmp_path, peaks=[])
    done = succeed(tmp_path / "a", *STRONG_SCALING, "--system", "local", *few, root=root)
    one, two = sorted(done.cases(), key=lambda case: case["record"]["ranks"])
    assert {case["record"]["labels"]["token_budget"] for case in (one, two)} == {"6.9e+07"}
    batches = 6.9e7 / (4 * 128)
    for case in (one, two):
        seconds = batches * figures(case)["time_per_iteration"]
        assert figures(case)["time_to_solution"] == pytest.approx(seconds / 86400)
        assert case["record"]["summary"]["empirical_peak_measured"] is True
        assert figures(case)["percent_of_empirical_peak"] > 0
    assert "communication_hidden" not in figures(one)
    assert 0 < figures(two)["communication_hidden"] <= 100
