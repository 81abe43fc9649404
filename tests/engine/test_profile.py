"""`train --profile` as a user meets it, and the names that it puts into a trace."""

import gzip
import json
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_command import SMALL, train
from torch import nn
from torch.utils.checkpoint import checkpoint

from engine.cli.main import main
from engine.measure.recorder import Recorder
from engine.profiling import session
from engine.profiling.breakdown import AGREEMENT, break_down
from engine.profiling.regions import NamingRecorder, name_layers
from engine.profiling.trace import Region
from engine.profiling.trace import read as read_trace
from engine.result.schema import Result, read

WIDER = ["--layers", "2", "--hidden", "128", "--heads", "4", "--vocab", "512", "--seq", "128", "--batch-size", "8"]
LAYERS = {
    *("tokens", "positions", "norm", "head", "criterion"),
    *(f"blocks.{n}.{part}" for n in (0, 1) for part in ("norm1", "norm2", "attention.qkv", "attention.out")),
    *(f"blocks.{n}.feed_forward.{part}" for n in (0, 1) for part in ("fc1", "fc2")),
}


def profiled(ranks: int, folder: Path, *options: str) -> Result:
    out = folder / "r.json"
    codes, said = train(ranks, *options, "--data", "synthetic", "--profile", str(folder), "--out", str(out))
    assert codes == [0] * ranks, said
    return read(out)


def test_one_rank_profiles_its_last_iteration_which_does_not_count(tmp_path: Path) -> None:
    result = profiled(1, tmp_path, *SMALL[:4], "--iterations", "5", "--warmup", "1", "--timeline", str(tmp_path / "t"))
    assert [i.profiled for i in result.iterations] == [False] * 4 + [True]
    assert result.summary is not None
    assert result.summary.counted_iterations == 3
    counted = [i.time_s for i in result.iterations[1:4]]
    assert result.summary.time_per_iteration_s == pytest.approx(sum(counted) / 3)
    assert result.timeline is not None
    assert result.timeline.iteration == 3
    assert result.profile is not None
    assert result.profile.iterations == (4,)
    (trace,) = result.profile.traces
    assert (trace.rank, trace.file, trace.unwritten) == (0, str(tmp_path / "rank-0.json"), None)
    assert {path.name for path in tmp_path.iterdir()} == {"r.json", "t", "rank-0.json"}, "nothing half written is left"

    (step,) = read_trace(Path(trace.file or ""))
    assert step.recorded.step_s == pytest.approx(result.iterations[4].time_s)
    assert {what for what, _ in step.regions(Region.LAYER)} >= LAYERS
    assert {what for what, _ in step.regions(Region.BACKWARD)} >= LAYERS
    assert [what for what, _ in step.regions(Region.PHASE)] == [
        *("forward", "forward", "backward", "reduce", "optimizer")
    ]
    found = break_down(Path(trace.file or ""))
    assert (found.axes, found.lanes, found.exposed_s, found.share_hidden) == ((), (), 0.0, None)
    assert found.work_s + found.copies_s + found.rest_s == pytest.approx(found.step_s)
    assert {"aten::addmm", "aten::mm"} <= {operation.name for operation in found.operations}


def test_two_ranks_profile_and_the_traces_agree_with_what_the_run_recorded(tmp_path: Path) -> None:
    options = ["--grid", "1x2x1x1", "--iterations", "15", "--warmup", "1", "--profile-iterations", "3..14"]
    result = profiled(2, tmp_path, *WIDER, *options, "--profile-ranks", "0,1")
    assert result.profile is not None
    assert [trace.rank for trace in result.profile.traces] == [0, 1]
    files = [Path(trace.file or "") for trace in result.profile.traces]
    found = [break_down(file, iteration) for file in files for iteration in (3, 4, 14)]
    assert {(one.rank, one.iteration) for one in found} == {(rank, n) for rank in (0, 1) for n in (3, 4, 14)}
    for one in found:
        assert one.compute_s + one.exposed_s == pytest.approx(one.step_s)
        assert one.work_s + one.copies_s + one.rest_s == pytest.approx(one.compute_s)
        assert [axis.axis for axis in one.axes] == ["y"]
        assert sum(axis.exposed_s for axis in one.axes) == pytest.approx(one.exposed_s)
        assert (one.steps, one.lost) == (12, 0)
        assert one.outcome != "fail", "it may be undecided on a loaded machine"
    assert min(d.difference for one in found for d in one.differences if d.figure == "step") < AGREEMENT
    assert all(one.exposed_s > 0 and one.hidden_s > 0 for one in found)
    of_steps = [d.outcome for one in found for d in one.differences if d.figure == "step"]
    assert "pass" in of_steps, "which nothing but the clocks can move"
    for event_of in ("wait/", "step/"):
        assert break_down(_off(files[0], event_of, 1.1, tmp_path / "off.json")).outcome != "pass"
    assert break_down(_off(files[0], "step/", 1.5, tmp_path / "off.json")).outcome == "fail"
    whole = json.loads(files[0].read_text())
    events = whole["traceEvents"]
    last = next(event for event in events if event["name"] == "step/14")
    sums = [event for event in events if event["name"] == "gloo:all_reduce" and event["ts"] > last["ts"]]
    events.remove(min(sums, key=lambda event: event["ts"]))
    (tmp_path / "lost.json").write_text(json.dumps(whole))
    found_lost = break_down(tmp_path / "lost.json")
    assert (found_lost.lost, found_lost.outcome) == (1, "fail")


