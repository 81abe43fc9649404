"""Contests with peers as tests, on a grid and on one device: what runs, is skipped, is kept, and why one fails."""

import json
import re
from pathlib import Path

import pytest
from reframe.core.exceptions import SanityError
from running import figures, option, options, project, reframe, short, succeed

import systems
from reports.read.load import load
from suites.base.contests import check_one_comparison

LOCAL = ["-c", "suites/peers.py", "--system", "local", "-S", "model=gpt-test"]
LOCAL += ["-S", "rounds=1", "-S", "steps_per_round=1"]


def test_on_accelerators_the_device_is_the_systems_and_the_number_format_the_series(tmp_path: Path) -> None:
    words = ["-c", "suites/peers.py", "--system", "perlmutter", "-n", "peer=hsdp.*1x1x2x2"]
    script = succeed(tmp_path, *words, PAR4D_ACCOUNT="abc123").script
    for name, value in {"--device": "cuda", "--precision": "bf16", "--grid": "1x1x2x2", "--model": "gpt-node"}.items():
        assert option(script, name) == value
    for label in ("study=peers", "system=perlmutter", "partition=gpu", "series=node-of-4"):
        assert f"--label {label}" in script


def test_what_a_peer_cannot_train_as_the_engine_does_is_skipped_and_an_unknown_network_refused(tmp_path: Path) -> None:
    words = ["-c", "suites/peers.py", "--system", "perlmutter", "-n", "peer=tensor-parallel%"]
    tied = reframe(tmp_path / "tied", *words, "-S", "model=llama-3.2-1b", PAR4D_ACCOUNT="abc123")
    assert tied.code == 1, "nothing was compared"
    assert "tied one" in tied.out
    assert "grid 1x1x2x2" in tied.out
    assert not list(tied.folder.glob("stage/**/rfm_job.sh"))
    unknown = reframe(tmp_path / "unknown", *words, "-S", "model=gpt-6b", PAR4D_ACCOUNT="abc123")
    assert unknown.code == 1
    assert "refused: " in unknown.out
    assert "gpt-6b" in unknown.out


@pytest.mark.slow
def test_reframes_own_report_has_the_whole_contest(tmp_path: Path) -> None:
    done = succeed(tmp_path, *LOCAL, "-n", "peer=ddp%")
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
    file = copy / "engine" / "training" / "equality.py"
    file.write_text(file.read_text().replace('"fp32": Tolerance(1e-5, 1e-4)', '"fp32": Tolerance(-1.0, -1.0)'))
    done = reframe(tmp_path / "a", *LOCAL, "-n", "peer=ddp%", root=copy)
    assert done.code == 1
    (contest,) = load([tmp_path / "a" / "results"]).contests
    assert contest.result.status == "failed"
    assert contest.result.reason is not None
    assert re.match(r"The engine.*\bddp .*step 0", contest.result.reason)
    assert f"the run failed: {contest.result.reason}" in done.out


def test_a_contest_that_was_not_held_for_want_of_anything_but_memory_is_undecided() -> None:
    unfit = {"comparisons": [], "contests": [{"missing": "ddp does not fit: needs 96.1 of 44.8 GB."}]}
    check_one_comparison(unfit)
    lacking = {"comparisons": [], "contests": [{"missing": "litgpt has no network like it."}]}
    with pytest.raises(SanityError, match=r"undecided: .*litgpt"):
        check_one_comparison(lacking)
    with pytest.raises(SanityError, match="0 contests"):
        check_one_comparison({"comparisons": [], "contests": [{"missing": None}]})


def test_a_contest_that_never_began_says_the_engines_last_words(tmp_path: Path) -> None:
    done = reframe(tmp_path, *LOCAL, "-n", "peer=ddp%", "-S", "rounds=0")
    assert done.code == 1
    assert re.search("no result.json; .*--rounds", done.out)


ONE = ["-c", "suites/single_device.py", "--system", "local", "-n", "gpt-test"]
SHORT = ["-S", "peers=plain", "-S", "jobs=1", "-S", "rounds=1", "-S", "steps_per_round=1"]


@pytest.mark.parametrize(
    ("system", "models", "peak"),
    [
        ("perlmutter", {"gpt3-1.3b", "llama-3.2-1b"}, "3.12e+14"),
        ("frontier", {"gpt3-1.3b", "llama-3.2-1b"}, "1.915e+14"),
        ("alps", {"gpt3-1.3b", "gpt3-2.7b", "llama-3.2-1b"}, "9.89e+14"),
    ],
)
def test_one_device_of_a_node_trains_networks_of_both_families_against_every_peer(
    system: str, models: set[str], peak: str, tmp_path: Path
) -> None:
    done = succeed(tmp_path, "-c", "suites/single_device.py", "--system", system, PAR4D_ACCOUNT="abc123")
    scripts = done.jobs("bench")
    assert {option(script, "--model") for script in scripts} == models
    for script in scripts:
        assert options(script, "--peer") == ["plain", "compile", "transformers"]
        sequence = "1024" if system == "perlmutter" else "2048"
        expected = {"--device": "cuda", "--precision": "bf16", "--seq": sequence, "--peak-flops": peak, "--ntasks": "1"}
        assert {name: option(script, name) for name in expected} == expected
        assert option(script, "--device-memory") == f"{systems.load(system).device.memory_bytes.value:.0f}"  # type: ignore[union-attr]
        assert "--label study=single_device" in script


def test_an_unknown_network_is_refused_before_any_job(tmp_path: Path) -> None:
    done = reframe(tmp_path, *ONE, "-S", "model=gpt-6b")
    assert done.code == 1
    assert "refused: " in done.out
    assert "'gpt-6b'" in done.out


@pytest.mark.slow
def test_a_run_keeps_the_contest_with_what_both_sides_do_and_hold(tmp_path: Path) -> None:
    done = succeed(tmp_path, *ONE, *SHORT, root=short(tmp_path / "copy", peaks=["fp32"]))
    (case,) = [case for case in done.cases() if case["result"] == "pass" and case["record"]]
    (found,) = load([tmp_path / "results"]).contests
    (contest,) = found.result.comparisons
    assert found.result.labels["series"] == "local"
    assert found.result.work is not None
    measured = figures(case)
    assert measured["engine_tokens_per_s"] == pytest.approx(found.result.work.tokens / contest.ours_median_s)
    assert measured["plain_tokens_per_s"] == pytest.approx(found.result.work.tokens / contest.peer_median_s)
    assert contest.paired is not None
    assert measured["plain_paired_ratio"] == pytest.approx(contest.paired.ratio)
    assert measured["engine_of_empirical"] > 0
    assert "engine_mfu" not in measured
    assert measured["plain_memory"] == contest.jobs[0].peer.peak_bytes


def test_a_run_without_any_contest_fails_and_says_why_there_is_none(tmp_path: Path) -> None:
    copy = short(tmp_path, peaks=["fp32"])
    file = copy / "engine" / "peers" / "known" / "hugging_face.py"
    file.write_text(file.read_text().replace("import transformers", "import no_such_package"))
    done = reframe(tmp_path / "a", *ONE, *SHORT, "-S", "peers=transformers", root=copy)
    assert done.code == 1
    assert re.search("transformers: .*pip install", done.out)
    (found,) = load([tmp_path / "a" / "results"]).contests
    assert [asked.peer for asked in found.result.contests] == ["transformers"]
    assert json.loads(found.result.to_json())["comparisons"] == []
