"""Parts of a profiled step of anybody's trainer, planted in a trace, and of both sides of contests."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from external_cases import CASE as EXTERNAL
from external_cases import hold
from hypothesis import given
from hypothesis import strategies as st
from real_ranks import run_processes, take_part_again
from test_external_peers import external
from test_peers import CASE

from engine.grid import Grid
from engine.peers import timed_side
from engine.peers.alternate import measure
from engine.peers.compare import summarise, table
from engine.peers.comparison import Comparison
from engine.peers.ranks import Job
from engine.peers.registry import COMPARISONS
from engine.profiling import steps
from engine.profiling.parts import PARTED, part, part_file
from engine.profiling.trace import Event, TraceError
from engine.result.schema import Memory
from engine.result.schema.peers import PARTS, SIDES, PeerContest, PeerSide, PeersResult
from engine.result.schema.profile import StepParts
from engine.training.equality import TOLERANCES

RANK, GLOO, HOST, COMPUTING, NCCLS = ("p", 1), ("p", 2), ("p", 1), (0, 7), (0, 9)
NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def step(start: float = 0.0, end: float = 10.0) -> Event:
    return Event(PARTED, "user_annotation", RANK, start, end)


def op(start: float, end: float, name: str = "aten::mm", row: tuple[str, int] = RANK) -> Event:
    return Event(name, "cpu_op", row, start, end)


def gloo(start: float, end: float, name: str = "gloo:all_gather", row: tuple[str, int] = GLOO) -> Event:
    return Event(name, "user_annotation", row, start, end)


def kernel(start: float, end: float, name: str = "sm90_xmma_gemm_bf16", category: str = "kernel") -> Event:
    return Event(name, category, NCCLS if name == NCCL else COMPUTING, start, end)


def figures(of: StepParts) -> tuple[float, ...]:
    """Work, rest, hidden and exposed."""
    return of.work_s, of.rest_s, of.hidden_s, of.exposed_s


ON_CPUS = {
    "wholly hidden": ([op(0, 10), gloo(2, 5)], (10, 0, 3, 0)),
    "wholly exposed": ([op(0, 4), gloo(4, 7), op(7, 10)], (7, 0, 0, 3)),
    "half": ([op(0, 5), gloo(4, 6)], (5, 4, 1, 1)),
    "two in flight count once": ([op(0, 2), gloo(1, 5), gloo(3, 6)], (2, 4, 1, 4)),
    "operators in one another count once": ([op(0, 6), op(1, 3, "aten::copy_"), gloo(5, 8)], (6, 2, 1, 2)),
    "a wait within a node of autograd": (
        [op(0, 10, "autograd::engine::evaluate_function: Gather"), op(0, 10, "Gather"), op(0, 4), gloo(4, 10)],
        (4, 0, 0, 6),
    ),
    "a wait for a tensor": ([op(0, 4), op(4, 9, "_c10d_functional::wait_tensor"), op(9, 10)], (5, 0, 0, 5)),
    "a call that does the sums itself": (
        [op(0, 4, "c10d::_reduce_scatter_base_"), op(1, 2, "aten::add_"), gloo(0, 4, "gloo:all_reduce"), op(4, 10)],
        (6, 0, 0, 4),
    ),
    "a call with nothing in flight": ([op(0, 4, "c10d::allreduce_"), op(4, 10)], (6, 4, 0, 0)),
    "gloo's own sums are no work": ([gloo(0, 6), op(1, 5, "aten::div_", GLOO)], (0, 4, 0, 6)),
    "a message on the rank's own row": ([gloo(0, 6, "gloo:recv", RANK), op(1, 3), op(6, 10)], (6, 0, 2, 4)),
    "beyond the step": ([op(-5, 2), gloo(8, 30), op(20, 30)], (2, 6, 0, 2)),
    "none": ([op(0, 10)], (10, 0, 0, 0)),
    "nothing": ([], (0, 10, 0, 0)),
}
ON_GPUS = {
    "wholly hidden": ([kernel(0, 10), kernel(2, 5, NCCL)], (10, 0, 3, 0)),
    "wholly exposed": ([kernel(0, 4), kernel(4, 7, NCCL), kernel(7, 9)], (6, 1, 0, 3)),
    "behind a copy": ([kernel(0, 4), kernel(4, 6, "Memcpy DtoD", "gpu_memcpy"), kernel(5, 8, NCCL)], (6, 2, 1, 2)),
    "what the host does is no work": ([kernel(0, 4), op(0, 10), kernel(3, 6, NCCL)], (4, 4, 1, 2)),
    "RCCL's": ([kernel(0, 4), kernel(4, 7, "rcclGenericKernel")], (4, 3, 0, 3)),
}


@pytest.mark.parametrize("name", ON_CPUS)
def test_what_a_trace_of_processors_tells(name: str) -> None:
    events, expected = ON_CPUS[name]
    found = part([step(), *events], "cpu")
    assert figures(found) == pytest.approx(expected)
    assert (found.step_s, found.steps) == (10, 1)


@pytest.mark.parametrize("name", ON_GPUS)
def test_what_a_trace_of_a_gpu_tells(name: str) -> None:
    events, expected = ON_GPUS[name]
    assert figures(part([step(), *events], "cuda")) == pytest.approx(expected)


def test_of_several_steps_the_mean_counts_and_nothing_between_them() -> None:
    events = [step(0, 10), op(0, 10), gloo(0, 4), op(10, 30), gloo(12, 28), step(30, 50), op(30, 40), gloo(40, 50)]
    found = part(events, "cpu")
    assert (found.steps, found.step_s) == (2, 15)
    assert figures(found) == pytest.approx((10, 0, 2, 5))


SPANS = st.lists(st.tuples(st.floats(-1, 11), st.floats(0, 5)), max_size=12)


@given(SPANS, SPANS)
def test_parts_add_up_to_the_step_whatever_runs(
    work: list[tuple[float, float]], sent: list[tuple[float, float]]
) -> None:
    for device, one, other in (("cpu", op, gloo), ("cuda", kernel, lambda start, end: kernel(start, end, NCCL))):
        events = [one(start, start + took) for start, took in work] + [
            other(start, start + took) for start, took in sent
        ]
        found = part([step(), kernel(-9, -8), *events], device)
        assert found.compute_s + found.exposed_s == pytest.approx(10)
        assert found.work_s + found.rest_s == pytest.approx(found.compute_s)


@pytest.mark.parametrize(("events", "device"), [([step(), op(0, 5)], "cuda"), ([op(0, 5)], "cpu"), ([], "cpu")])
def test_a_trace_without_kernels_or_without_steps_is_refused(events: list[Event], device: str) -> None:
    with pytest.raises(TraceError):
        part(events, device)


def test_a_chrome_trace_of_a_gpu_is_read(tmp_path: Path) -> None:
    """As torch.profiler writes it, in microseconds of some clock."""
    ran = [
        *(("user_annotation", PARTED, 4, 0, 100), ("gpu_user_annotation", PARTED, 7, 5, 60)),
        *(("cuda_runtime", "cudaLaunchKernel", 4, 1, 2), ("kernel", "ampere_sgemm_128x64_nn", 7, 10, 40)),
        *(("kernel", NCCL, 9, 30, 50), ("gpu_memset", "Memset (Device)", 7, 90, 5)),
    ]
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": row, "ts": 5e15 + start, "dur": took, "args": {}}
        for cat, name, row, start, took in ran
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "process_name", "pid": 0, "args": {}}, *events]}))
    found = part_file(path, "cuda")
    assert 1e6 * found.step_s == pytest.approx(100)
    assert [1e6 * figure for figure in figures(found)] == pytest.approx([45, 25, 20, 30])


@pytest.mark.parametrize("text", ["{", "{}", '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": "x"}]}'])
def test_a_damaged_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(TraceError):
        part_file(path, "cpu")


GOOD = {"steps": 1, "step_s": 10, "compute_s": 7, "work_s": 6, "rest_s": 1, "hidden_s": 2, "exposed_s": 3}


@pytest.mark.parametrize("wrong", [{"exposed_s": 2.9}, {"work_s": 7}, {"hidden_s": 6.5}, {"steps": 0}])
def test_parts_that_do_not_add_up_are_no_result(wrong: dict[str, Any]) -> None:
    assert StepParts.model_validate(GOOD).compute_s == 7
    with pytest.raises(ValueError, match=r"steps|parts|hidden"):
        StepParts.model_validate(GOOD | wrong)


PARTING = replace(CASE, breakdown=True)


def add_up(parts: StepParts | None, steps: int) -> None:
    assert parts is not None
    assert parts.steps == steps
    assert parts.compute_s + parts.exposed_s == pytest.approx(parts.step_s)
    assert parts.work_s + parts.rest_s == pytest.approx(parts.compute_s)
    assert min(parts.work_s, parts.hidden_s + parts.exposed_s) > 0


@pytest.mark.parametrize("name", [pytest.param("ddp", marks=pytest.mark.weekly), "fsdp2"])
def test_both_sides_of_a_contest_are_parted_on_the_first_rank(name: str) -> None:
    first, second = run_processes(COMPARISONS[name].grid, measure, COMPARISONS[name], PARTING)
    for side in SIDES:
        add_up(getattr(first, side).parts, CASE.steps)
        assert getattr(second, side).parts is None
        assert [len(times) for times in getattr(first, side).rounds_s] == [CASE.steps] * CASE.rounds, "as without"
    assert PeerContest.model_validate(first.model_dump()) == first


def test_a_side_in_a_process_of_its_own_is_parted_too() -> None:
    first, _ = run_processes(Grid(data=2), hold, external(), replace(EXTERNAL, breakdown=True))
    assert isinstance(first, PeerContest), first
    add_up(first.peer.parts, EXTERNAL.steps)
    assert [len(times) for times in first.peer.rounds_s] == [EXTERNAL.steps] * EXTERNAL.rounds


def test_sides_that_come_one_after_the_other_are_parted_once_each() -> None:
    case = replace(PARTING, apart=True, rounds=2)
    first, _ = run_processes(Grid(data=2), _again_and_count, COMPARISONS["ddp"], case)
    job, parted = first
    for side in SIDES:
        add_up(getattr(job.contest, side).parts, CASE.steps)
        assert len(getattr(job.contest, side).rounds_s) == 2
    assert parted == 2


def _again_and_count(comm: Any, contest: Comparison, case: Any) -> tuple[Job, int]:
    taken = []
    part_steps = timed_side.part_steps
    timed_side.part_steps = lambda *given, **more: taken.append(1) or part_steps(*given, **more)  # type: ignore
    (job,) = take_part_again(comm, [contest], case)
    return job, len(taken)


def test_a_profile_that_cannot_be_read_costs_no_contest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a trace without steps."""
    plain = COMPARISONS["plain"]
    (found,) = run_processes(plain.grid, _without_a_trace, plain, PARTING)
    for side in SIDES:
        one: PeerSide = getattr(found, side)
        assert one.parts is None
        assert "no events of a step" in one.unparted
        assert one.rounds_s
    said = table(_result(plain, found))
    assert all(f"of {side}, as the trace has no events" in said for side in SIDES)


