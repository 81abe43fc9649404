"""Contests with peers as tests: what is run, what is skipped, what is kept, and why one fails."""

from pathlib import Path

import pytest
from reframe.core.exceptions import SanityError
from running import figures, option, project, reframe

from reports.read.load import load
from suites.base.contests import check_one_comparison

LOCAL = ["-c", "suites/peers.py", "--system", "local", "-S", "model=gpt-test"]
LOCAL += ["-S", "rounds=1", "-S", "steps_per_round=1"]


def test_on_accelerators_the_device_is_the_systems_and_the_number_format_the_series(tmp_path: Path) -> None:
    words = ["-c", "suites/peers.py", "--system", "perlmutter", "-n", "peer=hsdp.*1x1x2x2"]
    done = reframe(tmp_path, *words, PAR4D_ACCOUNT="abc123")
    assert done.code == 0, done.out
    (script,) = [file.read_text() for file in tmp_path.glob("stage/**/rfm_job.sh")]
    for name, value in {"--device": "cuda", "--precision": "bf16", "--grid": "1x1x2x2", "--model": "gpt-node"}.items():
        assert option(script, name) == value
    for label in ("study=peers", "system=perlmutter", "partition=gpu", "series=node-of-4"):
        assert f"--label {label}" in script


def test_what_a_peer_cannot_train_as_the_engine_does_is_skipped_and_an_unknown_network_refused(tmp_path: Path) -> None:
    words = ["-c", "suites/peers.py", "--system", "perlmutter", "-n", "peer=tensor-parallel%"]
    tied = reframe(tmp_path / "tied", *words, "-S", "model=llama-3.2-1b", PAR4D_ACCOUNT="abc123")
    assert tied.code == 1, "nothing was compared"
    assert "tensor-parallel makes two tables of a tied one" in tied.out
    assert "tensor-parallel is no match for grid 1x1x2x2" in tied.out
    assert not list(tied.folder.glob("stage/**/rfm_job.sh"))
    unknown = reframe(tmp_path / "unknown", *words, "-S", "model=gpt-6b", PAR4D_ACCOUNT="abc123")
    assert unknown.code == 1
    assert "refused: " in unknown.out
    assert "gpt-6b" in unknown.out


@pytest.mark.slow
def test_reframes_own_report_has_the_whole_contest(tmp_path: Path) -> None:
    done = reframe(tmp_path, *LOCAL, "-n", "peer=ddp%")
    assert done.code == 0, done.out
    (case,) = [case for case in done.cases() if case["result"] == "pass" and case["record"]]
    (contest,) = load([tmp_path / "results"]).contests
    (comparison,) = contest.result.comparisons
    assert contest.result.labels == {
        "study": "peers",
        "system": "local",
        "partition": "cpu",
        "series": "local with gpt-test",
    }
    assert (contest.result.device, contest.result.dtype) == ("cpu", "fp32")
    assert comparison.paired is not None
    measured = figures(case)
    assert measured["ratio"] == pytest.approx(comparison.ratio)
    assert measured["paired_ratio"] == pytest.approx(comparison.paired.ratio)
    assert set(measured) == {"ratio", "paired_ratio", "engine_step", "peer_step"}, "one round has no interval"


@pytest.mark.slow
def test_a_contest_that_fails_says_the_engines_own_reason_and_keeps_it(tmp_path: Path) -> None:
    copy = project(tmp_path)
    file = copy / "engine" / "peers" / "comparison.py"
    file.write_text(file.read_text().replace('"fp32": Tolerance(1e-5, 1e-4)', '"fp32": Tolerance(-1.0, -1.0)'))
    done = reframe(tmp_path / "a", *LOCAL, "-n", "peer=ddp%", root=copy)
    assert done.code == 1
    (contest,) = load([tmp_path / "a" / "results"]).contests
    assert contest.result.status == "failed"
    assert contest.result.reason is not None
    assert contest.result.reason.startswith("The engine and ddp don't do the same: in step 0 the engine's loss was")
    assert f"the run failed: {contest.result.reason}" in done.out


def test_a_contest_that_was_not_held_for_want_of_anything_but_memory_is_undecided() -> None:
    unfit = {"comparisons": [], "contests": [{"missing": "ddp does not fit: needs 96.1 of 44.8 GB."}]}
    check_one_comparison(unfit)
    lacking = {"comparisons": [], "contests": [{"missing": "litgpt has no network like it."}]}
    with pytest.raises(SanityError, match="undecided: the contest was skipped, as litgpt has no network"):
        check_one_comparison(lacking)
    with pytest.raises(SanityError, match="has 0 contests instead of one"):
        check_one_comparison({"comparisons": [], "contests": [{"missing": None}]})


def test_a_contest_that_never_began_says_the_engines_last_words(tmp_path: Path) -> None:
    done = reframe(tmp_path, *LOCAL, "-n", "peer=ddp%", "-S", "rounds=0")
    assert done.code == 1
    assert "the engine wrote no result.json; its last words: --rounds is at least 1, but 0 was given." in done.out
