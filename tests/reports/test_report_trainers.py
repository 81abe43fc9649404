"""Trainers' own tables: predicted steps on the model's page, rates on that of baselines, and their verdicts."""

from pathlib import Path

import pandas as pd
import pytest
from reading import built
from sample_contests import contests, save_contests
from sample_predictions import validation
from test_report_planning import words

from engine.published import UNITS, Number, select
from engine.published.claims import Claim, figures
from engine.result.schema.peers import PeerContest, PeersResult, Work
from engine.validation.trainer_rows import TrainerRow
from reports.figures.reproduction import measured_text
from reports.figures.trainers import rates
from reports.frames.contests import points
from reports.frames.frame import of_loaded
from reports.frames.reproduction import Evidence, Finding, judge_claim
from reports.read.load import load
from reports.text import significant

STEP_S = 0.4
TOKENS = 16 * 2048
(PUBLISHED,) = select(paper="llm-foundry", metric="tokens_per_s", model="MPT-13B", devices=8, sequence=2048)
((CLAIM, *_),) = (figure.claims for figure in figures("llm-foundry") if figure.where.startswith("section H100"))


def row(off: float, **other: object) -> TrainerRow:
    known = {
        "source": "llm-foundry section H100-80GB-BF16",
        "system": "h100",
        "model": "mpt-13b",
        "devices": 8,
        "sequence": 2048,
        "sequences": 16,
        "micro_batch": 2,
        "recomputed": "none",
        "measured_s": 0.855,
        "predicted_s": 0.855 * (1 + off),
        "low_s": 0.75,
        "high_s": 0.95,
        "by_sheets_s": 0.5,
        "use": "judged",
    }
    return TrainerRow.model_validate(known | other)


def contest(by: float, job: int = 0, peer: str = "fsdp2-reshard", **case: object) -> PeersResult:
    """Contest of MPT-13B on eight H100, whose peer reaches so many times the published rate. case: other options."""
    return contest_of(PUBLISHED, by, job, peer, "h100", **case)


def contest_of(
    number: Number, by: float, job: int, peer: str, system: str, without: str = "", **case: object
) -> PeersResult:
    """Contest on eight devices that ran as a row did. without: module that the peer lacked."""
    assert number.sequence
    assert number.batch_tokens
    tokens, model = number.batch_tokens, number.model.lower()
    step_s = tokens / (by * number.si)
    found = contests(
        (peer,),
        ratios={peer: 0.9},
        job=job,
        system=system,
        device="cuda",
        dtype="bf16",
        model=model,
        step_s=step_s,
        spread=1e-5,
        jobs=1,
    )
    as_the_row = {
        "model": {"name": model, "sequence": number.sequence},
        "sequences": tokens // number.sequence,
        "micro_batch": number.micro_batch,
        "peer_micro_batch": number.micro_batch,
        "reduce_dtype": "fp32",
        "checkpoint_activations": number.recomputed != "none",
    }
    jobs = tuple(
        PeerContest.of(one.ours, one.peer.model_copy(update={"without": {without: "enable"} if without else {}}))
        for one in found.comparisons[0].jobs
    )
    on_eight = {"ranks": 8, "grid": "1x1x8x1"}
    return found.model_copy(
        update={
            "labels": found.labels | {"study": "baselines"},
            "case": found.case | as_the_row | case,
            "work": Work(tokens=tokens, model_flops=10**15, hardware_flops=10**15),
            "comparisons": (found.comparisons[0].model_copy(update=on_eight | {"jobs": jobs}),),
            "contests": (found.contests[0].model_copy(update=on_eight),),
        }
    )


def test_the_page_says_how_far_off_the_judged_rows_are_and_names_a_planted_wrong_one(tmp_path: Path) -> None:
    rows = (*(row(0.01 * place) for place in range(1, 8)), row(0.5, use="fitted"), row(0.9, low_s=1.0, high_s=2.0))
    html = (built(tmp_path, [], predictions=[validation(trainers=rows)]) / "model_validation.html").read_text()
    said = words(html)
    assert "over 8 rows that nothing was fitted to the median absolute error is 4.5 %" in said
    assert "At most 15.0 %: undecided. 7 of 8" in said
    assert "+90.0 %" in html
    for absent in (validation(), validation(trainers=(row(0.1, use="fitted"),))):
        html = (
            built(tmp_path / str(len(absent.trainers)), [], predictions=[absent]) / "model_validation.html"
        ).read_text()
        assert "nothing was fitted to the median" not in html


def test_published_rates_stand_beside_what_was_measured_and_predicted(tmp_path: Path) -> None:
    """Planted: a peer that none of these trainers is, and that is faster."""
    save_contests([contest(0.9), contest(0.9, job=1), contest(1.5, peer="ddp")], tmp_path)
    frames = of_loaded(load([tmp_path]))
    table = rates(points(frames.contests), validation(trainers=(row(0.0),))).data
    assert len(table) == 52 + 8 + 6
    mine = (table["model"] == "mpt-13b") & (table["ranks"] == 8) & (table["length"] == 2048)
    (found,) = table[mine].to_dict("records")
    assert found["tokens_per_s_published"] == 38336
    assert found["predicted_tokens_per_s"] == pytest.approx(TOKENS / 0.855)
    assert found["peer_tokens_per_s"] == pytest.approx(0.9 * 38336, rel=0.02)
    assert found["ours_tokens_per_s"] == pytest.approx(38336, rel=0.02)
    assert table[~mine]["peer_tokens_per_s"].isna().all()
    assert rates(pd.DataFrame(), None).data["predicted_tokens_per_s"].isna().all()
    fp8 = table[table["lacking"].str.contains("fp8")]
    assert (len(fp8), fp8["predicted_tokens_per_s"].notna().sum()) == (2, 0)


