"""Verdicts on what the papers say of their rivals, from planted contests at the papers' sizes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from sample_contests import contests, save_contests

from engine.models.catalogue import published
from engine.published.claims import Claim, figures
from engine.result.judges.reproduction import GONE
from engine.result.schema.peers import Peaks, PeersResult, Work
from reports.figures.reproduction import waits
from reports.frames.frame import of_loaded
from reports.frames.reproduction import Evidence, Judged, judge_claim, judge_figures
from reports.frames.reproduction.contests import points_of
from reports.frames.reproduction.samples import COLLECTIVES, Place, place_of, plain
from reports.read.load import load

PEAK, STEP_S = 312e12, 0.4
"""Of a GPU of Perlmutter; and a step of a planted peer."""


class Planted(NamedTuple):
    """Contest with a rival."""

    peer: str
    ratio: float
    """Engine's time of a step over the peer's."""
    model: str = "gpt-80b"
    ranks: int = 1024
    hfu: float = 0.4
    system: str = "perlmutter"
    dtype: str = "bf16"
    sequences: int = 2048
    series: str = "par4d-weak"
    jobs: int = 3
    grid: str = ""
    """Grid of the engine; "" for all ranks along z."""
    sequence: int = 2048
    step_s: float = STEP_S

    def result(self, job: int) -> PeersResult:
        """Return the result of its jobs."""
        found = contests(
            (self.peer,),
            ratios={self.peer: self.ratio},
            job=job,
            system=self.system,
            series=self.series,
            device="cuda",
            dtype=self.dtype,
            model=self.model,
            spread=0.002,
            jobs=self.jobs,
            step_s=self.step_s,
        )
        work = Work(
            tokens=self.sequences * self.sequence,
            model_flops=10**15,
            hardware_flops=int(self.hfu * self.ranks * PEAK * self.step_s),
        )
        size = {"ranks": self.ranks, "grid": self.grid or f"1x1x{self.ranks}x1"}
        changes = {
            "labels": found.labels | {"study": "baselines"},
            "case": found.case
            | {"model": {"name": self.model, "sequence": self.sequence}, "sequences": self.sequences},
            "comparisons": tuple(one.model_copy(update=size) for one in found.comparisons),
            "contests": tuple(one.model_copy(update=size) for one in found.contests),
            "work": work,
            "peaks": Peaks(advertised=PEAK),
        }
        return found.model_copy(update=changes)


def claim(where: str, name: str, paper: str = "par4d") -> Claim:
    (found,) = (one for figure in figures(paper) if figure.where == where for one in figure.claims if one.name == name)
    return found


def judged(of: Claim, planted: Sequence[Planted], folder: Path) -> Judged:
    save_contests([one.result(job) for job, one in enumerate(planted)], folder)
    return judge_claim(Evidence(of_loaded(load([folder]))), of)


def verdicts(of: Claim, planted: Sequence[Planted], folder: Path) -> list[str]:
    """Return the verdicts on what was measured on the paper's machine."""
    found = judged(of, planted, folder)
    return [one.judgement.verdict for one in found.findings if one.sample and one.machine == of.machine]


MEGATRON = Planted("megatron-core", 0.75, "gpt-80b-adjusted", hfu=0.42)
DEEPSPEED = Planted("deepspeed-3d", 0.68, "gpt-80b-adjusted", hfu=0.38)
ZERO = Planted("deepspeed-zero3", 0.48, hfu=0.27)
ZERO_512 = ZERO._replace(ratio=1.0, ranks=512, series="par4d-strong")


