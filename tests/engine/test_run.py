"""The command `engine train` as a user meets it: real processes, exit codes, one sentence, one result.json."""

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from engine_command import SMALL, train
from forked_python import forked_python
from test_clock_rate import frequency
from waiting import LONG_S

from engine.cli.main import main
from engine.grid import Grid
from engine.loading import cores
from engine.models.catalogue import lookup
from engine.result.schema import read


def test_four_ranks_write_one_result_with_everything_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAR4D_SYSFS", str(tmp_path))
    monkeypatch.setenv("LOADEDMODULES", "gcc/13:rocm/6.2")
    for core in cores():
        frequency(tmp_path, core, "2450000")
    out = tmp_path / "deep" / "result.json"
    options = ["--grid", "2x1x2x1", "--out", str(out), "--peak-flops", "1e12", "--label", "study=a"]
    codes, said = train(4, *SMALL, *options, "--iterations", "5", "--warmup", "2", "--checkpoint-activations")
    assert codes == [0] * 4, said
    result = read(out)
    assert result.status == "ok"
    assert (result.ranks, result.grid, result.labels) == (4, "2x1x2x1", {"study": "a"})
    assert [i.warmup for i in result.iterations] == [True, True, False, False, False]
    assert result.summary is not None
    counted = [i.time_s for i in result.iterations[2:]]
    assert result.summary.time_per_iteration_s == pytest.approx(sum(counted) / 3)
    assert result.summary.hfu == pytest.approx(result.summary.hardware_flops_per_s / 4e12)
    assert result.summary.mfu is not None
    assert result.summary.mfu < result.summary.hfu
    assert result.memory is not None
    assert len(result.memory.peak_bytes_per_rank) == 4
    calls = {(c.kind, c.axis): c.calls for c in result.collectives}
    # Two layers of four matmuls, and token table and head; cached, a layer is gathered once.
    assert calls["all_gather", "z"] == 10
    assert result.memory.cached_blocks == 2
    assert result.memory.cache_bytes == 2 * 12 * 64 * 64 * 4 / 2
    assert 0 < result.memory.prefetch_bytes < result.memory.cache_bytes
    where = result.breakdown
    assert where is not None
    assert where.compute_s > 0
    assert where.compute_s + where.collectives_s == pytest.approx(result.summary.time_per_iteration_s)
    assert where.collectives_s == pytest.approx(sum(axis.exposed_s for axis in where.axes))
    assert where.collectives_s == pytest.approx(sum(p.blocking_s + p.exposed_s for p in where.phases))
    assert where.compute_s == pytest.approx(sum(phase.compute_s for phase in where.phases))
    assert [phase.name for phase in where.phases] == ["forward", "backward", "reduce", "optimizer"]
    assert {axis.axis for axis in where.axes if axis.hidden_s > 0} >= {"z"}
    assert where.phases[1].blocking_s > 0
    assert {lane.lane for lane in where.lanes} == {"x", "z", "z gather"}
    assert where.hidden_s == pytest.approx(sum(phase.hidden_s for phase in where.phases))
    assert where.share_hidden == pytest.approx(where.hidden_s / (where.hidden_s + where.collectives_s))
    assert where.machine is not None
    assert (where.machine.ranks, where.machine.threads_per_rank) == (4, 1)
    assert where.machine.processor_s > 0
    (host,) = where.hosts
    assert (host.host, host.ranks) == (socket.gethostname(), 4)
    assert 0 < host.compute_s < result.summary.time_per_iteration_s
    assert result.provenance.modules == ("gcc/13", "rocm/6.2")
    assert result.provenance.clocks_hz == {host.host: 2.45e9}
    assert result.model is not None
    assert result.model.parameters == lookup("gpt-test").parameters
    assert result.provenance.launcher == "environment"
    assert "iteration 5/5" in said[0]
    assert said[1:] == [""] * 3, "only rank 0 reports progress"


