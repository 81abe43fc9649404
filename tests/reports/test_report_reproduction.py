"""Verdicts on the papers' claims from results: the whole road from files, at either side of a tolerance."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sample_ablation import ablation, in_turns, with_sides
from sample_contests import contests, parted, save_contests
from sample_devices import counted, latency
from sample_pipelines import pipeline
from sample_predictions import measured, save_predictions
from sample_predictions import validation as validated
from sample_results import gemm, save, series, strong, train
from sample_tuning import MI250X, tuning

from engine.published.claims import Claim, Redo, figures
from engine.result.schema import Result
from engine.result.schema.contest import OverlapSide
from engine.result.schema.peers import Peaks, PeersResult, Work
from engine.result.schema.step import Breakdown, Collective
from reports.frames.frame import Frames, of_loaded
from reports.frames.reproduction import Evidence, Finding, Judged, judge_claim, judge_figures
from reports.frames.reproduction.sources import figure_of, sources_of
from reports.read.load import load

EVERY = [(figure, claim) for figure in figures() for claim in figure.claims]
SMALLEST_S = 17.9127
"""Published seconds of GPT-5B on 512 GCDs (axonn-sc24 Table III)."""
TUNED = {"tune_matmul": True}
ONE = {"series": "axonn-sc24", "sequences": 8192, "overlap": "oar,ors,oag", "tuning": TUNED}


def claim(paper: str, where: str, name: str = "") -> Claim:
    (found,) = (claim for figure, claim in EVERY if (claim.paper, claim.where, claim.name) == (paper, where, name))
    return found


def evidence(
    folder: Path, results: Iterable[Result] = (), held: Sequence[PeersResult] = (), predictions: Sequence[Any] = ()
) -> Frames:
    """The frames of files with these."""
    save(list(results), folder)
    save_contests(held, folder)
    save_predictions(predictions, folder)
    return of_loaded(load([folder]))


def judged(of: Claim, frames: Frames) -> Judged:
    return judge_claim(Evidence(frames), of)


def told(of: Claim, frames: Frames) -> list[Finding]:
    return [one for one in judged(of, frames).findings if one.sample]


def verdicts(of: Claim, frames: Frames) -> list[tuple[str, str, bool]]:
    return [(one.machine, one.judgement.verdict, one.judgement.by_sign) for one in told(of, frames)]


def two_jobs(time_s: float, first: int = 0, **known: Any) -> list[Result]:
    """Jobs that differ by 0.02 %, whose interval reaches 0.13 % to either side."""
    return [train(time_s=time_s * off, job=first + job, **(ONE | known)) for job, off in enumerate((0.9999, 1.0001))]


TIMES = claim("axonn-sc24", "Fig. 6", "times on Frontier")
FASTEST = claim("par4d", "Fig. 11", "fastest on Perlmutter")
ON_FRONTIER = claim("par4d", "Fig. 11", "fastest on Frontier")


@pytest.mark.parametrize(
    ("by", "expected"),
    [(1.098, "reproduces"), (1.1, "can't tell"), (1.102, "differs"), (0.902, "reproduces"), (0.898, "better")],
)
def test_two_jobs_just_inside_and_outside_of_a_tolerance(by: float, expected: str, tmp_path: Path) -> None:
    (found,) = told(TIMES, evidence(tmp_path, two_jobs(SMALLEST_S * by)))
    assert (found.judgement.verdict, found.machine) == (expected, "frontier")
    assert found.sample is not None
    assert found.sample.jobs == 2
    assert found.sample.value == pytest.approx(SMALLEST_S * by)
    assert found.sample.interval.high / found.sample.interval.low == pytest.approx(1.0025, abs=1e-4)


def test_one_job_tells_nothing(tmp_path: Path) -> None:
    frames = evidence(tmp_path, [train(time_s=SMALLEST_S, **ONE)])  # type: ignore[arg-type]
    assert verdicts(TIMES, frames) == [("frontier", "can't tell", False)]
    assert judged(TIMES, frames).overall[:2] == ("can't tell", 0)


@pytest.mark.parametrize(
    "other",
    [
        {"variant": "overlap all"},
        {"series": "night"},
        {"sequences": 4096},
        {"overlap": "none"},
        {"dtype": "fp16"},
        {"tuning": {}},
        {"model": "gpt-10b"},
        {"system": "perlmutter"},
        {"study": "by hand"},
        {"failure": "a rank was lost"},
    ],
)
def test_only_the_papers_own_point_counts(other: dict[str, Any], tmp_path: Path) -> None:
    """Planted: a variant, another series, batch, overlap, format, network, machine or study, and jobs that failed."""
    wrong = [train(**(ONE | {"time_s": SMALLEST_S, "job": job} | other)) for job in range(2)]
    assert told(TIMES, evidence(tmp_path, wrong)) == []


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"tuning": {}}, "not tuned"),
        ({"overlap": "none"}, "overlap none"),
        ({"dtype": "fp16"}, "fp16"),
        ({"sequences": 4096}, "4,096 sequences"),
    ],
)
def test_jobs_of_other_options_are_left_out_and_told(other: dict[str, Any], told: str, tmp_path: Path) -> None:
    """Beside the paper's own jobs, which alone are judged, and where there are no others."""
    wrong = two_jobs(1.4 * SMALLEST_S, first=5, **other)
    both = judged(TIMES, evidence(tmp_path / "both", [*two_jobs(SMALLEST_S), *wrong]))
    assert [(one.judgement.verdict, one.sample.jobs) for one in both.findings if one.sample] == [("reproduces", 2)]
    alone = judged(TIMES, evidence(tmp_path / "alone", wrong))
    assert alone.overall.verdict == "not run here"
    for one in (both, alone):
        assert re.findall(r"\d+", one.why)[:1] == ["2"]
        assert one.why.endswith(told)
    assert judged(TIMES, evidence(tmp_path / "own", two_jobs(SMALLEST_S))).why == ""


