"""Verdicts on loss curves: beside whom, of which network, over how many steps, and within the suite's own limit."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sample_contests import contests, save_contests
from sample_results import save, train

from engine.grid import Grid
from engine.published.claims import Claim, figures
from engine.result.judges.curves import TOLERANCES
from engine.result.schema import Result
from engine.result.schema.peers import PeerContest, PeersResult
from reports.frames.frame import of_loaded
from reports.frames.reproduction import Evidence, Finding, judge_claim
from reports.read.load import load

SMALL = {"model": "gpt-test", "system": "local", "partition": "cpu", "sequences": 16, "time_s": 0.05}
ON_PERLMUTTER = {"model": "gpt2-125m", "system": "perlmutter", "partition": "gpu", "sequences": 16, "time_s": 1.0}


def claim(paper: str, where: str, name: str = "") -> Claim:
    (figure,) = (one for one in figures(paper) if one.where == where)
    (found,) = (one for one in figure.claims if one.name == name)
    return found


GPT, UNET = (claim("par4d", "Fig. 8", name) for name in ("GPT", "U-Net"))


def curves(
    apart: Sequence[float] = (0.0, 0.0), steps: int = 60, *, long: str = "", grid: str = "2x2x2x2", **other: Any
) -> list[Result]:
    """A reference and jobs whose losses differ from it by these parts. long: name of a long course."""
    known: dict[str, Any] = {**SMALL, "dtype": "bf16" if long else "fp32", "study": "validation", **other}
    losses = tuple(math.log(512) - 0.9 * math.log1p(step / 4) for step in range(steps))
    reference, mine = (f"long-{long}-data", f"long-{long}") if long else ("serial", "4d")
    ranks = Grid.parse(grid).size
    beside = {"grid": f"1x1x1x{ranks}", "ranks": ranks} if long else {"grid": "1x1x1x1", "ranks": 1}
    first = train(losses=losses, variant=reference, job=90, **(known | beside))
    known |= {"variant": mine, "ranks": ranks, "grid": f"1x1x1x{ranks}"}
    others = [
        train(losses=tuple((1 + part) * loss for loss in losses), job=job, **known) for job, part in enumerate(apart)
    ]
    return [first, *(one.model_copy(update={"grid": grid}) for one in others)]


def beside_peer(peer: str = "megatron-core", apart: float = 0.0, **known: Any) -> PeersResult:
    """Contests of the study of validation, whose losses differ by that part."""
    found = contests((peer,), ratios={peer: 1.0}, **{"model": "gpt-test", **known})
    (contest,) = found.comparisons
    jobs = [_apart(job, apart) for job in contest.jobs]
    labels = found.labels | {"study": "validation"}
    return found.model_copy(
        update={"labels": labels, "comparisons": (contest.model_copy(update={"jobs": tuple(jobs)}),)}
    )


def _apart(job: PeerContest, apart: float) -> PeerContest:
    losses = tuple(loss * (1 + apart) for loss in job.ours.losses)
    return PeerContest.of(job.ours, job.peer.model_copy(update={"losses": losses}))


def told(of: Claim, folder: Path, runs: Sequence[Result] = (), beside: Sequence[PeersResult] = ()) -> list[Finding]:
    save(list(runs), folder)
    save_contests(beside, folder)
    return [one for one in judge_claim(Evidence(of_loaded(load([folder]))), of).findings if one.sample]


@pytest.mark.parametrize(
    ("apart", "expected"),
    [
        ((1e-7, 2e-7), "reproduces"),
        ((1e-7, 0.04), "can't tell"),
        ((2e-5, 2e-5), "can't tell"),
        ((0.2, 0.3), "differs"),
        ((1e-7,), "can't tell"),
    ],
)
def test_losses_are_judged_on_every_machine_by_the_suites_limit_too(
    apart: Sequence[float], expected: str, tmp_path: Path
) -> None:
    """Planted: one of two jobs 4 % off, which a ratio's tolerance lets pass, and both twice as far off as may be."""
    (found,) = told(GPT, tmp_path, curves(apart))
    assert (found.machine, found.judgement.verdict, found.judgement.by_sign) == ("local", expected, False)
    assert bool(found.judgement.why) == (expected == "can't tell")


