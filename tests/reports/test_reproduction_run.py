"""`par4d reproduce --run`: what is chosen within a budget, what is started, and what an end by any cause leaves."""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from engine import processes
from engine.errors import UsageError
from engine.published.claims import Redo, costs, figures
from reports.par4d import main
from reports.reproduction_run import Plan, plan
from suites import redo
from suites.redo import Selection, together

UNITS = {
    "overlap_ablation": {"OverlapAblation %point=unet-2-unet-local-1": 0.25, "OverlapAblation %point=local-2": 0.1},
    "validation": {"Validation": 0.2, "PipelineValidation": 0.2, "UNetValidation": 0.2},
    "baselines": {
        "Baseline %match=local-2-gpt-pair-megatron-core-data=2": 0.5,
        "Baseline %match=local-2-gpt-pair-deepspeed-3d-tensor=2": 0.5,
        "Baseline %match=local-2-gpt-pair-deepspeed-zero3-data=2": 0.5,
        "Baseline %match=unet-2-unet-local-1-deepspeed-zero3-data=2": 0.5,
        "Baseline %match=local-2-gpt-pair-fsdp2-1x1x2x1": 9.0,
    },
    "peak": {"Peak %ranks=1 %dtype=bf16": 0.0},
}
"""Node-hours of a job of each test of a system; what takes none can't run there."""
Reframe = Callable[[Sequence[str], Path, float, IO[str]], int | None]


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A system with these tests, and the commands that were described."""
    asked: list[tuple[str, ...]] = []

    def describe(words: tuple[str, ...]) -> list[dict[str, Any]]:
        asked.append(words)
        suite = Path(words[words.index("-c") + 1]).stem
        if suite not in UNITS:
            raise UsageError(f"{suite} has nothing here.")
        return [
            {
                "display_name": name,
                "cases": [{"node_hours": hours, "skipped": "" if hours else "no room"}],
                "fixture_jobs": [],
            }
            for name, hours in UNITS[suite].items()
        ]

    redo._described.cache_clear()
    monkeypatch.setattr(redo.described, "describe", describe)
    monkeypatch.setattr(processes, "end_by_signals", lambda: None)
    return asked


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """List the words that ReFrame is started with, which ends well at once."""
    words: list[list[str]] = []
    _reframe(monkeypatch, words, lambda *_: 0)
    monkeypatch.chdir(tmp_path)
    return words


def _reframe(monkeypatch: pytest.MonkeyPatch, words: list[list[str]], end: Reframe) -> None:
    def run(arguments: Sequence[str], folder: Path, timeout_s: float, out: IO[str], *, own_group: bool) -> int | None:
        assert own_group
        words.append(list(arguments))
        return end(arguments, folder, timeout_s, out)

    monkeypatch.setattr(redo, "run_reframe", run)


def names(planned: Plan) -> set[str]:
    return {name for run in planned.runs for name in run.tests}


def test_on_the_papers_machine_the_claims_own_command_runs_and_costs_what_the_file_says(
    described: list[tuple[str, ...]],
) -> None:
    (vi_c,) = (one for one in figures("axonn-sc24") if one.where == "section VI-C")
    of_machines = tuple(claim for claim in vi_c.claims if claim.system != "any")
    planned = plan([vi_c.model_copy(update={"claims": of_machines})], "frontier", repeat=3)
    assert [run.words("frontier", 3) for run in planned.runs] == [
        ("reframe", "--system", "frontier", "-c", "suites/peak.py", "-n", "Peak", "--repeat", "3", "-r")
    ]
    assert planned.node_hours == pytest.approx(
        3 * sum(costs()["reframe --system frontier -c suites/peak.py -n Peak"].values())
    )
    assert described == []
    assert {"axonn-sc24 section VI-C, A100"} <= {one.place for one in planned.left_out}


def test_elsewhere_the_systems_own_series_stand_for_the_papers(described: list[tuple[str, ...]]) -> None:
    (fig_3,) = (one for one in figures("par4d") if one.where == "Fig. 3")
    (fig_8,) = (one for one in figures("par4d") if one.where == "Fig. 8")
    assert names(plan([fig_3], "local", repeat=2)) == {"OverlapAblation %point=local-2"}
    assert names(plan([fig_8], "local", repeat=2)) == {"Validation", "UNetValidation"}
    assert len(described) == 2, "each suite once"


@pytest.mark.parametrize(
    ("only", "peer", "images", "expected"),
    [
        ("weak-64-gpt-5b", "megatron-core", False, {"megatron-core"}),
        ("weak-64-gpt-5b", "deepspeed-(3d|zero3)", False, {"gpt-pair-deepspeed-3d", "gpt-pair-deepspeed-zero3"}),
        ("local-2", "deepspeed-zero3", False, {"gpt-pair-deepspeed-zero3"}),
        (r"unet-\d+", "deepspeed-zero3", True, {"unet-local-1-deepspeed-zero3"}),
        ("par4d-unet-64", "", True, {"unet-local-1"}),
        ("par4d-64", "", False, {"megatron-core", "deepspeed-3d", "gpt-pair-deepspeed-zero3", "fsdp2"}),
    ],
)
def test_what_stands_for_a_selection_is_of_the_same_peers_and_sort(
    only: str, peer: str, images: bool, expected: set[str]
) -> None:
    found = redo.elsewhere(Redo(suite="baselines", only=only, peer=peer), "local", images=images)
    assert len(found.tests) == len(expected)
    assert all(any(words in name for name in found.tests) for words in expected)
    (pattern,) = found.patterns
    told = {name for name in UNITS["baselines"] if re.search(pattern, name.replace(" ", ""))}
    assert told == set(found.tests), "ReFrame's -n finds the same"


@pytest.mark.parametrize("node_hours", [0.2, 0.5, 0.7, 1.0, 2.6, 100.0])
def test_the_budget_is_for_all_jobs_and_the_cheapest_go_first(node_hours: float) -> None:
    every = plan(figures("par4d"), "local", repeat=2)
    planned = plan(figures("par4d"), "local", repeat=2, node_hours=node_hours)
    assert planned.node_hours <= node_hours
    assert planned.node_hours == pytest.approx(2 * sum(run.node_hours for run in planned.runs))
    hours = [run.node_hours for run in planned.runs]
    assert hours == sorted(hours)
    assert names(planned) <= names(every)
    assert "OverlapAblation %point=local-2" in names(planned), "the cheapest"
    left_out = [one for one in planned.left_out if "node-hours" in one.why]
    assert bool(left_out) == (names(planned) != names(every))


def test_a_test_of_several_claims_runs_once() -> None:
    large = Selection("s", ("a|b",), {"a": 1.0, "b": 2.0})
    small, other = Selection("s", ("a",), {"a": 1.0}), Selection("s", ("c",), {"c": 4.0})
    assert together([small, large]) == [large]
    (found,) = together([other, small, large])
    assert (found.patterns, found.node_hours) == (("a|b", "c"), 7.0)
    cheap = Selection("t", (), {"x": 0.5})
    assert [one.suite for one in together([large, cheap])] == ["t", "s"]


def test_settings_make_another_test_of_the_same_name_and_stand_in_its_command() -> None:
    """The compute of a batch, tuned and not tuned (axonn-sc24 V-C), within a budget too."""
    (v_c,) = (one for one in figures("axonn-sc24") if one.where == "section V-C")
    planned = plan([v_c], "frontier", repeat=2)
    runs = [run for run in planned.runs if run.suite == "weak_scaling"]
    untuned = ("tune_matmul=no", "also_overlap=off")
    assert sorted(run.settings for run in runs) == [(), untuned]
    assert runs[0].tests == runs[1].tests
    for run in runs:
        words = run.words("frontier", 2)
        assert [words[place + 1] for place, word in enumerate(words) if word == "-S"] == list(run.settings)
    hours = runs[0].node_hours
    assert planned.node_hours == pytest.approx(2 * sum(run.node_hours for run in planned.runs))
    within = plan([v_c], "frontier", repeat=2, node_hours=3 * hours)
    assert [run.suite for run in within.runs].count("weak_scaling") == 1


def test_elsewhere_settings_are_described_and_given_too(described: list[tuple[str, ...]]) -> None:
    found = redo.elsewhere(Redo(suite="overlap_ablation", settings=("precision=fp64",)), "local", images=False)
    assert found.arguments("local", 1)[-3:] == ["-S", "precision=fp64", "-r"]
    assert [words[-2:] for words in described] == [("-S", "precision=fp64")]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((), ("--node-hours",)),
        (("--node-hours", "0"), ("--node-hours", "0")),
        (("--node-hours", "nan"), ("--node-hours", "nan")),
        (("--node-hours", "inf"), ("--node-hours", "inf")),
        (("--node-hours", "0.25"), ("0.25", "0.3", "--repeat 2")),
        (("--node-hours", "0.15"), ("0.15", "0.3")),
        (("--node-hours", "1", "--repeat", "0"), ("--repeat", "0")),
        (("--node-hours", "1", "--timeout", "0"), ("--timeout", "0")),
        (("--node-hours", "1", "--list"), ("--run",)),
        (("--node-hours", "1", "--compare", "x"), ("--compare",)),
    ],
)
def test_what_cannot_be_run_is_refused_and_nothing_is_started(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], options: tuple[str, ...], named: tuple[str, ...]
) -> None:
    chosen = ("--paper", "par4d", "--figure", "Fig. 3", "--system", "local")
    assert main(["reproduce", "--run", *chosen, *options]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in named)
    assert said.count("\n") == 1
    assert started == []


@pytest.mark.parametrize(
    ("figure", "system", "named"), [("Fig. 7", "local", "comes with another study"), ("Fig. 6", "frontier", "frontier")]
)
def test_a_figure_without_a_verdict_and_another_machine_are_refused(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], figure: str, system: str, named: str
) -> None:
    asked = ("--paper", "axonn-ipdps22" if system == "local" else "axonn-sc24", "--figure", figure, "--system", system)
    assert main(["reproduce", "--run", *asked, "--node-hours", "1e9"]) == 2
    assert named in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize("option", ["--node-hours", "--repeat", "--timeout", "--dry-run"])
def test_options_of_a_run_belong_to_one(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = () if option == "--dry-run" else ("2",)
    assert main(["reproduce", option, *value]) == 2
    assert "--run" in capsys.readouterr().err


def test_a_dry_run_says_what_would_run_and_starts_nothing(
    started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "--run", "--dry-run", "--json", "--paper", "par4d", "--system", "local"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["system"], found["repeat"]) == ("local", 3)
    assert found["node_hours"] == pytest.approx(sum(one["node_hours"] for one in found["commands"]))
    assert all(one["command"][0] == "reframe" for one in found["commands"])
    assert {"par4d Fig. 3", "par4d Fig. 8"} <= set(found["figures"])
    assert any(one["claim"] == "par4d Table III, own shares" and one["why"] for one in found["left_out"])
    assert started == []


def test_all_that_fits_runs_and_is_judged(started: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--paper", "par4d", "--system", "local", "--node-hours", "0.7", "--repeat", "2", "--json")
    assert main(["reproduce", "--run", *options]) == 0
    assert [Path(words[words.index("-c") + 1]).stem for words in started] == ["overlap_ablation", "validation"]
    for words in started:
        assert Path(words[words.index("-c") + 1]).is_absolute()
        assert words[words.index("--system") + 1] == "local"
        assert words[words.index("--repeat") + 1] == "2"
        assert words[-1] == "-r"
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["schema"], found["system"], found["figures"]) == ("par4d.reproduction", "local", [])
    assert "1 of 2" in said.err


@pytest.mark.parametrize(("code", "named"), [(1, "exit code 1"), (None, "--timeout")])
def test_a_run_that_fails_is_named_and_the_others_go_on(
    started: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    code: int | None,
    named: str,
) -> None:
    _reframe(monkeypatch, started, lambda words, *_: 0 if "Validation" in " ".join(words) else code)
    options = ("--paper", "par4d", "--system", "local", "--node-hours", "0.7", "--repeat", "2")
    assert main(["reproduce", "--run", *options]) == 1
    assert len(started) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert named in last
    assert "overlap_ablation" in last


def test_what_the_time_out_leaves_is_not_begun(started: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--paper", "par4d", "--figure", "Fig. 3", "--system", "local", "--node-hours", "1", "--timeout", "1e-9")
    assert main(["reproduce", "--run", *options]) == 1
    assert started == []
    assert "--timeout" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("end", [SystemExit(143), KeyboardInterrupt()])
def test_an_interrupted_run_says_how_far_it_came(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    def stop(words: Sequence[str], *_: object) -> int:
        if "Validation" in " ".join(words):
            raise end
        return 0

    _reframe(monkeypatch, started, stop)
    options = ("--paper", "par4d", "--system", "local", "--node-hours", "0.7", "--repeat", "2")
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "--run", *options])
    assert ended.value.code == (130 if isinstance(end, KeyboardInterrupt) else 143)
    assert "1 of 2" in capsys.readouterr().err.splitlines()[-1]
    assert len(started) == 2


def test_grids_of_the_model_need_a_calibration_and_are_set_beside_predictions(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(UNITS, "model_validation", {"ModelValidation %point=local-2-gpt-local-2-2x1x1x1": 0.1})
    asked = ("--paper", "par4d", "--figure", "Fig. 7", "--system", "local", "--node-hours", "1", "--repeat", "2")
    assert main(["reproduce", "--run", *asked]) == 2
    assert "par4d calibrate --system local" in capsys.readouterr().err
    validated: list[str] = []

    def validate(system: str, **_: object) -> int:
        validated.append(system)
        return 0

    monkeypatch.setattr(redo, "judged_by_model", lambda system: "")
    monkeypatch.setattr(redo, "validate", validate)
    assert main(["reproduce", "--run", *asked]) == 0
    assert (len(started), validated) == (1, ["local"])
    _reframe(monkeypatch, started, lambda *_: 1)
    assert main(["reproduce", "--run", *asked]) == 1
    assert (len(started), validated) == (2, ["local"])


def test_a_plan_needs_finite_hours_only_to_run() -> None:
    assert math.isfinite(plan(figures(), "local", repeat=1).node_hours)