def test_another_size_of_the_paper_has_its_options_too(tmp_path: Path) -> None:
    """No number of 128 GCDs prints an overlap; the paper's other runs have one."""
    first = claim("axonn-sc24", "Fig. 9", "GPT-80B on 128")
    runs = strong(points=1, overlap="oar,ors,oag", tuning=TUNED)
    assert len(told(first, evidence(tmp_path / "own", runs))) == 1
    for other in ({"overlap": "none", "tuning": TUNED}, {"overlap": "oar,ors,oag"}):
        assert told(first, evidence(tmp_path / str(len(other)), strong(points=1, **other))) == []


def test_compute_is_judged_tuned_and_not_tuned_by_jobs_of_either(tmp_path: Path) -> None:
    """Planted: both ran, and the tuned ones are faster. Made-up steps compute for 0.4 of their time there."""
    largest: dict[str, Any] = {"ranks": 32768, "model": "gpt-320b"}
    slow = two_jobs(30.1 / 0.4, first=5, **largest, tuning={})
    frames = evidence(tmp_path, [*two_jobs(13.19 / 0.4, **largest), *slow])
    of = judged(claim("axonn-sc24", "section V-C", "compute of a batch"), frames)
    assert of.why == ""
    found = {one.target.readings[0].what: one for one in of.findings}
    assert {what: one.judgement.verdict for what, one in found.items()} == {
        "compute, not tuned": "reproduces",
        "compute, tuned": "reproduces",
    }


def test_of_several_layouts_the_fastest_counts(tmp_path: Path) -> None:
    slow = two_jobs(2 * SMALLEST_S, first=5, grid="4x4x4x8")
    (found,) = told(TIMES, evidence(tmp_path, [*slow, *two_jobs(SMALLEST_S)]))
    assert found.judgement.verdict == "reproduces"
    assert found.sample is not None
    assert "8x1x8x8" in found.sample.of


def test_numbers_say_nothing_on_another_machine(tmp_path: Path) -> None:
    frames = evidence(tmp_path, two_jobs(SMALLEST_S, system="alps"))
    of_figure = [one for one in judge_figures(frames, figures("axonn-sc24")) if one.figure.where == "Fig. 6"]
    assert [one.overall.verdict for one in of_figure] == ["not run here"]