@pytest.mark.parametrize(
    ("where", "name", "planted"),
    [
        ("abstract", "over Megatron-LM", MEGATRON),
        ("Fig. 9", "over Megatron-LM on Perlmutter", MEGATRON),
        ("Fig. 9", "over DeepSpeed-3D on Perlmutter", DEEPSPEED),
        ("Fig. 9", "as fast as ZeRO-3 on 512 of Perlmutter", ZERO_512),
        ("Fig. 9", "over DeepSpeed-3D on Frontier", DEEPSPEED._replace(ratio=0.74, system="frontier")),
        ("Fig. 9", "over ZeRO-3 on Frontier", ZERO._replace(system="frontier")),
        ("Fig. 11", "over ZeRO-3 on 1024 of Perlmutter", ZERO),
        ("Table III", "shares of Megatron-LM", MEGATRON),
        ("Table III", "shares of ZeRO-3", ZERO),
        ("Table III", "shares of DeepSpeed-3D", DEEPSPEED),
    ],
)
def test_a_contest_at_the_papers_size_reproduces_its_number(
    where: str, name: str, planted: Planted, tmp_path: Path
) -> None:
    of = claim(where, name)
    assert verdicts(of, [planted], tmp_path / "as printed") == ["reproduces"]
    lacks = planted._replace(ratio=1.3, hfu=planted.hfu - 0.1)
    assert verdicts(of, [lacks], tmp_path / "other") == ["differs"]


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "fp32"},
        {"ranks": 512},
        {"model": "gpt-40b-adjusted"},
        {"peer": "deepspeed-3d"},
        {"system": "frontier"},
    ],
)
def test_only_the_papers_own_point_counts(other: dict[str, object], tmp_path: Path) -> None:
    """Planted: another format, size, network, rival and machine."""
    of = claim("Fig. 9", "over Megatron-LM on Perlmutter")
    assert verdicts(of, [MEGATRON._replace(**other)], tmp_path) == []


def test_shares_are_of_the_papers_batch(tmp_path: Path) -> None:
    shares = claim("Table III", "shares of Megatron-LM")
    assert verdicts(shares, [MEGATRON._replace(sequences=4096)], tmp_path) == []


@pytest.mark.parametrize(
    ("on_512", "on_1024", "expected"), [(1.0, 0.48, ["reproduces"]), (0.5, 0.9, ["differs"]), (None, 0.48, [])]
)
@pytest.mark.parametrize("system", ["perlmutter", "frontier"])
def test_zero_3_stops_scaling_where_its_efficiency_falls_behind(
    system: str, on_512: float | None, on_1024: float, expected: list[str], tmp_path: Path
) -> None:
    of = claim("Fig. 9", "ZeRO-3 stops scaling" + (" on Frontier" if system == "frontier" else ""))
    planted = [ZERO._replace(system=system, ratio=on_1024)]
    if on_512 is not None:
        planted.append(ZERO_512._replace(system=system, ratio=on_512))
    assert verdicts(of, planted, tmp_path) == expected


def test_scaling_is_of_one_network(tmp_path: Path) -> None:
    """Planted: weak scaling's smaller network on 512, on which ZeRO-3 does well."""
    weak = ZERO_512._replace(model="gpt-40b", series="par4d-weak")
    assert verdicts(claim("Fig. 9", "ZeRO-3 stops scaling"), [ZERO, weak], tmp_path / "other") == []
    assert verdicts(claim("Fig. 9", "ZeRO-3 stops scaling"), [ZERO, weak, ZERO_512], tmp_path / "both") == [
        "reproduces"
    ]


def test_every_rival_of_fig_11_is_compared_at_its_size(tmp_path: Path) -> None:
    order = claim("Fig. 11", "fastest on Perlmutter")
    found = judged(order, [MEGATRON, ZERO, DEEPSPEED._replace(ratio=1.2)], tmp_path)
    told = {
        (one.target.comparison.behind, one.target.comparison.at): one.judgement.verdict
        for one in found.findings
        if one.sample and one.target.comparison
    }
    assert told == {
        ("Megatron-LM", "GPT-80B on 1024"): "reproduces",
        ("ZeRO-3", "GPT-80B on 1024"): "reproduces",
        ("DeepSpeed-3D", "GPT-80B on 1024"): "differs",
    }


