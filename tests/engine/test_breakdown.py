"""Where the time of a profiled step went: traces made by hand, and files that are none."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from traces import BACKWARD, TraceFile, recorded

from engine.cli.main import main
from engine.profiling.breakdown import AGREEMENT, break_down
from engine.profiling.trace import _events, innermost
from engine.result.schema.profile import KEY, RecordedStep, TraceBreakdown
from engine.result.schema.step import AxisTime

OF_GPU = recorded(3, 900.0, 220.0, 180.0, x=(100.0, 0.0), z=(120.0, 180.0))


def gpu() -> TraceFile:
    """Two collectives: a gather on stream 20 behind and beyond the first product, and a sum on the computing stream 7.

    Stream 7: product 100-300, stands still for the gather to 420, product 430-600, copy to 650, sum to 750, optimizer
    760-900. Stream 9 sets memory from 500 to 700. The host is done with the step at 990.
    """
    trace = TraceFile()
    trace.kernel("of the step before", -20, -15, -5, stream=7)
    trace.region("step/3", 0, 990)
    trace.region("layer/blocks.0.fc", 10, 40)
    trace.kernel("gemm", 20, 100, 300, stream=7)
    trace.region("issue/all_gather z gather 1", 30, 31)
    trace.region("launch/all_gather z gather 1", 32, 39)
    trace.kernel("ncclDevKernel_AllGather_RING_LL", 35, 120, 420, stream=20)
    trace.region("wait/all_gather z gather 1", 50, 60)
    trace.region("backward/blocks.0.fc", 64, 74, BACKWARD)
    trace.kernel("gemm", 70, 430, 600, stream=7, row=BACKWARD)
    trace.kernel("Memcpy DtoD", 76, 600, 650, stream=7, category="gpu_memcpy")
    trace.kernel("Memset", 78, 500, 700, stream=9, category="gpu_memset")
    trace.region("wait/all_reduce x 2", 80, 95)
    trace.region("issue/all_reduce x 2", 81, 82)
    trace.region("launch/all_reduce x 2", 83, 93)
    trace.kernel("ncclDevKernel_AllReduce_Sum", 86, 650, 750, stream=7)
    trace.kernel("adam", 110, 760, 900, stream=7)
    trace.add("kernel", "nobody's", 905, 910, (0, 7), correlation=977)
    return trace


def test_a_trace_of_a_gpu_made_by_hand_has_the_figures_that_can_be_told_beforehand(tmp_path: Path) -> None:
    found = break_down(gpu().write(tmp_path / "t.json", OF_GPU))
    us = {
        "step_s": 900.0,
        "compute_s": 680.0,
        "work_s": 200.0 + 170.0 + 140.0,
        "copies_s": 50.0,  # that of 600-650: memory is set beside a product, the copy and a wait
        "rest_s": 100.0 + 10.0 + 10.0,
        "exposed_s": 120.0 + 100.0,
        "hidden_s": 180.0,
    }
    assert {name: 1e6 * getattr(found, name) for name in us} == pytest.approx(us)
    assert found.share_hidden == pytest.approx(180 / 400)
    axes = {axis.axis: (1e6 * axis.exposed_s, 1e6 * axis.hidden_s) for axis in found.axes}
    assert axes["z"] == pytest.approx((120.0, 180.0))
    assert axes["x"] == pytest.approx((100.0, 0.0), abs=1e-6)
    assert {lane.lane: 1e6 * lane.busy_s for lane in found.lanes} == pytest.approx({"z gather": 300.0, "x": 100.0})
    operations = {o.name: (o.calls, 1e6 * o.time_s) for o in found.operations}
    assert operations["gemm"] == (2, pytest.approx(370.0))
    assert "of the step before" not in operations
    assert "nobody's" not in operations
    (layer,) = found.layers
    assert (layer.name, 1e6 * layer.forward_s, 1e6 * layer.backward_s) == (
        "blocks.0.fc",
        pytest.approx(200.0),
        pytest.approx(170.0),
    )
    assert found.agrees


def test_a_wait_begins_when_the_host_asks_for_it_if_the_stream_is_idle_by_then(tmp_path: Path) -> None:
    trace = TraceFile()
    trace.region("step/0", 0, 500)
    trace.kernel("gemm", 10, 20, 100, stream=7)
    trace.region("launch/all_gather z gather 1", 30, 40)
    trace.kernel("nccl", 35, 50, 300, stream=20)
    trace.region("wait/all_gather z gather 1", 200, 210)
    trace.kernel("gemm", 220, 300, 400, stream=7)
    found = break_down(trace.write(tmp_path / "t.json", recorded(0, 400.0, 100.0, 150.0)))
    assert (1e6 * found.exposed_s, 1e6 * found.hidden_s) == pytest.approx((100.0, 150.0))
    assert 1e6 * found.rest_s == pytest.approx(20.0 + 100.0), "before the first product, and until the host waited"


AXES = {"x": (40.0, 0.0), "z": (1.0, 30.0)}


def cpu() -> TraceFile:
    """The rank's thread, threads of gloo and what the run noted.

    0-10 Python; product 10-60 with a copy 20-30 in it; a gather from 60, which gloo ends at 90 and the run at 95.

    Product 65-110; a sum waited for at once from 110 to 150; 150-160 Python.
    """
    trace = TraceFile()
    trace.region("step/0", 0, 160)
    trace.region("layer/head", 5, 112)
    trace.add("cpu_op", "aten::addmm", 10, 60)
    trace.add("cpu_op", "aten::copy_", 20, 30)
    trace.region("issue/all_gather z gather 1", 60, 61)
    trace.region("gloo:all_gather", 63, 90, (1, 7))
    trace.add("cpu_op", "aten::addmm", 65, 110)
    trace.region("wait/all_reduce x 2", 110, 150)
    trace.region("issue/all_reduce x 2", 111, 112)
    trace.region("gloo:all_reduce", 113, 148, (1, 8))
    trace.region("wait/all_gather z gather 1", 155, 156)
    own = ("as the run itself recorded it", 1)
    trace.add("collective", "all_gather", 60, 95, own, issued_us=60)  # type: ignore[arg-type]
    trace.add("collective", "all_reduce", 111, 150, own, issued_us=111)  # type: ignore[arg-type]
    return trace


def test_a_trace_of_a_cpu_made_by_hand_has_the_figures_that_can_be_told_beforehand(tmp_path: Path) -> None:
    found = break_down(cpu().write(tmp_path / "t.json", recorded(0, 160.0, 41.0, 30.0, **AXES), device="cpu"))
    us = {"step_s": 160.0, "exposed_s": 41.0, "hidden_s": 30.0, "copies_s": 10.0, "work_s": 85.0, "rest_s": 24.0}
    assert {name: 1e6 * getattr(found, name) for name in us} == pytest.approx(us)
    assert {o.name: (o.calls, pytest.approx(1e6 * o.time_s)) for o in found.operations} == {
        "aten::addmm": (2, 85.0),
        "aten::copy_": (1, 10.0),
    }
    assert 1e6 * found.layers[0].forward_s == pytest.approx(105.0), "without the wait in it"
    assert found.agrees


def test_a_figure_that_the_record_has_otherwise_is_told_with_what_explains_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = recorded(0, 160.0, 41.0, 35.0, x=(40.0, 0.0), z=(1.0, 35.0))
    late = cpu().write(tmp_path / "late.json", record, device="cpu")
    found = break_down(late)
    assert (found.agrees, found.outcome) == (False, "undecided"), "of other steps nothing is known"
    hidden, along_z = (d for d in found.differences if d.reason is not None)
    assert (hidden.figure, along_z.figure) == ("hidden", "hidden along z")
    assert hidden.difference == pytest.approx(5 / 35)
    assert "0.0 ms" in str(hidden.reason)
    assert main(["breakdown", str(late)]) == 3
    told = capsys.readouterr().out
    assert "undecided" in told
    assert "6 of 8 figures" in told
    assert "\n  hidden: 0.0000 s" in told


def test_what_nothing_explains_has_no_reason_and_does_not_agree(tmp_path: Path) -> None:
    other = break_down(cpu().write(tmp_path / "other.json", recorded(0, 160.0, 60.0, 30.0, **AXES), device="cpu"))
    on_gpu = break_down(gpu().write(tmp_path / "gpu.json", recorded(3, 1000.0, 220.0, 180.0)))
    for found in (other, on_gpu):
        assert not found.agrees
        assert found.outcome != "pass"
        assert all(d.reason is None for d in found.differences)
    assert {d.figure for d in other.differences if d.difference > AGREEMENT} == {"compute", "exposed"}


NOISE = (0.995, 1.002, 0.999, 1.004, 0.997, 1.0, 1.003, 0.998)


def several(
    one: TraceFile, iteration: int, step: RecordedStep, path: Path, *, device: str, noise: Sequence[float] = NOISE
) -> Path:
    """Write that step again and again, each recorded a little longer or shorter than the others."""
    whole, steps = TraceFile(), []
    for number, by in enumerate(noise):
        for event in one.events:
            name = f"step/{number}" if event["name"] == f"step/{iteration}" else event["name"]
            args = {key: f"{number}, {of}" if key == "correlation" else of for key, of in event["args"].items()}
            whole.events.append(event | {"name": name, "ts": event["ts"] + 1e4 * number, "args": args})
        figures = {name: by * getattr(step, name) for name in ("step_s", "exposed_s", "hidden_s")}
        axes = tuple(AxisTime(axis=a.axis, exposed_s=by * a.exposed_s, hidden_s=by * a.hidden_s) for a in step.axes)
        steps.append(step.model_copy(update=figures | {"iteration": number, "axes": axes}))
    return whole.write(path, *steps, device=device)


def longer(trace: TraceFile, of: str, by: float) -> TraceFile:
    """Make events of that name last `by` times as long."""
    for event in trace.events:
        if of in event["name"]:
            event["dur"] *= by
    return trace


ON_CPU = recorded(0, 160.0, 41.0, 30.0, **AXES)


@pytest.mark.parametrize("by", [0.9, 1.1, 9.0])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_trace_of_which_one_kind_of_event_is_10_percent_off_disagrees(
    device: str, by: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, of, iteration, step = (
        (cpu(), "wait/all_reduce", 0, ON_CPU) if device == "cpu" else (gpu(), "nccl", 3, OF_GPU)
    )
    right = several(trace, iteration, step, tmp_path / "right.json", device=device)
    found = break_down(right)
    assert (found.outcome, found.steps, found.lost) == ("pass", len(NOISE), 0)
    assert main(["breakdown", str(right)]) == 0
    assert "the trace agrees" in capsys.readouterr().out
    wrong = several(longer(trace, of, by), iteration, step, tmp_path / "wrong.json", device=device)
    found = break_down(wrong)
    assert (found.outcome, found.agrees) == ("fail", False)
    assert main(["breakdown", str(wrong)]) == 1
    assert "the trace disagrees" in capsys.readouterr().out


def test_few_steps_decide_nothing_and_neither_do_those_that_scatter_across_the_limit(tmp_path: Path) -> None:
    for noise in (NOISE[:5], (0.99, 1.01, 0.97, 1.03, 0.99, 1.0, 1.01, 0.98)):
        found = break_down(several(cpu(), 0, ON_CPU, tmp_path / "t.json", device="cpu", noise=noise))
        assert found.outcome == "undecided"


def test_ends_that_the_run_noted_late_keep_a_trace_from_failing_but_not_from_being_undecided(tmp_path: Path) -> None:
    record = recorded(0, 160.0, 41.0, 35.0, x=(40.0, 0.0), z=(1.0, 35.0))
    found = break_down(several(cpu(), 0, record, tmp_path / "t.json", device="cpu"))
    assert {d.figure for d in found.differences if d.outcome != "pass"} == {"hidden", "hidden along z"}
    assert found.outcome == "undecided"


def test_ends_that_the_run_noted_late_in_some_steps_excuse_no_figure_that_is_off_in_others(tmp_path: Path) -> None:
    """One step is off by the trace and right by the noted ends, the next the other way round."""
    record = recorded(0, 160.0, 41.0, 35.0, x=(40.0, 0.0), z=(1.0, 35.0))
    path = several(cpu(), 0, record, tmp_path / "t.json", device="cpu", noise=NOISE * 2)
    document = json.loads(path.read_text())
    noted = [
        event for event in document["traceEvents"] if event.get("cat") == "collective" and "gather" in event["name"]
    ]
    for event in noted[::2]:
        event["dur"] *= 3
    path.write_text(json.dumps(document))
    found = break_down(path)
    (hidden,) = (d for d in found.differences if d.figure == "hidden")
    assert hidden.outcome == "undecided", "half of the noted steps are right: their interval spans the limit"
    for event in noted:
        event["dur"] *= 3
    path.write_text(json.dumps(document))
    (hidden,) = (d for d in break_down(path).differences if d.figure == "hidden")
    assert hidden.outcome == "fail"


@pytest.mark.parametrize("left_out", ["gloo:all_reduce", "issue/all_reduce"])
def test_a_collective_that_the_trace_lacks_in_one_step_is_enough_to_disagree(left_out: str, tmp_path: Path) -> None:
    """As another on its lane is there."""
    path = several(cpu_with_two_sums(), 0, recorded(0, 160.0, 41.0, 30.0, **AXES), tmp_path / "t.json", device="cpu")
    assert break_down(path).lost == 0
    document = json.loads(path.read_text())
    document["traceEvents"].remove(next(e for e in document["traceEvents"] if left_out in e["name"]))
    path.write_text(json.dumps(document))
    found = break_down(path)
    assert (found.lost, found.outcome) == (1, "fail")


def cpu_with_two_sums() -> TraceFile:
    """As cpu(), with a sum of a moment before the other on its lane."""
    trace = cpu()
    trace.region("issue/all_reduce x 3", 152, 152.01)
    trace.region("gloo:all_reduce", 152.02, 152.03, (1, 8))
    trace.region("wait/all_reduce x 3", 152.04, 152.05)
    trace.add("collective", "all_reduce", 152, 152.05, ("as the run itself recorded it", 1), issued_us=152)  # type: ignore[arg-type]
    return trace


def test_a_trace_that_lacks_all_events_of_gloo_disagrees(tmp_path: Path) -> None:
    trace = cpu()
    trace.events = [event for event in trace.events if not event["name"].startswith("gloo:")]
    found = break_down(several(trace, 0, ON_CPU, tmp_path / "t.json", device="cpu"))
    assert (found.lost, found.outcome) == (2 * len(NOISE), "fail")


def test_a_gpu_s_collective_without_kernels_is_enough_to_disagree(tmp_path: Path) -> None:
    trace = gpu()
    trace.events = [event for event in trace.events if "AllReduce" not in event["name"]]
    found = break_down(several(trace, 3, OF_GPU, tmp_path / "t.json", device="cuda"))
    assert (found.lost, found.outcome) == (len(NOISE), "fail")
    (note,) = found.notes
    assert "1 of 2 collectives" in note


def test_a_figure_of_little_of_the_step_may_differ_by_more_of_itself(tmp_path: Path) -> None:
    record = recorded(3, 900.0, 220.0, 180.0, x=(100.0, 0.8), z=(120.0, 180.0))
    assert break_down(gpu().write(tmp_path / "t.json", record)).agrees


def test_the_command_prints_a_person_s_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(gpu().write(tmp_path / "t.json", OF_GPU).read_bytes()))
    assert main(["breakdown", str(path)]) == 3, "of one step it is undecided"
    told = capsys.readouterr().out
    assert all(words in told for words in ("grid 2x1x1x1", "within 0.0%", "ncclDevKernel_AllReduce_Sum"))
    assert main(["breakdown", str(path), "--json"]) == 3
    assert TraceBreakdown.model_validate_json(capsys.readouterr().out) == break_down(path)


def test_what_is_innermost_is_told_even_where_events_overlap() -> None:
    trace = TraceFile()
    for name, start, end in (("outer", 0, 10), ("inner", 2, 4), ("later", 6, 12)):
        trace.add("cpu_op", name, start, end)
    pieces = [(p.event.name, round(1e6 * p.start), round(1e6 * p.end)) for p in innermost(_events(trace.events))]
    assert pieces == [("outer", 0, 2), ("inner", 2, 4), ("outer", 4, 6), ("later", 6, 12)]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "No such file"),
        (b"", "is cut short"),
        (b'{"traceEvents": [{"ph": "X", "na', "is cut short"),
        (gzip.compress(b"{}" * 5000, mtime=0)[:40], "is cut short"),
        (b"\x7fELF\x80\xff", "is cut short"),
        (b"[1, 2]", "not a Chrome trace"),
        (b'{"schema": "par4d.result"}', "not a Chrome trace"),
        (b'{"traceEvents": [], "otherData": {}}', "no profile of"),
        (b'{"traceEvents": [], "par4d": {"schema": "par4d.profile", "version": 2}}', "schema version 2"),
        (b'{"traceEvents": [], "par4d": {"schema": "par4d.profile", "version": 1}}', "at rank"),
    ],
)
def test_a_file_that_is_no_profile_is_one_sentence_and_exit_code_2(
    content: bytes | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["breakdown", str(path)]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert str(path) in told
    assert told.count("\n") == 1


def test_a_trace_that_lacks_its_events_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = gpu().write(tmp_path / "t.json", OF_GPU)
    whole = json.loads(path.read_text())

    def told_of(events: object, *options: str, **about: object) -> str:
        path.write_text(json.dumps({"traceEvents": events, KEY: whole[KEY] | about}))
        assert main(["breakdown", str(path), *options]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        return told

    events = whole["traceEvents"]
    assert "of iteration 3:" in told_of([e for e in events if e["name"] != "step/3"])
    for damaged in ([1, *events], [e | {"ts": "soon"} for e in events if "ts" in e]):
        assert "events are not those" in told_of(damaged)
    assert "has no kernels" in told_of(
        [e for e in events if e.get("cat") != "kernel" and "gpu" not in e.get("cat", "")]
    )
    assert "its events lack" in told_of([e | {"args": {"correlation": []}} for e in events if "cat" in e])
    assert "iteration 5, but 3:" in told_of(events, "--iteration", "5")
    assert "tells of no iteration" in told_of(events, steps=[])