def test_of_several_layouts_those_with_enough_jobs_go_first(tmp_path: Path) -> None:
    """Planted: one lucky job on another layout, which hid the one that two jobs measured."""
    lucky = two_jobs(0.8 * SMALLEST_S, first=5, grid="4x4x4x8")[:1]
    assert verdicts(TIMES, evidence(tmp_path, [*lucky, *two_jobs(SMALLEST_S)])) == [("frontier", "reproduces", False)]


def test_a_ratio_of_two_points_takes_the_ends_that_make_it_widest(tmp_path: Path) -> None:
    """Efficiency on 8192 over 512 GCDs, of intervals of 0.13 % each: 0.25 % to either side."""
    small, large = two_jobs(18.0), two_jobs(20.0, ranks=8192, model="gpt-80b")
    efficiency = claim("axonn-sc24", "Fig. 6", "efficiency on Frontier")
    (found,) = told(efficiency, evidence(tmp_path, [*small, *large]))
    assert found.sample is not None
    rates = [run.summary.hardware_flops_per_s / run.ranks for run in (large[0], small[0]) if run.summary]
    assert found.sample.value == pytest.approx(rates[0] / rates[1], rel=1e-4)
    assert found.sample.interval.high / found.sample.value == pytest.approx(1.0025, abs=2e-4)


def test_a_share_of_several_sizes_needs_all_of_them(tmp_path: Path) -> None:
    share = claim("axonn-sc24", "Fig. 8", "share on Frontier")
    runs = [
        run.model_copy(
            update={
                "labels": run.labels | {"series": "axonn-sc24"},
                "config": run.config | TUNED | {"overlap": "oar,ors,oag"},
            }
        )
        for run in series("frontier", jobs=2)
    ]
    assert [one.jobs for found in told(share, evidence(tmp_path / "all", runs)) if (one := found.sample)] == [2]
    (some,) = told(share, evidence(tmp_path / "some", runs[2:]))
    assert some.judgement.verdict == "can't tell"
    measured, points = map(int, re.findall(r"\d+", some.judgement.why)[:2])
    assert measured == points - 1


def test_a_time_to_solution_is_of_the_papers_tokens(tmp_path: Path) -> None:
    last = claim("axonn-sc24", "Fig. 9", "GPT-80B on 8192")
    (found,) = told(last, evidence(tmp_path, strong(points=7, overlap="oar,ors,oag", tuning=TUNED)))
    assert found.sample is not None
    assert found.sample.value == pytest.approx(26.5 * 86400, rel=0.01)


BESIDE = claim("par4d", "Fig. 4")
LADDER = ("none", "oar", "oar,ors", "oar,ors,oag")
KINDS = ("reduce_scatter", "all_gather")
STEP_BY_STEP = [(0.9, 0.9), (0.9, 0.9), (0.2, 0.9), (0.2, 0.1)]


def by_kind(exposed: Sequence[tuple[float, float]], **known: Any) -> list[Result]:
    """Two jobs whose overlaps leave these seconds of KINDS exposed, of 1 s each."""
    jobs = []
    for number in range(2):
        job = in_turns(LADDER, [[[1.0]] * 6 for _ in LADDER], job=number, **known)
        sides = [
            side.model_copy(update={"collectives": tuple(_of_kind(*one) for one in zip(KINDS, of, strict=True))})
            for side, of in zip(job.sides(OverlapSide), exposed, strict=True)
        ]
        jobs.append(with_sides(job, sides))
    return jobs


def _of_kind(kind: str, exposed_s: float) -> Collective:
    return Collective(kind=kind, axis="z", calls=1, bytes=1, time_s=1, exposed_s=exposed_s, hidden_s=1 - exposed_s)