def test_summits_contests_in_fp32_tell_who_is_ahead_and_no_number(tmp_path: Path) -> None:
    of_summit = {"system": "summit", "series": "axonn-ipdps22-strong", "dtype": "fp32"}
    planted = [
        MEGATRON._replace(model="gpt-12b-adjusted", ranks=384, ratio=0.8, **of_summit),
        DEEPSPEED._replace(model="gpt-12b-adjusted", ranks=384, ratio=0.9, **of_summit),
    ]
    share = claim("Fig. 11", "on 384", "axonn-ipdps22")
    assert verdicts(share, planted, tmp_path / "fp32") == []
    half = [one._replace(dtype="fp16") for one in planted]
    assert verdicts(share, half[:1], tmp_path / "fp16") == ["reproduces"]
    weak = [one._replace(series="axonn-ipdps22-weak", ranks=48) for one in planted]
    order = claim("Fig. 9", "fastest", "axonn-ipdps22")
    assert verdicts(order, weak, tmp_path / "order") == ["reproduces", "reproduces"]
    last = [one._replace(ratio=1.2) for one in weak]
    assert verdicts(order, last, tmp_path / "slower") == ["differs", "differs"]


ON_SUMMIT = Planted(
    "deepspeed-3d",
    0.8475,
    "gpt-100b-adjusted",
    384,
    system="summit",
    dtype="fp16",
    sequences=16384,
    series="axonn-ipdps22-weak",
    sequence=512,
    step_s=350.0,
)
"""DeepSpeed in axonn-ipdps22's weak scaling: of 35,763 steps of 300 billion tokens each takes 53.4 s more than the
engine's, or 22.1 days in all.
"""
WEAK = {48: "gpt-12b", 96: "gpt-24b", 192: "gpt-50b", 384: "gpt-100b"}


def weak_on_summit(devices: Sequence[int] = tuple(WEAK), **changes: object) -> list[Planted]:
    return [ON_SUMMIT._replace(model=f"{WEAK[each]}-adjusted", ranks=each, **changes) for each in devices]


@pytest.mark.parametrize("rival", ["DeepSpeed", "Megatron-LM"])
def test_shares_of_summits_rivals_are_read_from_contests_in_its_format(rival: str, tmp_path: Path) -> None:
    shares, peer = claim("Fig. 9", "shares of the others", "axonn-ipdps22"), "megatron-core"
    planted = weak_on_summit() if rival == "DeepSpeed" else weak_on_summit(peer=peer, hfu=0.3)
    assert verdicts(shares, planted, tmp_path / "as printed") == ["reproduces"] * 4
    assert verdicts(shares, [one._replace(hfu=0.1) for one in planted], tmp_path / "less") == ["differs"] * 4


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("days saved for GPT-100B", [384]),
        ("days saved for all", [48, 96, 192, 384]),
        ("months saved for GPT-12B to GPT-50B", [48, 96, 192]),
    ],
)
def test_days_saved_follow_from_both_sides_rates(name: str, devices: list[int], tmp_path: Path) -> None:
    of = claim("Fig. 9", name, "axonn-ipdps22")
    # a ratio of 0.76 saves 34.8 days, 0.6 saves 57.9
    as_printed = weak_on_summit(devices, ratio=0.76) if "months" in name else weak_on_summit(devices)
    assert verdicts(of, as_printed, tmp_path / "as printed") == ["reproduces"]
    assert verdicts(of, weak_on_summit(devices, ratio=0.6), tmp_path / "more") == [
        "reproduces" if "months" in name else "better"
    ]
    assert verdicts(of, weak_on_summit(devices, ratio=1.1), tmp_path / "slower") == ["differs"]
    assert verdicts(of, weak_on_summit(devices, dtype="fp32"), tmp_path / "other format") == []
    assert verdicts(of, weak_on_summit(devices, sequences=4096), tmp_path / "other batch") == []
    one_missing = verdicts(of, as_printed[1:], tmp_path / "one missing")
    assert one_missing == (["can't tell"] if devices[1:] else [])