def _off(path: Path, of: str, by: float, wrong: Path) -> Path:
    """Write the same trace whose events of that name last `by` times as long."""
    whole = json.loads(path.read_text())
    for event in whole["traceEvents"]:
        if event["name"].startswith(of) and "dur" in event:
            event["dur"] *= by
    wrong.write_text(json.dumps(whole))
    return wrong


def _train_after(before: Callable[[], object], folder: Path) -> str:
    """Train on one rank whose process has done this first; return what it said on stderr."""
    options = ["--iterations", "3", "--warmup", "1", "--profile", str(folder), "--out", str(folder / "r.json")]
    codes, said = train(1, *SMALL, *options, before=before)
    assert codes == [0], said
    return said[0]


def _call_every_trace_large() -> None:
    session.LARGE_BYTES = 1


def _leave_little_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_a_large_trace_is_compressed_and_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "rank-0.json").write_text("of an earlier run")
    _train_after(_call_every_trace_large, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"r.json", "rank-0.json.gz"}
    assert json.loads(gzip.decompress((tmp_path / "rank-0.json.gz").read_bytes()))["par4d"]["rank"] == 0
    assert break_down(tmp_path / "rank-0.json.gz").iteration == 2


def test_a_trace_that_finds_no_room_is_one_sentence_and_the_result_is_whole(tmp_path: Path) -> None:
    said = _train_after(_leave_little_room, tmp_path)
    (sentence,) = [line for line in said.splitlines() if "--profile" in line]
    assert "rank 0 (torch.profiler" in sentence
    assert {path.name for path in tmp_path.iterdir()} == {"r.json"}
    result = read(tmp_path / "r.json")
    assert result.status == "ok"
    assert result.profile is not None
    assert result.profile.traces[0].unwritten == sentence


def test_a_folder_that_can_t_be_written_is_one_sentence_and_training_goes_on(tmp_path: Path) -> None:
    out, folder = tmp_path / "r.json", tmp_path / "file" / "profile"
    folder.parent.write_text("not a folder")
    codes, said = train(1, *SMALL, "--iterations", "3", "--warmup", "1", "--profile", str(folder), "--out", str(out))
    assert codes == [0]
    (sentence,) = [line for line in said[0].splitlines() if "--profile" in line]
    assert f"{folder} can't be written" in sentence
    result = read(out)
    assert result.status == "ok"
    assert result.profile is not None
    assert (result.profile.traces[0].file, result.profile.traces[0].unwritten) == (None, sentence)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--profile-ranks", "0"], ""),
        (["--profile-iterations", "1"], "--profile DIR"),
        (["--profile", "p", "--profile-iterations", "0,2"], "0 to 9, such as 8..9, but 0,2"),
        (["--profile", "p", "--profile-iterations", "10"], "0 to 9"),
        (["--profile", "p", "--profile-iterations", "9..8"], "--profile-iterations: "),
        (["--profile", "p", "--profile-iterations", "2..9"], "--iterations 11 or more"),
        (["--profile", "p", "--iterations", "2", "--warmup", "1"], "--iterations 3 or more"),
        (["--profile", "p", "--profile-ranks", "0,2..4"], "names rank 2, but"),
    ],
)
def test_a_profile_of_what_is_not_there_is_one_sentence(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *SMALL, "--ranks", "2", *options]) == (2 if said else 0)
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == bool(said)


class Blocks(nn.Module):
    """Two layers, the second of which is checkpointed with a third that is left early when run again."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.second, self.first(x), use_reentrant=False)


def test_layers_are_named_while_a_profile_is_taken_and_nothing_of_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    class Noted:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            ran.append(self.name)

        def __exit__(self, *_: object) -> None:
            ran.append(f"end of {self.name}")

    monkeypatch.setattr("engine.profiling.regions.record_function", Noted)
    model, recorder = Blocks(), NamingRecorder()
    model(torch.ones(2, 4)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    with name_layers(model, recorder):
        recorder.phase = "forward"
        loss = model(torch.ones(2, 4)).sum()
        ahead = list(ran)
        recorder.phase = "backward"
        loss.backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    for kind, where in (("layer", ahead), ("backward", ran)):
        for layer in ("first", "second.0", "second.2"):
            assert f"{kind}/{layer}" in where
    assert "layer/second.0" in ran[len(ahead) :], "run again"
    open_regions: list[str] = []
    for name in ran:
        if name.startswith("end of "):
            assert open_regions.pop() == name.removeprefix("end of "), "each lies in another"
        else:
            open_regions.append(name)
    assert not open_regions
    ran.clear()
    model(torch.ones(2, 4)).sum().backward()
    assert not ran
    assert type(Recorder.on(torch.device("cpu"), breakdown=True)) is Recorder