@pytest.mark.parametrize(
    ("exposed", "expected"),
    [
        (STEP_BY_STEP, ["reproduces", "reproduces"]),
        ([(0.9, 0.9), (0.9, 0.9), (0.0, 0.9), (0.0, 0.0)], ["reproduces", "reproduces"]),
        ([(0.9, 0.9), (0.2, 0.9), (0.9, 0.9), (0.2, 0.1)], ["differs", "reproduces"]),
        ([(0.9, 0.9), (0.9, 0.1), (0.2, 0.1), (0.2, 0.9)], ["reproduces", "differs"]),
    ],
)
def test_each_kind_of_collectives_is_judged_by_itself(
    exposed: list[tuple[float, float]], expected: list[str], tmp_path: Path
) -> None:
    """Planted: all hidden, whose share has no ratio, reduce-scatters and then gathers that get less hidden."""
    frames = evidence(tmp_path, by_kind(exposed))
    assert verdicts(BESIDE, frames) == [("vcluster", verdict, True) for verdict in expected]


def test_each_kind_of_collectives_is_judged_on_the_papers_machine(tmp_path: Path) -> None:
    own = {"system": "perlmutter", "model": "gpt-20b", "grid": "2x2x4x1", "series": "par4d", "dtype": "bf16"}
    assert verdicts(BESIDE, evidence(tmp_path, by_kind(STEP_BY_STEP, **own))) == 2 * [
        ("perlmutter", "reproduces", False)
    ]


def test_without_waits_by_kind_nothing_is_said_of_one(tmp_path: Path) -> None:
    """As in older results."""
    assert told(BESIDE, evidence(tmp_path, ablation(jobs=2))) == []


def exposing(by_job: Sequence[Sequence[float]]) -> list[Result]:
    """Jobs whose overlaps leave these seconds of a step of 1 s exposed."""
    jobs = []
    for number, exposed in enumerate(by_job):
        job = in_turns(LADDER, [[[1.0]] * 6 for _ in LADDER], job=number)
        sides = [
            side.model_copy(update={"breakdown": Breakdown(compute_s=1 - wait_s, collectives_s=wait_s)})
            for side, wait_s in zip(job.sides(OverlapSide), exposed, strict=True)
        ]
        jobs.append(with_sides(job, sides))
    return jobs


@pytest.mark.parametrize(
    ("none", "expected"),
    [
        ((0.3, 0.31, 0.29, 0.3), "reproduces"),
        ((0.0, 0.0, 0.12, 0.13), "can't tell"),
        ((0.0, 0.0, 0.001, 0.0), "differs"),
    ],
)
def test_a_job_that_exposes_nothing_of_the_follower_counts(
    none: tuple[float, ...], expected: str, tmp_path: Path
) -> None:
    """Planted: nothing is exposed without overlap in some jobs, where 0.1 s by oar contradicts the order."""
    frames = evidence(tmp_path, exposing([(wait_s, 0.1, 0.05, 0.02) for wait_s in none]))
    first, *others = told(claim("axonn-sc24", "Fig. 5", "each step"), frames)
    assert first.sample is not None
    assert (first.judgement.verdict, first.sample.jobs) == (expected, 4)
    assert [one.judgement.verdict for one in others] == ["reproduces", "reproduces"]


IDLE = claim("colossal-ai", "section 2.2", "schedules that are there")


@pytest.mark.parametrize(
    ("idle", "expected"),
    [
        ((0.26, 0.27, 0.28), "reproduces"),
        ((0.0, 0.0, 0.0), "differs"),
        ((0.05, 0.06, 0.04), "differs"),
        ((0.0, 0.5, 0.1), "can't tell"),
        ((0.3,), "can't tell"),
    ],
)
def test_stages_that_wait_for_less_than_a_bubble_contradict_it(
    idle: tuple[float, ...], expected: str, tmp_path: Path
) -> None:
    """Four stages and eight micro-batches have a bubble of 3/8 of the work; half of it is 16 % of a step."""
    jobs = []
    for share, job in zip(idle, pipeline(jobs=len(idle), schedules=("1f1b", "gpipe")), strict=True):
        assert job.contest
        sides = tuple(side.model_copy(update={"idle_share": share}) for side in job.contest.sides)
        jobs.append(job.model_copy(update={"contest": job.contest.model_copy(update={"sides": sides})}))
    found = told(IDLE, evidence(tmp_path, jobs))
    assert [one.judgement.verdict for one in found] == [expected, expected]