@pytest.mark.parametrize(("by", "expected"), [(0.92, "reproduces"), (0.86, "differs"), (1.2, "better")])
def test_a_measured_rate_is_judged_by_the_published_one(by: float, expected: str, tmp_path: Path) -> None:
    save_contests([contest(by, job) for job in range(3)], tmp_path)
    judged = judge_claim(Evidence(of_loaded(load([tmp_path]))), CLAIM)
    (found,) = (one for one in judged.findings if one.sample)
    assert (found.judgement.verdict, found.machine) == (expected, "h100")
    assert found.target.readings == (PUBLISHED,)


OTHERWISE = {
    "sums in bf16": {"reduce_dtype": "bf16"},
    "another micro-batch": {"peer_micro_batch": 1},
    "the same tokens in shorter sequences": {"model": {"name": "mpt-13b", "sequence": 512}, "sequences": 64},
    "another batch": {"sequences": 32},
    "recomputation": {"checkpoint_activations": True},
}


@pytest.mark.parametrize("otherwise", OTHERWISE.values(), ids=OTHERWISE)
def test_a_contest_that_ran_otherwise_is_not_the_row(otherwise: dict[str, object], tmp_path: Path) -> None:
    """Planted: each option that the row tells, in contests that reach its rate; beside them one that ran as it did."""
    planted = [contest(1.0, job, **otherwise) for job in range(3)]
    save_contests(planted, tmp_path / "planted")
    frames = of_loaded(load([tmp_path / "planted"]))
    assert not [one for one in judge_claim(Evidence(frames), CLAIM).findings if one.sample]
    assert rates(points(frames.contests), None).data["peer_tokens_per_s"].isna().all()
    save_contests([*planted, *(contest(0.5, 10 + job) for job in range(3))], tmp_path / "both")
    judged = judge_claim(Evidence(of_loaded(load([tmp_path / "both"]))), CLAIM)
    (found,) = (one for one in judged.findings if one.sample)
    assert found.sample is not None
    assert (found.judgement.verdict, found.sample.jobs) == ("differs", 3)


TITAN = {claim.name: claim for claim in figures("torchtitan")[0].claims}
BY_FSDP2, COMPILED, FP8 = TITAN["bf16"], TITAN["bf16, torch.compile"], TITAN["fp8, torch.compile"]


def of_titan(
    claim: Claim, by: float, peer: str, folder: Path, system: str = "h100-96gb", **other: str
) -> list[Finding]:
    """Judge a claim by three jobs whose peer reaches so many times its rate; returns what was measured."""
    (number,) = claim.numbers
    save_contests([contest_of(number, by, job, peer, system, **other) for job in range(3)], folder)
    return [one for one in judge_claim(Evidence(of_loaded(load([folder]))), claim).findings if one.sample]


@pytest.mark.parametrize(("by", "expected"), [(0.7, "can't tell"), (1.0, "can't tell"), (1.3, "better")])
def test_what_computes_all_again_is_the_lower_end_of_a_selective_row(by: float, expected: str, tmp_path: Path) -> None:
    (found,) = of_titan(BY_FSDP2, by, "fsdp2-reshard", tmp_path / "plain")
    assert (found.judgement.verdict, found.machine) == (expected, "h100-96gb")
    assert found.sample is not None
    low = found.sample.interval.low / UNITS[BY_FSDP2.numbers[0].unit]
    assert f"({significant(low)} or more)" in measured_text(BY_FSDP2, found)
    (compiled,) = of_titan(COMPILED, by, "torchtitan", tmp_path / "compiled")
    assert compiled.judgement.verdict == expected


def test_rows_of_another_card_compiler_or_format_are_none_of_torchtitans(tmp_path: Path) -> None:
    """Planted: cards of 80 GB, the peer of the other row, a peer that had nothing to compile with."""
    assert of_titan(BY_FSDP2, 1.3, "fsdp2-reshard", tmp_path / "card", system="h100") == []
    assert of_titan(BY_FSDP2, 1.3, "torchtitan", tmp_path / "peer") == []
    assert of_titan(COMPILED, 1.3, "fsdp2-reshard", tmp_path / "eager") == []
    assert of_titan(COMPILED, 1.3, "torchtitan", tmp_path / "without", without="triton") == []
    assert of_titan(FP8, 1.3, "torchtitan", tmp_path / "fp8") == []
    judged = judge_claim(Evidence(of_loaded(load([tmp_path / "card"]))), BY_FSDP2)
    assert (judged.overall.verdict, judged.why) == ("not run here", BY_FSDP2.status)