@pytest.mark.parametrize(("other", "told"), [({"dtype": "fp32"}, "fp32"), ({"sequences": 4096}, "4,096 sequences")])
def test_contests_of_another_batch_or_format_are_left_out_and_told(
    other: dict[str, object], told: str, tmp_path: Path
) -> None:
    of = claim("Fig. 9", "days saved for GPT-100B", "axonn-ipdps22")
    wrong = weak_on_summit([384], **other)
    alone = judged(of, wrong, tmp_path / "alone")
    both = judged(of, [*weak_on_summit([384]), *wrong], tmp_path / "both")
    for one in (alone, both):
        assert one.why.startswith("3 jobs")
        assert one.why.endswith(f": {told}")
    assert [one.measured for one in (alone, both)] == [False, True]
    assert judged(of, weak_on_summit([384]), tmp_path / "own").why == ""


def test_days_of_all_points_are_not_those_of_strong_scaling(tmp_path: Path) -> None:
    """Planted: GPT-12B on more devices than weak scaling has it on, which saves nothing."""
    of = claim("Fig. 9", "days saved for all", "axonn-ipdps22")
    strong = [ON_SUMMIT._replace(model="gpt-12b-adjusted", ranks=each, ratio=1.0) for each in (96, 192, 384)]
    strong = [one._replace(series="axonn-ipdps22-strong") for one in strong]
    assert verdicts(of, strong, tmp_path / "strong alone") == []
    assert verdicts(of, [*weak_on_summit(), *strong], tmp_path / "both") == ["reproduces"]
    gain = claim("Fig. 9", "time saved", "axonn-ipdps22")
    assert verdicts(gain, strong, tmp_path / "gain, strong alone") == []
    assert verdicts(gain, [*weak_on_summit(ratio=0.8), *strong], tmp_path / "gain, both") == ["reproduces"]


def test_rivals_of_a_machine_that_is_gone_are_judged_elsewhere_by_sign(tmp_path: Path) -> None:
    speed = claim("Fig. 9", "speed of GPT-100B", "axonn-ipdps22")
    found = judged(speed, [DEEPSPEED._replace(model="gpt-node", ranks=4, system="vcluster", dtype="fp32")], tmp_path)
    assert [(one.machine, one.judgement.verdict, one.judgement.by_sign) for one in found.findings] == [
        ("vcluster", "reproduces", True),
        ("", "machine retired", True),
    ]


def test_a_rival_that_no_other_machine_ran_leaves_who_is_fastest_open(tmp_path: Path) -> None:
    """Planted: a contest with one of two rivals, by which the whole claim reproduced."""
    fastest = claim("Fig. 11", "fastest", "axonn-ipdps22")
    both = [one._replace(model="gpt-node", ranks=4, system="vcluster", dtype="fp32") for one in (DEEPSPEED, MEGATRON)]
    assert judged(fastest, both, tmp_path / "both").overall[:3] == ("reproduces", 2, 2)
    assert judged(fastest, both[:1], tmp_path / "one").overall[:3] == ("can't tell", 1, 2)
    lost = judged(fastest, [both[0]._replace(ratio=1.2)], tmp_path / "lost")
    assert lost.overall[:3] == ("differs", 1, 2)


def test_claims_that_were_not_run_are_named_where_others_of_their_figure_were(tmp_path: Path) -> None:
    (figure,) = (one for one in figures("par4d") if one.where == "Fig. 9")
    save_contests([MEGATRON.result(0)], tmp_path)
    (whole,) = judge_figures(of_loaded(load([tmp_path])), [figure])
    open_ones = [part.claim.name for part in whole.parts if not part.measured and not part.why]
    assert open_ones
    assert len(open_ones) < len(whole.parts)
    assert all(name in waits(whole) for name in open_ones)
    assert "over Megatron-LM on Perlmutter" not in waits(whole)
    (nothing,) = judge_figures(of_loaded(load([])), [figure])
    assert not any(name in waits(nothing) for name in open_ones)