def test_stages_as_a_schedule_plays_them_wait_for_their_bubble(tmp_path: Path) -> None:
    frames = evidence(tmp_path, pipeline(jobs=3, schedules=("1f1b", "gpipe")))
    assert {one.judgement.verdict for one in told(IDLE, frames)} == {"reproduces"}


ALL_FOUR = claim("par4d", "Fig. 3", "all four")


@pytest.mark.parametrize(("jobs", "expected"), [(1, "can't tell"), (2, "reproduces")])
def test_another_machine_answers_by_sign_with_its_own_series(jobs: int, expected: str, tmp_path: Path) -> None:
    """The most ranks answer, of as many jobs as tell."""
    small = ablation(jobs=3, grid="2x1x1x1", job=20)
    frames = evidence(tmp_path, [*ablation(jobs=jobs), *(small if jobs == 2 else [])])
    assert verdicts(ALL_FOUR, frames) == [("vcluster", expected, jobs == 2)]
    (found,) = told(ALL_FOUR, frames)
    assert found.sample is not None
    assert "8 devices" in found.sample.of


def test_an_overlap_that_makes_it_slower_differs_on_another_machine(tmp_path: Path) -> None:
    names = ("none", "oar,ors,oag,cache=2")
    slower = [in_turns(names, [[[1.0]] * 6, [[1.1 + 0.001 * job]] * 6], job=job) for job in range(2)]
    assert verdicts(ALL_FOUR, evidence(tmp_path, slower)) == [("vcluster", "differs", True)]


def test_a_flag_that_hides_nothing_on_a_grid_is_left_out_there(tmp_path: Path) -> None:
    """With ranks along z alone oar hides nothing: what oag adds to oar and ors is what it adds to ors."""
    names = ("none", "ors", "ors,oag", "ors,oag,cache=2")
    along_z = [
        in_turns(names, [[[took + 0.0001 * job]] * 6 for took in (1.0, 0.9, 0.7, 0.6)], job=job, grid="1x1x2x1")
        for job in range(2)
    ]
    frames = evidence(tmp_path, along_z)
    gathers = told(claim("par4d", "Fig. 3", "all-gathers hidden"), frames)
    assert [one.value for found in gathers if (one := found.sample)] == [pytest.approx(1 - 0.7 / 0.9, abs=1e-3)]
    assert told(claim("par4d", "Fig. 3", "all-reduces hidden"), frames) == []


def test_the_papers_machine_goes_before_others(tmp_path: Path) -> None:
    own = ablation(
        jobs=2, system="perlmutter", model="gpt-20b", grid="2x2x4x1", series="par4d", dtype="bf16", partition="gpu"
    )
    assert verdicts(ALL_FOUR, evidence(tmp_path, [*own, *ablation(jobs=2, job=9)])) == [
        ("perlmutter", "reproduces", False)
    ]


def test_what_is_hidden_is_compared_along_the_ladder(tmp_path: Path) -> None:
    hidden = claim("par4d", "Fig. 3", "more is hidden")
    frames = evidence(tmp_path, ablation(jobs=2))
    assert verdicts(hidden, frames) == 3 * [("vcluster", "reproduces", True)]
    steps = claim("axonn-sc24", "Fig. 5", "each step")
    assert len(told(steps, frames)) == 3, "asked once, not of each of five networks"


def peers_of(ratio: float, peer: str, job: int = 0, **known: Any) -> PeersResult:
    found = contests((peer,), ratios={peer: ratio}, job=job, **known)
    return found.model_copy(update={"labels": found.labels | {"study": "baselines"}})


@pytest.mark.parametrize(("ratio", "expected"), [(0.8, "reproduces"), (1.2, "differs")])
def test_other_trainers_are_compared_by_their_contests(ratio: float, expected: str, tmp_path: Path) -> None:
    frames = evidence(tmp_path, held=[peers_of(ratio, "megatron-core")])
    assert verdicts(FASTEST, frames) == [("local", expected, True)]
    saved = claim("par4d", "Fig. 11", "over Megatron-LM on Perlmutter")
    assert verdicts(saved, frames) == [("local", expected, True)]