def test_a_bare_python_is_one_rank_and_auto_finds_its_grid(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    out = tmp_path / "r.json"
    options = ["--iterations", "2", "--warmup", "1", "--overlap", "oar,oag", "--prefetch-depth", "7", "--out", str(out)]
    command = [str(forked_python()), "-m", "engine", "train", *SMALL, *options]
    subprocess.run(command, check=True, timeout=LONG_S, env=environment, capture_output=True)
    assert read(out).grid == "1x1x1x1"
    assert read(out).collectives == ()
    asked = read(out).config
    assert asked is not None
    assert asked["widened_by"] is None
    assert asked["reduce_dtype"] == {"z": "fp32", "data": "fp32"}
    assert (asked["overlap"], asked["prefetch_depth"], asked["reduce_window"]) == ("oar,oag", 7, 4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--grid", "2x1x1x1"], "Grid 2x1x1x1 has 2 ranks, but 1 was started: start 2, or use --grid auto."),
        (["--grid", "2x1"], "four positive numbers XxYxZxDATA"),
        (["--model", "gpt-tset"], "did you mean gpt-test"),
        (["--data", "nowhere"], "nowhere holds no prepared corpus"),
        (["--micro-batch", "3"], "use --micro-batch one of 1, 2, 4, 8"),
        (["--iterations", "2", "--warmup", "2"], "at least one iteration after its warm-up"),
        (["--save", "x"], "needs both --save DIR and --save-every N"),
        (["--hidden", "64"], "either --model NAME or --hidden"),
        (["--vocab", "0"], "vocabulary must be at least 1, but 0 was given"),
        (["--seq", "0"], "sequence must be at least 1, but 0 was given"),
        (["--architecture", "llama"], "gpt-test is a gpt: leave --architecture llama out."),
        (["--kv-heads", "2"], "A gpt has no such thing as --kv-heads: leave that out."),
        (["--cache-bytes", "inf"], "--cache-bytes is a number from 1 up, but inf was given."),
        (["--timeout", "1e30"], "--timeout is at most 31536000 seconds, but 1e+30 was given."),
        (["--meeting-timeout", "0"], "--meeting-timeout is a positive number, but 0.0 was given."),
        (["--label", "nothing"], "--label: "),
        (["--dropout", "1.5"], "probability from 0 to below 1"),
        (["--nonsense"], "Unknown option: --nonsense."),
        (["--overlap", "oar,org"], "'org' is among 'oar,org'"),
        (["--overlap", "cache=3"], "--overlap cache=3 keeps the weights of 3 blocks, but gpt-test has 2: use cache=2"),
        (["--checkpoint-every", "3"], "recomputes 3 blocks together, but gpt-test has 2: use 2 or fewer, or auto."),
        (
            ["--checkpoint-every", "0"],
            "--checkpoint-every is a number of blocks from 1 up, or auto, but '0' was given.",
        ),
        (["--bucket-bytes", "0"], "--bucket-bytes is a number from 1 up, but 0.0 was given."),
        (["--timeline", "."], "--timeline . is a folder: give the name of a file."),
        (["--clip", "-1"], "--clip is a number from 0 up, but -1.0"),
        (["--learning-rate", "0"], "--learning-rate is a positive number"),
        (["--timeout", "inf"], "--timeout is a positive number"),
        (["--reduce-dtype", "bf16"], "With --precision fp32 gradients reduce in fp32, but"),
        (["--device-memory", "1e6"], "0.00268 GB of it for weights, gradients and optimizer, but a device has"),
        (["--save", "/dev/null", "--save-every", "1"], "--save can't be written: /dev/null is not a folder"),
        (["--resume", "nowhere"], "There is no checkpoint in nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, options: list[str], said: str) -> None:
    out = tmp_path / "r.json"
    codes, errors = train(1, *SMALL, "--out", str(out), *options)
    assert codes == [2]
    assert said in errors[0]
    assert len(errors[0].strip().splitlines()) == 1
    assert not out.exists()


def test_a_loss_that_is_not_a_number_fails_and_names_the_step(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    codes, _ = train(1, *SMALL, "--learning-rate", "1e30", "--iterations", "8", "--out", str(out))
    result = read(out)
    assert codes == [1]
    assert result.status == "failed"
    assert result.reason is not None
    assert f"in step {len(result.iterations) + 1} " in result.reason
    assert "lower the learning rate" in result.reason


def test_a_device_that_is_not_there_is_told_by_the_result_too(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    out = tmp_path / "r.json"
    codes, said = train(1, *SMALL, "--device", "cuda", "--out", str(out))
    assert codes == [2]
    assert said[0] == f"{read(out).reason}\n"
    assert "no GPU is visible" in said[0]


def test_a_terminal_gets_one_line_that_renews_itself(tmp_path: Path) -> None:
    here, there = os.openpty()
    command = [str(forked_python()), "-m", "engine", "train", *SMALL, "--iterations", "3", "--warmup", "1"]
    done = subprocess.run([*command, "--out", str(tmp_path / "r.json")], stderr=there, timeout=LONG_S, check=True)
    assert done.returncode == 0
    os.close(there)
    shown = ""
    with suppress(OSError):  # at its end, for which a terminal has no other sign
        while some := os.read(here, 10000).decode():
            shown += some
    os.close(here)
    assert shown.count("\r\x1b[Kiteration") == 3
    assert shown.count("\n") == 1


def test_torchrun_starts_it_too(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    torchrun = [str(forked_python()), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    train = ["-m", "engine", "train", *SMALL, "--iterations", "2", "--warmup", "1", "--grid", "1x1x1x2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*torchrun, *train, "--out", str(out)]
    subprocess.run(command, check=True, timeout=LONG_S, env=environment, capture_output=True)
    result = read(out)
    assert result.provenance.launcher == "torchrun"
    assert Grid.parse(result.grid or "").size == result.ranks == 2


def test_a_rank_starts_without_the_compiler_and_the_checkpoints_that_few_runs_need(tmp_path: Path) -> None:
    """Both would take about as much of a rank's processor time as torch itself, on each of thousands of ranks."""
    code = """if True:
        import sys
        from engine.cli.main import main
        assert main(sys.argv[1:]) == 0
        print([name for name in ("torch._dynamo", "torch.distributed.checkpoint", "sympy") if name in sys.modules])
    """
    words = ["train", *SMALL, "--iterations", "2", "--warmup", "1", "--out", str(tmp_path / "r.json")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=LONG_S, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--overlap", "cache=1"], "--overlap cache=1 does nothing here: without --checkpoint-activations"),
        (["--overlap", "oar,data"], "--overlap data sums gradients early, but the optimizer waits for all of them"),
        (["--overlap", "oar,data", "--clip", "0"], ""),
        (["--overlap", "cache=1", "--checkpoint-activations"], ""),
        ([], ""),
    ],
)
def test_a_flag_that_does_nothing_is_told(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *SMALL, "--ranks", "4", "--grid", "1x1x2x2", *options]) == 0
    said = capsys.readouterr().err
    assert told in said
    assert bool(told) == bool(said)


def test_a_timeline_shows_phases_waits_and_collectives_in_their_lanes(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.json", tmp_path / "r.json"
    options = ["--grid", "1x1x2x2", "--timeline", str(trace), "--out", str(out), "--iterations", "4", "--warmup", "3"]
    codes, said = train(4, *SMALL, *options, "--overlap", "oar,ors,oag,data", "--clip", "0")
    assert codes == [0] * 4, said
    timeline = read(out).timeline
    assert timeline is not None
    assert timeline.iteration == 3
    assert timeline.step_s == pytest.approx(read(out).iterations[3].time_s)
    phases = [span for span in timeline.spans if span.kind == "phase"]
    assert phases[0].start_s == 0
    assert sum(span.end_s - span.start_s for span in phases) == pytest.approx(timeline.step_s)
    assert {span.lane for span in timeline.spans} == {"compute", "z", "z gather", "data"}
    gathers = [span for span in timeline.spans if span.lane == "z gather"]
    assert len(gathers) == 4 * 2 + 2
    assert all(span.issued_s is not None and span.issued_s <= span.start_s for span in gathers)
    assert all(0 <= span.start_s <= span.end_s <= timeline.step_s for span in timeline.spans)

    events = json.loads(trace.read_text())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert rows[0] == "compute"
    drawn = [event for event in events if event["ph"] == "X"]
    assert len(drawn) == len(timeline.spans)
    assert sum(rows[event["tid"]] == "z gather" for event in drawn) == len(gathers)
    assert max(event["ts"] + event["dur"] for event in drawn) == pytest.approx(1e6 * timeline.step_s)