def test_numbers_of_a_machine_that_is_gone_leave_no_figure_open(tmp_path: Path) -> None:
    """Who is ahead there is told by another machine; that it could be, where nothing of it ran, leaves it open."""
    small = {"model": "gpt-node", "ranks": 4, "system": "vcluster", "dtype": "fp32"}
    planted = [MEGATRON._replace(**small), DEEPSPEED._replace(**small)]
    save_contests([one.result(job) for job, one in enumerate(planted)], tmp_path)
    (figure,) = (one for one in figures("axonn-ipdps22") if one.where == "Fig. 9")
    (whole,) = judge_figures(of_loaded(load([tmp_path])), [figure])
    assert whole.overall.verdict == "reproduces"
    assert whole.overall.obstacles == (GONE,)
    assert whole.overall.judged + whole.overall.left_out == whole.overall.targets
    assert waits(whole) == GONE
    assert waits(whole, whole.overall.obstacles) == "", "said already"
    stages = next(one for one in figures("axonn-ipdps22") if one.where == "Fig. 5").claims[:1]
    (half,) = judge_figures(of_loaded(load([tmp_path])), [figure.model_copy(update={"claims": figure.claims + stages})])
    assert half.overall.verdict == "can't tell"


def test_an_adjusted_network_stands_for_the_printed_one() -> None:
    assert plain("gpt-80b-adjusted") == plain("GPT-80B") == "80b"
    assert plain("gpt-40b-adjusted") != plain("gpt-80b")


OVER_MEGATRON = claim("Fig. 11", "over Megatron-LM on Perlmutter")
"""25 to 45 % of the time saved from GPT-5B on 64 to GPT-80B on 1024."""
OF_SIZES = [
    Planted("megatron-core", ratio, model, ranks)
    for model, ranks, ratio in [
        ("gpt-5b", 64, 0.7),
        ("gpt-10b", 128, 0.68),
        ("gpt-20b", 256, 0.65),
        ("gpt-40b-adjusted", 512, 0.62),
        ("gpt-80b-adjusted", 1024, 0.6),
    ]
]


def why(of: Claim, planted: Sequence[Planted], folder: Path) -> list[tuple[str, str]]:
    """Return verdicts and reasons on what was measured."""
    found = judged(of, planted, folder)
    return [(one.judgement.verdict, one.judgement.why) for one in found.findings if one.sample]


def test_a_range_of_sizes_takes_all_of_its_points(tmp_path: Path) -> None:
    """Planted: one point alone, which lies in the range; one point with a single job; another network of strong
    scaling on 512, which is none of the points; and no point at all.
    """
    assert why(OVER_MEGATRON, OF_SIZES, tmp_path / "all") == [("reproduces", "")]
    ((verdict, reason),) = why(OVER_MEGATRON, OF_SIZES[:1], tmp_path / "one")
    assert verdict == "can't tell"
    assert reason.startswith("1 of 5 points")
    single = [*OF_SIZES[:4], OF_SIZES[4]._replace(jobs=1)]
    ((verdict, reason),) = why(OVER_MEGATRON, single, tmp_path / "single")
    assert verdict == "can't tell"
    assert reason.startswith("4 of 5 points")
    strong = MEGATRON._replace(ranks=512, ratio=0.3, series="par4d-strong")
    assert why(OVER_MEGATRON, [*OF_SIZES, strong], tmp_path / "strong") == [("reproduces", "")]
    assert why(OVER_MEGATRON, [strong], tmp_path / "none") == []


def test_one_size_outside_of_the_range_differs_or_leaves_it_open(tmp_path: Path) -> None:
    lost = [one._replace(ratio=0.95) for one in OF_SIZES]
    assert why(OVER_MEGATRON, lost, tmp_path / "all") == [("differs", "")]
    ((verdict, reason),) = why(OVER_MEGATRON, [*OF_SIZES[:4], lost[4]], tmp_path / "last")
    assert (verdict, "points" in reason) == ("can't tell", False)