def at_64(peer: str, ratio: float, hfu: float) -> PeersResult:
    """A contest of GPT-5B on 64 GPUs of Perlmutter, whose peer has that share of the peak at 0.4 s a step."""
    found = peers_of(ratio, peer, system="perlmutter", device="cuda", dtype="bf16", model="gpt-5b")
    work = Work(tokens=2048 * 2048, model_flops=10**15, hardware_flops=int(hfu * 64 * 312e12 * 0.4))
    case = found.case | {"model": {"name": "gpt-5b", "sequence": 2048}, "sequences": 2048}
    contest = found.comparisons[0].model_copy(update={"ranks": 64, "grid": "1x1x64x1"})
    asked = found.contests[0].model_copy(update={"ranks": 64, "grid": "1x1x64x1"})
    changes = {"work": work, "case": case, "comparisons": (contest,), "contests": (asked,)}
    return found.model_copy(update=changes | {"peaks": Peaks(advertised=312e12)})


@pytest.mark.parametrize(("hfu", "expected"), [(0.37, "reproduces"), (0.6, "better"), (0.3, "differs")])
def test_a_contest_of_the_papers_size_is_judged_by_its_numbers(hfu: float, expected: str, tmp_path: Path) -> None:
    """Published: 37 % of the peak for Megatron-LM."""
    frames = evidence(tmp_path, held=[at_64("megatron-core", 0.65, hfu)])
    theirs = claim("par4d", "Table III", "shares of Megatron-LM")
    assert verdicts(theirs, frames) == [("perlmutter", expected, False)]
    (first,) = told(FASTEST, frames)
    assert first.target.comparison is not None
    assert (first.target.comparison.at, first.judgement.verdict) == ("GPT-5B on 64", "reproduces")


def by_baselines(name: str) -> Claim:
    """Return a claim of par4d Fig. 10 as if the study of baselines redid it."""
    return claim("par4d", "Fig. 10", name).model_copy(update={"redo": (Redo(suite="baselines"),), "status": ""})


FRONTIER = {"system": "frontier", "device": "cuda", "dtype": "bf16", "model": "gpt-80b"}


def on_1024(peer: str, theirs: Sequence[float], **known: Any) -> PeersResult:
    """Contests of GPT-80B on 1024 GCDs of Frontier, whose steps are parted."""
    found = peers_of(0.7, peer, **(FRONTIER | known))
    case = found.case | {"model": {"name": "gpt-80b", "sequence": 2048}, "sequences": 2048}
    size = {"ranks": 1024, "grid": "1x1x1024x1"}
    contest = parted(found.comparisons[0].model_copy(update=size), ours=(20, 1, 4, 6), peer=theirs)
    asked = found.contests[0].model_copy(update=size)
    return found.model_copy(update={"case": case, "comparisons": (contest,), "contests": (asked,)})


PARTED = {
    "own communication": ("reproduces",),
    "communication of the others": ("reproduces", "better"),
    "communication over theirs": ("reproduces", "differs"),
    "as much compute": ("reproduces", "differs"),
}
"""Verdicts by planted steps beside DeepSpeed-3D as published and beside ZeRO-3 with half of the communication and
twice the work."""


@pytest.mark.parametrize("name", PARTED)
def test_parts_of_a_step_are_judged_by_a_profile_of_either_side(name: str, tmp_path: Path) -> None:
    """Published: 6, 15.2 and 74.9 s of exposed communication, and as much compute."""
    steps = {"deepspeed-3d": (20, 1, 2, 15.2), "deepspeed-zero3": (40, 1, 2, 37.4)}
    frames = evidence(tmp_path, held=[on_1024(peer, step, job=job) for job, (peer, step) in enumerate(steps.items())])
    assert verdicts(by_baselines(name), frames) == [("frontier", verdict, False) for verdict in PARTED[name]]


