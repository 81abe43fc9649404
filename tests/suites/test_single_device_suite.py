"""The suite of one device: what it asks the engine for on each system, what it keeps, and why it fails."""

import json
from pathlib import Path

import pytest
from running import figures, option, options, reframe, short

import systems
from reports.read.load import load

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
    done = reframe(tmp_path, "-c", "suites/single_device.py", "--system", system, PAR4D_ACCOUNT="abc123")
    assert done.code == 0, done.out
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
    assert "No model is called 'gpt-6b'" in done.out


@pytest.mark.slow
def test_a_run_keeps_the_contest_with_what_both_sides_do_and_hold(tmp_path: Path) -> None:
    done = reframe(tmp_path, *ONE, *SHORT, root=short(tmp_path / "copy", peaks=["fp32"]))
    assert done.code == 0, done.out
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


@pytest.mark.slow
def test_a_contest_between_sides_that_differ_fails_with_the_engines_own_reason(tmp_path: Path) -> None:
    copy = short(tmp_path, peaks=["fp32"])
    file = copy / "engine" / "peers" / "comparison.py"
    file.write_text(file.read_text().replace('"fp32": Tolerance(1e-5, 1e-4)', '"fp32": Tolerance(-1.0, -1.0)'))
    done = reframe(tmp_path / "a", *ONE, *SHORT, root=copy)
    assert done.code == 1
    assert "the run failed: The engine and plain don't do the same: in step 0 the engine's loss was" in done.out


def test_a_run_without_any_contest_fails_and_says_why_there_is_none(tmp_path: Path) -> None:
    copy = short(tmp_path, peaks=["fp32"])
    file = copy / "engine" / "peers" / "transformers_networks.py"
    file.write_text(file.read_text().replace("import transformers", "import no_such_package"))
    done = reframe(tmp_path / "a", *ONE, *SHORT, "-S", "peers=transformers", root=copy)
    assert done.code == 1
    assert "no contest could be held: transformers: transformers is not installed here: pip install" in done.out
    (found,) = load([tmp_path / "a" / "results"]).contests
    assert [asked.peer for asked in found.result.contests] == ["transformers"]
    assert json.loads(found.result.to_json())["comparisons"] == []