def test_a_number_format_without_a_limit_reproduces_nothing(tmp_path: Path) -> None:
    assert "bf16" not in TOLERANCES
    (found,) = told(GPT, tmp_path, curves(dtype="bf16"))
    assert found.judgement.verdict == "can't tell"
    assert "bf16" in found.judgement.why


def test_the_network_and_the_steps_are_told(tmp_path: Path) -> None:
    (found,) = told(GPT, tmp_path, curves(steps=50))
    assert found.sample is not None
    for words in ("gpt-test", "2x2x2x2", "fp32", "50 steps", "serial", "not Megatron-LM"):
        assert words in found.sample.of


@pytest.mark.parametrize(
    "other", [{"model": "gpt-test"}, {"grid": "2x2x2x1"}, {"grid": "1x2x2x2p2"}], ids=["network", "devices", "stages"]
)
def test_at_home_only_the_papers_network_on_its_devices_counts(other: dict[str, Any], tmp_path: Path) -> None:
    assert told(GPT, tmp_path, curves(**(ON_PERLMUTTER | other))) == []


def test_at_home_as_many_steps_as_the_paper_trained_are_asked(tmp_path: Path) -> None:
    """Planted: 100 steps, which took the place of 14,000."""
    (found,) = told(GPT, tmp_path / "short", curves(steps=100, **ON_PERLMUTTER))
    assert (found.machine, found.judgement.verdict) == ("perlmutter", "can't tell")
    assert "100 of the paper's 14,000 steps" in found.judgement.why


def test_long_curves_go_first_at_home_and_a_broken_short_one_is_still_heard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("reports.frames.reproduction.curves._steps", lambda paper, model: 300)
    long = curves(steps=300, long="text", **ON_PERLMUTTER)
    (found,) = told(GPT, tmp_path / "both", [*curves(steps=100, **ON_PERLMUTTER), *long])
    assert (found.machine, found.judgement.verdict) == ("perlmutter", "reproduces")
    assert found.sample is not None
    assert "data-parallel" in found.sample.of
    off = curves((1e-3, 1e-3), steps=100, **ON_PERLMUTTER)
    (found,) = told(GPT, tmp_path / "off", [*off, *long])
    assert (found.judgement.verdict, "1.0e-03" in found.judgement.why) == ("can't tell", True)
    astray = curves((5e-3, 5e-3), steps=300, long="text", **ON_PERLMUTTER)
    (found,) = told(GPT, tmp_path / "astray", astray)
    assert found.judgement.verdict == "can't tell"


def test_the_trainer_that_the_paper_names_goes_first(tmp_path: Path) -> None:
    """Planted: a serial curve beside it that breaks its limit, and losses that are apart from the trainer's."""
    beside = [beside_peer(job=1)]
    (found,) = told(GPT, tmp_path / "peer", curves(), beside)
    assert found.judgement.verdict == "reproduces"
    assert found.sample is not None
    assert "3 steps beside Megatron-LM" in found.sample.of
    assert (found.sample.jobs, found.machine) == (3, "local")
    (found,) = told(GPT, tmp_path / "alone", [], beside)
    assert found.judgement.verdict == "reproduces"
    (found,) = told(GPT, tmp_path / "broken", curves((1e-3, 1e-3)), beside)
    assert found.judgement.verdict == "can't tell"
    (found,) = told(GPT, tmp_path / "apart", curves(), [beside_peer(job=1, apart=0.01)])
    assert found.judgement.verdict == "can't tell"
    (found,) = told(GPT, tmp_path / "far", curves(), [beside_peer(job=1, apart=0.1)])
    assert found.judgement.verdict == "differs"


def test_other_trainers_and_networks_of_another_sort_say_nothing(tmp_path: Path) -> None:
    beside = [beside_peer("ddp", job=1)]
    assert told(GPT, tmp_path / "gpt", [], beside) == []
    assert told(UNET, tmp_path / "unet", [], beside) == []
    (found,) = told(UNET, tmp_path / "images", [], [beside_peer("ddp", job=1, model="unet-test")])
    assert found.sample is not None
    assert "beside PyTorch DDP" in found.sample.of


def test_stages_are_a_claim_of_their_own(tmp_path: Path) -> None:
    staged = claim("axonn-ipdps22", "Fig. 10")
    assert told(staged, tmp_path / "other", curves()) == []
    (found,) = told(staged, tmp_path / "stages", curves(grid="1x1x1x2p2"))
    assert (found.machine, found.judgement.verdict) == ("local", "reproduces")