def test_ratios_of_parts_are_judged_by_sign_on_another_machine_and_seconds_are_not(tmp_path: Path) -> None:
    known = {"system": "local", "model": "gpt-pair"}
    frames = evidence(tmp_path, held=[on_1024("deepspeed-3d", (20, 1, 2, 5), **known)])
    found = {name: verdicts(by_baselines(name), frames) for name in PARTED}
    assert found["communication over theirs"] == [("local", "differs", True)], "5 s are less than our 6"
    assert found["own communication"] == found["communication of the others"] == []


def test_contests_without_parts_say_nothing_of_them(tmp_path: Path) -> None:
    frames = evidence(tmp_path, held=[peers_of(0.8, "deepspeed-3d")])
    assert told(by_baselines("as much compute"), frames) == []


def test_what_a_paper_answers_in_two_ways_is_not_asked_of_another_machine(tmp_path: Path) -> None:
    """On Frontier ZeRO-3 is faster up to GPT-20B, and slower beyond."""
    frames = evidence(tmp_path, held=[peers_of(0.8, "deepspeed-zero3"), peers_of(0.8, "deepspeed-3d", job=1)])
    compared = [one.target.comparison for one in told(ON_FRONTIER, frames)]
    assert [one and one.behind for one in compared] == ["DeepSpeed-3D"]


@pytest.mark.parametrize(("jobs", "expected"), [((0.9, 0.9001), "reproduces"), ((0.9, 0.5), "can't tell")])
def test_fewer_stages_are_compared_on_as_many_devices(jobs: tuple[float, float], expected: str, tmp_path: Path) -> None:
    """Stages and data alone: a tensor-parallel grid of as many devices doesn't count."""

    def job(grid: str, number: int, length: float) -> Result:
        (run,) = pipeline(grid=grid, job=number, schedules=("1f1b",))
        assert run.contest
        (side,) = run.contest.sides
        config = run.config | {"batch": {"sequences": 16, "micro": 1}}
        stages = [stage.model_copy(update={"idle_s": (), "work_s": ()}) for stage in side.stages]  # type: ignore[union-attr]
        side = side.model_copy(update={"stages": tuple(stages), "time_per_iteration_s": length})
        return run.model_copy(update={"config": config, "contest": run.contest.model_copy(update={"sides": (side,)})})

    runs = [job("1x1x1x1p8", number, 1.0) for number in range(2)]
    runs += [job("1x1x1x2p4", 5 + number, length) for number, length in enumerate(jobs)]
    runs += [job("2x1x1x1p4", 9 + number, 0.1) for number in range(2)]
    order = claim("axonn-ipdps22", "Fig. 5", "order")
    assert verdicts(order, evidence(tmp_path, runs)) == [("vcluster", expected, True)]


def test_a_peak_is_of_one_device(tmp_path: Path) -> None:
    jobs = [gemm(job=job) for job in range(2)]
    joint = [gemm(job=job, ranks=4, best=200e12) for job in (5, 6)]
    peak = claim("axonn-sc24", "section VI-C", "MI250X")
    assert verdicts(peak, evidence(tmp_path, [*jobs, *joint, latency()])) == [("frontier", "reproduces", False)]


@pytest.mark.parametrize(
    ("offs", "expected"),
    [((1.0, 1.0), "reproduces"), ((1.06, 1.06), "differs"), ((0.94, 0.94), "differs"), ((1.0,), "can't tell")],
)
def test_flops_of_the_formula_are_judged_on_every_machine(offs: Sequence[float], expected: str, tmp_path: Path) -> None:
    jobs = [counted(off=off, job=job) for job, off in enumerate(offs)]
    of_formula = claim("axonn-sc24", "section VI-C", "flops of the formula")
    unet = [counted(off=2.0, job=5 + job, model="unet-test") for job in range(3)]
    (found,) = told(of_formula, evidence(tmp_path, [*jobs, *unet]))
    assert (found.machine, found.judgement.verdict, found.judgement.by_sign) == ("local", expected, False)
    assert found.sample is not None
    assert (found.sample.value, found.sample.jobs) == pytest.approx((offs[0], len(offs)))


