"""Studies whose sides take turns in one job: overlaps and schedules."""

import re
from pathlib import Path

import pytest
import yaml
from forked_python import FIRST
from running import ONCE, Run, figures, option, options, project, reframe, succeed

from engine.models.catalogue import lookup
from engine.models.flops import split_step_flops
from engine.result import metrics
from engine.result.judges.bubble import UNEVEN
from engine.result.schema import parse
from engine.result.schema.contest import OverlapSide
from suites.base.series import points

ABLATION = ["-c", "suites/overlap_ablation.py"]
GRIDS = ["-c", "suites/overlap_grids.py"]
LOCAL = ["--system", "local", "-n", "gpt.*1x1x2x1", "-S", "model=gpt-test", *ONCE]
"""One point of each study on this machine."""
# Of each system the models and grids of its jobs, with the blocks that the cache keeps and the ranks of a node.
SELECTED = {
    "perlmutter": ("16-", {"gpt-20b 2x2x4x1": (28, 4), "unet-250m 2x2x4x1": (36, 4)}),
    "frontier": ("gpt-80b", {"gpt-80b 2x1x32x128": ("auto", 8)}),
    "vcluster": (
        "(vcluster|two-nodes|unet)-",
        {
            **{f"gpt-vcluster-small {grid}": (2, 2) for grid in ("2x2x2x1", "2x2x1x2")},
            **{f"gpt-local-4 {grid}": (6, 1) for grid in ("2x1x1x1", "1x1x2x1", "1x1x1x2")},
            **{f"unet-vcluster {grid}": (15, 2) for grid in ("2x2x2x1", "1x1x4x2")},
        },
    ),
    "summit": ("48-", {"gpt-12b 1x1x48x1": ("auto", 6)}),
}
ROUNDS = {"perlmutter": 10, "frontier": 5, "vcluster": 6, "summit": 10}


@pytest.fixture(scope="module", params=SELECTED)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Run]:
    name = request.param
    return name, reframe(
        tmp_path_factory.mktemp(name), *ABLATION, "--system", name, "--dry-run", "-n", SELECTED[name][0]
    )


def test_each_point_is_one_job_that_compares_all_flags(run: tuple[str, Run]) -> None:
    name, done = run
    assert done.code == 0, done.out
    jobs = {f"{option(script, '--model')} {option(script, '--grid')}": script for script in done.jobs("bench overlap")}
    assert set(jobs) == set(SELECTED[name][1])
    assert len(list(done.folder.glob("stage/**/rfm_job.sh"))) == len(jobs)
    for point, (cache, per_node) in SELECTED[name][1].items():
        script = jobs[point]
        assert option(script, "--overlap") == f"oar,ors,oag,cache={cache},data"
        assert option(script, "--clip") == "0"
        assert int(option(script, "--rounds")) == ROUNDS[name]
        assert float(option(script, "--learning-rate")) == pytest.approx(1e-6), "or it might diverge without clipping"
        assert "--checkpoint-activations" in script, "or the cache would hide nothing"
        assert "--variant" not in script
        assert "--label study=overlap_ablation" in script
        per_node_words = ("--rs_per_host", "--ntasks-per-node")
        assert str(per_node) in [option(script, word) for word in per_node_words if word in script]


def test_some_of_the_flags_and_other_numbers_of_turns_can_be_asked_for(tmp_path: Path) -> None:
    asked = ["-S", "overlap=oar,oag", "-S", "rounds=20", "-S", "steps_per_round=3", "-S", "ranks_per_node=2"]
    done = reframe(tmp_path, *ABLATION, "--system", "perlmutter", "-n", "gpt", *asked)
    (script,) = done.jobs("bench overlap")
    words = ("--overlap", "--rounds", "--steps-per-round", "--ntasks-per-node", "--nodes", "--end-within")
    assert [option(script, word) for word in words] == ["oar,oag", "20", "3", "2", "8", "1440"]


def test_a_cache_larger_than_the_model_is_refused_with_the_engines_sentence(tmp_path: Path) -> None:
    copy = project(tmp_path)
    file = copy / "suites" / "series.yaml"
    studies = yaml.safe_load(file.read_text())
    studies["overlap_ablation"][0]["cache"] = 33
    file.write_text(yaml.safe_dump(studies))
    done = reframe(tmp_path / "a", *ABLATION, "--system", "perlmutter", root=copy)
    assert done.code == 1
    assert re.search("cache=33 .*gpt-20b .*cache=32", done.out)
    (script,) = done.jobs("bench overlap")
    assert option(script, "--model") == "unet-250m", "its 36 blocks are kept"


def test_on_every_grid_of_the_small_cluster_each_flag_is_compared_alone(tmp_path: Path) -> None:
    done = succeed(tmp_path, *GRIDS, "--system", "vcluster", "--dry-run")
    scripts = done.jobs("bench overlap")
    assert len({option(script, "--grid") for script in scripts}) == len(scripts) == 20
    for script in scripts:
        assert options(script, "--variant") == ["oar", "ors", "oag", "cache=2", "data"]
        assert "--label study=overlap_grids" in script