def _without_a_trace(comm: Any, contest: Comparison, case: Any) -> PeerContest:
    steps.PARTED = "something else"
    return measure(comm, contest, case)


def _result(comparison: Comparison, contest: PeerContest) -> Any:
    job = Job(contest, Memory(kind="resident", peak_bytes_per_rank=(1,)), ("n0",), ("a processor",), None)
    found = summarise(comparison, [job], TOLERANCES["fp32"], 0.0)
    return PeersResult.model_construct(comparisons=(found,), contests=())


def test_the_command_lists_the_parts_of_each_side() -> None:
    side = PeerSide(losses=(1.0,), gradient_norms=(1.0,), rounds_s=((1.0,),), cpu_s=((1.0,),))
    parts = [StepParts.model_validate(GOOD), StepParts.model_validate(GOOD | {"steps": 2})]
    contest = PeerContest.of(*(side.model_copy(update={"parts": one}) for one in parts))
    rows = [line.split() for line in table(_result(COMPARISONS["ddp"], contest)).splitlines()]
    assert ["ddp", "ours", "10.0000", "7.0000", "6.0000", "1.0000", "2.0000", "3.0000"] in rows
    assert len([row for row in rows if row[:1] == ["ddp"] and len(row) == 2 + len(PARTS)]) == 2


def test_a_side_of_a_file_without_parts_is_read() -> None:
    side = {"losses": [1.0], "rounds_s": [[1.0]], "cpu_s": [[1.0]], "name": "ours"}
    assert PeerSide.model_validate_json(json.dumps(side)).parts is None