def test_products_are_judged_as_pytorch_and_the_tuner_compute_them(tmp_path: Path) -> None:
    frames = evidence(tmp_path, [tuning(job=job) for job in range(2)])
    slow, tuned = (claim("axonn-sc24", "section V-C", name) for name in ("slow product", "that product tuned"))
    assert verdicts(slow, frames) == [("frontier", "reproduces", False)]
    (found,) = told(tuned, frames)
    assert found.sample is not None
    assert found.sample.value == pytest.approx(105 / 11.5, rel=0.05), "less the time of its copies"


@pytest.mark.parametrize(("nn", "expected"), [(105e12, "reproduces"), (10e12, "differs")], ids=["faster", "slower"])
def test_a_mode_is_judged_by_the_products_that_another_computes(nn: float, expected: str, tmp_path: Path) -> None:
    rates = MI250X | {"NN": nn, "NT": 60e12}
    jobs = [tuning(model="gpt-local-1", grid="1x1x1x1", system="local", rates=rates, job=job) for job in range(3)]
    found = told(claim("axonn-sc24", "section V-C", "modes"), evidence(tmp_path, jobs))
    assert [one.judgement.verdict for one in found] == [expected, expected]


def test_a_mode_that_was_not_timed_for_a_product_is_no_faster_there(tmp_path: Path) -> None:
    """Planted: half of the products without the slower mode, whose sum was that of fewer products."""
    rates = {"NN": 58e12, "NT": 60e12, "TN": 60e12}
    slow = [tuning(model="gpt-local-1", grid="1x1x1x1", system="local", rates=rates, job=job) for job in range(3)]
    jobs = [_without_nn(result) for result in slow]
    found = told(claim("axonn-sc24", "section V-C", "modes"), evidence(tmp_path, jobs))
    assert {one.judgement.verdict for one in found} == {"differs"}


def _without_nn(result: Result) -> Result:
    """Leave out of every second shape the ways in NN that aren't PyTorch's own."""
    assert result.tuning
    kept = [
        tuple(way for way in shape.times if place % 2 or way.own or way.mode != "NN")
        for place, shape in enumerate(result.tuning.shapes)
    ]
    shapes = [shape.model_copy(update={"times": ways}) for shape, ways in zip(result.tuning.shapes, kept, strict=True)]
    return result.model_copy(update={"tuning": result.tuning.model_copy(update={"shapes": tuple(shapes), "again": ()})})


def test_a_performance_model_is_judged_by_the_measured_grids(tmp_path: Path) -> None:
    """On another machine only which of two models has the fastest grid first; one set of times tells nothing."""
    place = claim("par4d", "Fig. 7", "place of the fastest grid")
    job = measured()
    repeats = [
        train(
            ranks=8, grid=row.grid, time_s=row.measured_s, job=100 * repeat + number, model="gpt-vcluster-small",
            system="vcluster", study="model_validation", partition="cpu", dtype="fp32", sequences=8,
        )
        for repeat in range(2)
        for number, row in enumerate(job.grids)
    ]  # fmt: skip
    frames = evidence(tmp_path / "two", repeats, predictions=[validated(jobs=(job,))])
    assert [one[0] for one in verdicts(place, frames)] == ["vcluster"]
    assert [one.jobs for found in told(place, frames) if (one := found.sample)] == [2]
    counts = judge_claim(Evidence(frames), claim("axonn-sc24", "Fig. 2", "GPT-20B on 32"))
    assert counts.overall.verdict == "not run here"
    assert "vcluster" in counts.why
    alone = evidence(tmp_path / "one", predictions=[validated(jobs=(job,))])
    assert [found.judgement.verdict for found in told(place, alone)] in ([], ["can't tell"])


def test_what_no_function_reads_yet_is_known() -> None:
    """A claim that a suite redoes has a function, or stands here."""
    unread = {
        (claim.paper, claim.where, figure_of(claim, target))
        for _, claim in EVERY
        if claim.redo and not claim.status
        for target in claim.targets
        if not sources_of(claim, target)
    }
    assert unread == set()