def test_all_flags_are_each_of_them_alone_and_a_grid_with_nothing_to_hide_is_refused_at_once(tmp_path: Path) -> None:
    whole = ["--system", "vcluster", "--dry-run", "-n", "8-gpt.*-(2x2x2x1|1x1x1x8)"]
    every = succeed(tmp_path / "all", *GRIDS, *whole, "-S", "overlap=all")
    for script in every.jobs("bench overlap"):
        assert options(script, "--variant") == ["oar", "ors", "oag", "cache=auto", "data"]
    for suite in (GRIDS, ABLATION):
        one = ["--system", "vcluster", "--dry-run", "-n", "1x1x1x[28]", "-S", "overlap=oar,oag"]
        refused = reframe(tmp_path / suite[1].replace("/", "-"), *suite, *one)
        assert refused.code == 1
        assert re.search("refused: .*grid 1x1x1x", refused.out)
        assert not refused.jobs("bench overlap")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Run:
    few = ["-S", "rounds=2", "-S", "steps_per_round=2", "-S", "overlap=ors,oag,data"]
    return reframe(tmp_path_factory.mktemp("here"), *ABLATION, *GRIDS, *LOCAL, *few)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "variants"),
    [("OverlapAblation", ["none", "ors", "ors,oag", "oag"]), ("OverlapGrids", ["none", "ors", "oag"])],
    ids=["ladder", "alone"],
)
def test_on_this_machine_each_variant_is_measured_against_none(here: Run, study: str, variants: list[str]) -> None:
    assert here.code == 0, here.out
    (case,) = [case for case in here.cases() if case["name"].startswith(study)]
    result = parse(case["record"], "record")
    assert [variant.name for variant in result.sides(OverlapSide)] == variants
    measured = figures(case)
    for variant in result.sides(OverlapSide):
        name = variant.name.replace(",", "_")
        assert measured.pop(f"time_{name}") == pytest.approx(variant.time_per_iteration_s)
        assert variant.breakdown is not None
        assert variant.breakdown.bound is not None
        assert measured.pop(f"step_by_bound_{name}") == pytest.approx(variant.breakdown.bound.step_by_bound)
        assert measured.pop(f"hidden_{name}") == pytest.approx(100 * (variant.breakdown.share_hidden or 0))
        if variant.over_base is None:
            continue
        assert measured.pop(f"speed_up_{name}") == pytest.approx(metrics.speed_up(1, variant.over_base.ratio))
        assert variant.over_base.low is None, "two rounds of one job have no interval, and no figures of its ends"
        if variant.share_of_greatest_gain is not None:
            gain = measured.pop(f"share_of_greatest_gain_{name}")
            assert gain == pytest.approx(100 * variant.share_of_greatest_gain)
    assert not measured


LACKING = """
from engine.contest.rounds import Side
times = Side.times
def lacking(self, base):
    found = times(self, base)
    return found | {{"rounds_s": found["rounds_s"][{}:]}}
Side.times = lacking
"""
"""So many of the first rounds of each variant are lost."""


@pytest.mark.slow
def test_an_ablation_that_fails_or_lacks_a_turn_says_so(tmp_path: Path) -> None:
    few = [*LOCAL, "-S", "overlap=oag"]
    faults = ["OverlapAblation.learning_rate=1e30", "OverlapAblation.rounds=4", "OverlapGrids.rounds=1"]
    wrong = [word for fault in faults for word in ("-S", fault)]
    of_oag = {FIRST: LACKING.format("self.name != 'none'")}
    both = reframe(tmp_path / "a", *ABLATION, *GRIDS, *few, *wrong, **of_oag)
    assert both.code == 1
    assert "The loss became" in both.out
    assert "{'none': [1], 'oag': []}" in both.out
    short = reframe(tmp_path / "b", *ABLATION, *few, "-S", "rounds=1", **{FIRST: LACKING.format(1)})
    assert short.code == 1
    assert "0 of 1 rounds" in short.out


PIPELINE = ["-c", "suites/pipeline.py", "--system"]
NOTHING_SIMULATED = "import engine.pipeline.staged as found; found.play = None"
"""Simulations that fail: a job script needs none."""


def test_each_point_is_a_job_on_a_machine_that_is_quiet_has_a_slow_stage_or_late_messages(tmp_path: Path) -> None:
    words = [*PIPELINE, "frontier", "--dry-run", "-n", "1x1x1x1p8", "-S", "weight_limit=3"]
    done = succeed(tmp_path, *words, **{FIRST: NOTHING_SIMULATED})
    quiet, slow, late = sorted(
        done.jobs("bench pipeline"), key=lambda script: (" --delays" in script, " --slow" in script)
    )
    for script in (quiet, slow, late):
        words = ("--grid", "--micro-batch", "--rounds", "--steps-per-round", "--end-within", "--weight-limit")
        assert [option(script, word) for word in words] == ["1x1x1x1p8", "1", "6", "1", "480", "3"]
        assert " --timeline" in script
        assert "--label study=pipeline" in script
    assert (option(slow, "--slow-stage"), option(slow, "--slow-by"), option(late, "--delays")) == ("4", "0.2", "0.005")
    assert " --slow" not in quiet + late
    assert " --delays" not in quiet + slow


def test_bubbles_are_those_of_two_equal_stages_with_2_4_and_8_micro_batches(tmp_path: Path) -> None:
    done = succeed(tmp_path, *PIPELINE, "local", "--dry-run", "-n", "Bubbles")
    scripts = done.jobs("bench pipeline")
    counts = [int(option(script, "--batch-size")) // int(option(script, "--micro-batch")) for script in scripts]
    assert sorted(counts) == [2, 4, 8]
    assert re.search(r"3 job scripts below \S+/stage/", done.out)
    assert "at most" not in done.out, "no scheduler counts node-hours"
    for script in scripts:
        words = ("--model", "--grid", "--schedules", "--rounds")
        assert [option(script, word) for word in words] == ["gpt-halves", "1x1x1x1p2", "gpipe,zero-bubble", "16"]
        assert not {"--checkpoint-activations", "--slow-stage", "--delays"} & set(script.split())


def test_both_halves_of_their_network_work_equally_long_by_the_table_that_cuts_it() -> None:
    (model,) = {lookup(point.model) for point in points("bubbles", "local")}
    before, (first, second), after = split_step_flops(model, recomputed=0)
    assert metrics.stages_differ(second + after, before + first) < UNEVEN / 2
