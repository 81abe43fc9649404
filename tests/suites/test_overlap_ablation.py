"""The ablation of overlap: which variants run on which grid, what their jobs are told, and what they measure."""

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml
from running import QUICK, Run, figures, option, project, reframe

from engine.result.schema import parse

ABLATION = ["-c", "suites/overlap_ablation.py"]
CACHED = "oar,ors,oag,cache={}"
ON_Z = ["oar,ors", "oar,ors,oag", CACHED, "ors", "oag", "cache={}"]
ON_DATA = [f"{CACHED},data", "data"]
# Of each system its first round, of large systems a few variants: on each grid, the flags of the jobs.
SELECTED = {
    "perlmutter": ("repeat=1", {"2x2x4x1": (28, ["none", "oar", *ON_Z])}),
    "frontier": (
        "repeat=1.*gpt-(5|80)b",
        {"4x1x1x2048": ("auto", ["none", "oar", *ON_DATA]), "8x1x8x128": ("auto", ["none", "oar", *ON_Z, *ON_DATA])},
    ),
    "vcluster": (
        "repeat=1",
        {"2x2x2x1": (2, ["none", "oar", *ON_Z]), "2x2x1x2": (2, ["none", "oar", *ON_DATA])},
    ),
    "alps": ("repeat=1.*variant=(none|oar)$", {"2x2x4x1": (28, ["none", "oar"])}),
    "summit": ("repeat=1.*variant=(none|data)$", {"4x1x12x1": ("auto", ["none"])}),
}


@pytest.fixture(scope="module", params=SELECTED)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Run]:
    name = request.param
    return name, reframe(
        tmp_path_factory.mktemp(name), *ABLATION, "--system", name, "--dry-run", "-n", SELECTED[name][0]
    )


def test_each_variant_that_has_something_to_hide_on_the_grid_is_one_job(run: tuple[str, Run]) -> None:
    name, done = run
    assert done.code == 0, done.out
    expected = {
        grid: sorted(variant.format(cache) for variant in variants)
        for grid, (cache, variants) in SELECTED[name][1].items()
    }
    found: dict[str, list[str]] = {}
    for script in done.trainings:
        found.setdefault(option(script, "--grid"), []).append(option(script, "--overlap"))
        assert "--checkpoint-activations" in script
        assert "--label study=overlap_ablation" in script
    assert {grid: sorted(overlaps) for grid, overlaps in found.items()} == expected


def test_a_timeline_is_drawn_of_none_and_of_the_most_that_the_grid_allows(run: tuple[str, Run]) -> None:
    name, done = run
    drawn = {(option(s, "--grid"), option(s, "--overlap")) for s in done.trainings if "--timeline timeline.json" in s}
    expected = set()
    for grid, (cache, variants) in SELECTED[name][1].items():
        most = CACHED + ",data" if CACHED + ",data" in variants else CACHED
        expected |= {(grid, "none"), (grid, most.format(cache))} if most in variants else {(grid, "none")}
    assert drawn == expected


def test_a_variant_that_is_left_out_says_why(run: tuple[str, Run]) -> None:
    name, done = run
    if name in ("perlmutter", "summit"):
        grid = option(done.trainings[0], "--grid")
        assert f"[data hides nothing on grid {grid}, which has no such communication]" in done.out


def test_jobs_go_round_by_round_so_that_variants_alternate(tmp_path: Path) -> None:
    done = reframe(tmp_path, *ABLATION, "--system", "perlmutter", "-l")
    rounds = [line.split("%repeat=")[1].split()[0] for line in done.out.splitlines() if "%repeat=" in line]
    assert Counter(rounds) == {"1": 10, "2": 10, "3": 10}
    assert rounds == sorted(rounds)


def test_one_overlap_for_all_variants_is_refused(tmp_path: Path) -> None:
    first = ["-n", "repeat=1.*variant=none$", "-S", "overlap=oar"]
    done = reframe(tmp_path, *ABLATION, "--system", "perlmutter", *first)
    assert done.code == 1
    assert "This study sets overlap itself: choose by -n variant=..., not by -S overlap=oar." in done.out
    assert not done.trainings


def test_a_cache_larger_than_the_model_is_refused_with_the_engines_sentence(tmp_path: Path) -> None:
    copy = project(tmp_path)
    file = copy / "suites" / "series.yaml"
    studies = yaml.safe_load(file.read_text())
    studies["overlap_ablation"][0]["cache"] = 33
    file.write_text(yaml.safe_dump(studies))
    first = ["--system", "perlmutter", "-n", "repeat=1.*variant=cache$"]
    done = reframe(tmp_path / "a", *ABLATION, *first, root=copy)
    assert done.code == 1
    assert "--overlap cache=33 keeps the weights of 33 blocks, but gpt-20b has 32: use cache=32 or fewer." in done.out
    assert not done.trainings


@pytest.mark.slow
def test_on_this_machine_a_gain_is_measured_against_the_same_rounds_job_without_overlap(tmp_path: Path) -> None:
    few = ["-n", "repeat=1.*1x1x2x1.*variant=(none|data|oar,ors,oag,cache)$", "-S", "iterations=2", "-S", "warmup=1"]
    done = reframe(tmp_path, *ABLATION, "--system", "local", *few, *QUICK)
    assert done.code == 0, done.out
    assert "data hides nothing on grid 1x1x2x1" in done.out
    cases = {case["record"]["config"]["overlap"]: case for case in done.cases() if case["record"]}
    assert set(cases) == {"none", "oar,ors,oag,cache=4"}
    none, most = figures(cases["none"]), figures(cases["oar,ors,oag,cache=4"])
    assert "speedup_over_none" not in none
    assert most["speedup_over_none"] == pytest.approx(none["time_per_iteration"] / most["time_per_iteration"])
    for measured in (none, most):
        assert measured["compute"] + measured["exposed_communication"] == pytest.approx(measured["time_per_iteration"])
    for case in cases.values():
        result = parse(case["record"], "record")
        assert result.timeline is not None
        assert result.breakdown is not None
        hidden = sum(axis.hidden_s for axis in result.breakdown.axes)
        assert figures(case).get("hidden_communication", hidden) == pytest.approx(hidden)
    kept = [json.loads(file.read_text()) for file in tmp_path.glob("output/**/timeline.json")]
    assert len(kept) == 2
