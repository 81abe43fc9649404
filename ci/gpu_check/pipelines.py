"""Training is cut into two stages, under schedules that wait for what is next and that take what has come.

Each has the serial model's loss, gradients and changes of weights in fp32 (steps.py), and of both sorts one in bf16 is
held to plain PyTorch's as training over two ranks is (splits.py). Of two steps the first posts no receive ahead on a
GPU, and the second does (engine/parallel/runner.py). A message that is read too early, overwritten too soon or another
one's would show in them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from engine.batch import Batch
from engine.bench.p2p import P2P
from engine.bench.world import World
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.overlap.flags import ALL
from engine.peers.comparison import Case
from engine.pipeline.registry import PipelineOptions, ScheduleName
from engine.result.schema.gpu_check import Finding
from engine.training_record import PrecisionName
from gpu_check import rounding
from gpu_check.findings import reported
from gpu_check.pair import Pair, found_by_all
from gpu_check.splits import LINEAR
from gpu_check.steps import OPTIM, StepResult, by_bound, exact, judged, plain, step_result
from gpu_check.ways import Way

TWO, FOUR = Grid.parse("1x1x1x1p2"), Grid.parse("2x1x1x1p2")
SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "zero-bubble", "message-driven", "message-driven-zb", "interleaved")
IN_BF16: dict[str, tuple[ScheduleName, ...]] = {"cpu": ("message-driven-zb",), "cuda": ("1f1b", "message-driven-zb")}
OF_FOUR: ScheduleName = "message-driven-zb"
"""Where a stage has two ranks, these agree on what comes next, and each sends its own part."""
STEPS = 2
WAY = Way(micro_batch=1)
CASE = Case(
    model=GPTConfig("stages", layers=4, hidden=64, heads=2, vocabulary=128, sequence=32, tied=True),
    batch=Batch(4),
    checkpoint_every=1,
    overlap=replace(ALL, cache=1, prefetch_depth=3, reduce_window=2, bucket_bytes=1e5),
    optim=OPTIM,
)
LENGTHS = (8, 1 << 14, 1 << 20, 1 << 26)
"""Messages of so many bytes are timed."""
SHORT = LENGTHS[:3]


def pipelines(device: torch.device) -> Iterator[Finding]:
    """Let two ranks be two stages; on GPUs four, then."""
    yield from found_by_all(of_two, device)
    if device.type == "cuda":
        yield from found_by_all(of_four, device, 4)


def of_two(pair: Pair) -> Iterator[Finding]:
    """Give a finding or two a schedule, and one of single messages; on the first rank only."""
    cases = [replace(CASE, optim=LINEAR, seed=seed) for seed in rounding.SEEDS]
    comm, first = pair.comm(TWO), pair.rank == 0
    yield from in_fp32(pair, comm, SCHEDULES)
    if first:
        others = [(plain(one, pair.device, STEPS), exact(one, STEPS)) for one in cases]
    for schedule in IN_BF16[pair.device.type]:
        ours = [_result(one, comm, "bf16", schedule) for one in cases]
        if first:
            yield judged(f"stages, {TWO}, {schedule}", [(mine, *of) for mine, of in zip(ours, others, strict=True)])
    yield from _transfers(pair)


def of_four(pair: Pair) -> Iterator[Finding]:
    """Give one finding, on the first rank only."""
    yield from in_fp32(pair, pair.comm(FOUR), [OF_FOUR])


def in_fp32(pair: Pair, comm: Comm, schedules: Sequence[ScheduleName]) -> Iterator[Finding]:
    """Give a finding a schedule, on the first rank only."""
    wanted = exact(CASE, STEPS) if pair.rank == 0 else None
    for schedule in schedules:
        ours = _result(CASE, comm, "fp32", schedule)
        if wanted is not None:
            found = by_bound(f"stages, {comm.grid}, {schedule}", ours, wanted)
            yield found.model_copy(update={"sentence": f"{found.sentence}; {pair.words}"})


def _result(case: Case, comm: Comm, precision: PrecisionName, schedule: ScheduleName) -> StepResult:
    of = replace(case, precision=precision, pipeline=PipelineOptions(schedule=schedule))
    return step_result(WAY.trainer(of, comm), STEPS)


def _transfers(pair: Pair) -> Iterator[Finding]:
    """Report what bench p2p finds."""
    name = "a message from rank to rank"
    if pair.device.type == "cuda" and not pair.own_card:
        if pair.rank == 0:
            yield reported(name, "not run: NCCL wants a card for each of two ranks")
        return
    on_gpu, found = pair.device.type == "cuda", dict[str, Any]()
    bench = P2P(("nccl",) if on_gpu else ("gloo",), LENGTHS if on_gpu else SHORT, 7, 5.0 if on_gpu else 0.5)
    bench.measure(World(pair.comm(Grid.replicated(2))), found)
    taken = [one for one in found["transfers"] if one.operation == "message"]
    if pair.rank == 0:
        times = ", ".join(f"{one.num_bytes:,} bytes in {one.average_s * 1e6:.1f} µs" for one in taken)
        yield reported(name, f"{times}; {pair.words}", taken[0].average_s * 1e6, "µs")