@pytest.mark.parametrize("system", ["perlmutter", "frontier"])
def test_up_to_five_times_is_of_both_sizes(system: str, tmp_path: Path) -> None:
    """Planted: the smaller one alone, whose three times would make the claim differ."""
    of = claim("Fig. 12", f"over ZeRO-3 on {system.title()}")
    small = ZERO._replace(model="unet-2b", ranks=512, ratio=1 / 3, hfu=0.1, system=system, series="unet")
    large = small._replace(model="unet-4b", ranks=1024, ratio=1 / 5)
    ((verdict, reason),) = why(of, [small], tmp_path / "one")
    assert verdict == "can't tell"
    assert reason.startswith("1 of 2 points")
    assert why(of, [small, large], tmp_path / "both") == [("reproduces", "")]


def test_every_range_of_sizes_has_its_points() -> None:
    ranges = {
        (of.where, of.name): points_of(of, number)
        for figure in figures()
        for of in figure.claims
        if any(redo.suite == "baselines" for redo in of.redo)
        for number in of.numbers
        if isinstance(number.devices, str)
    }
    assert len(ranges) >= 7
    assert {name: len(points) for name, points in ranges.items() if len(points) < 2} == {}
    assert [one.model for one in ranges["Fig. 11", "over ZeRO-3 on Perlmutter"]] == ["GPT-10B", "GPT-20B", "GPT-40B"]


def test_elsewhere_one_contest_answers_for_a_range(tmp_path: Path) -> None:
    found = judged(OVER_MEGATRON, [MEGATRON._replace(model="gpt-pair", ranks=2, system="local")], tmp_path)
    assert [(one.machine, one.judgement.verdict) for one in found.findings] == [("local", "reproduces")]


def test_of_several_layouts_of_a_peer_those_with_enough_jobs_go_first(tmp_path: Path) -> None:
    """Planted: one job in which the peer had luck on another layout hid the one that three jobs measured."""
    of = claim("Fig. 9", "over Megatron-LM on Perlmutter")
    lucky = MEGATRON._replace(ratio=0.95, jobs=1, grid="2x1x512x1")
    assert why(of, [MEGATRON, lucky], tmp_path) == [("reproduces", "")]


@pytest.mark.parametrize(("model", "expected"), [("gpt-24b-adjusted", []), ("gpt-12b-adjusted", ["differs"])])
def test_fastest_in_strong_scaling_is_of_the_papers_network_on_as_many_devices(
    model: str, expected: list[str], tmp_path: Path
) -> None:
    """Planted: another network on 96 GPUs, and the paper's that loses there."""
    of_summit = {"system": "summit", "series": "axonn-ipdps22-strong", "dtype": "fp32"}
    lost = MEGATRON._replace(model=model, ranks=96, ratio=1.2, **of_summit)
    assert verdicts(claim("Fig. 11", "fastest", "axonn-ipdps22"), [lost], tmp_path) == expected


SIZES = {"1 to 50 MB", "GPUs that are not adjacent"}
"""Places of comparisons that are sizes of messages, or links."""


def test_every_place_of_a_comparison_is_read_as_a_model_or_devices() -> None:
    """Places of claims that nothing here judges yet may be anything else."""
    every = [(claim.status, one) for figure in figures() for claim in figure.claims for one in claim.targets]
    places = {one.comparison.at: (place_of(one), status) for status, one in every if one.comparison}
    known = {plain(name) for name in published()}
    for at in places.keys() - {"", *COLLECTIVES, *SIZES}:
        place, status = places[at]
        assert status or (plain(place.model) in known if place.model else place.devices), at
    assert places["4 GPUs"][0] == Place(devices=(4, 4))
    assert places["12 GPUs of two nodes"][0] == Place(devices=(12, 12))
    assert places["512 to 1024 GCDs"][0] == Place(devices=(512, 1024))
    assert places["U-Net 4B on 1024"][0] == Place("U-Net 4B", (1024, 1024))
