"""Profile of some iterations of a run: each chosen rank writes a trace of torch.profiler with the recorder's figures.

On CUDA no GPU has run this yet.
"""

import gzip
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from engine.comm.funnel import Comm
from engine.files import write_bytes, write_text
from engine.measure.recorder import COMPUTE, Recording, TraceEvent
from engine.parallel.model import ParallelModel
from engine.profiling.regions import NamingRecorder, name_layers
from engine.profiling.trace import Region
from engine.result.schema.profile import KEY, Profiled, RecordedStep
from engine.result.schema.step import AxisTime

log = logging.getLogger(__name__)

LARGE_BYTES = 16 << 20
"""A trace of as many bytes is compressed."""
QUICKLY = 1
"""Level of gzip: its highest takes ten times as long, for a file that is a quarter smaller."""
LANES = "as the run itself recorded it"
"""Process of a trace under which the recorder's lanes are drawn."""


@dataclass(frozen=True, slots=True)
class Request:
    """Profile that is asked for, of one stretch of iterations."""

    folder: Path
    iterations: Sequence[int]
    ranks: Sequence[int]


class Profiling:
    """Profile of a run as one of its ranks has it, which need not be a chosen one."""

    file: str
    unwritten: str
    """Why this rank has no file though it was chosen, one sentence; the run goes on."""

    def __init__(self, request: Request, comm: Comm, model: ParallelModel, recorder: NamingRecorder) -> None:
        self.request, self.file, self.unwritten = request, "", ""
        self._comm, self._model, self._recorder = comm, model, recorder
        self._steps: list[tuple[int, Recording]] = []
        self._running = ExitStack()
        self._profiler: profile | None = None
        if comm.rank in request.ranks:
            self._check_folder()

    def _check_folder(self) -> None:
        probe = self.request.folder / f".rank-{self._comm.rank}.{os.getpid()}.tmp"
        try:
            write_bytes(probe, b"")
            probe.unlink()
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def _give_up(self, why: str) -> None:
        self.unwritten = (
            f"--profile {self.request.folder} can't be written by rank {self._comm.rank} ({why}): it has no profile, "
            "and training goes on."
        )
        log.warning("%s", self.unwritten)

    @contextmanager
    def record(self, iteration: int) -> Iterator[None]:
        """Profile this iteration, one of those chosen; the recorder keeps its figures apart. Collective."""
        recorder = self._recorder
        if iteration == self.request.iterations[0]:
            self._begin()
        counted = recorder.total
        own = recorder.new_recording()
        recorder.record_into(own)
        recorder.iteration = iteration
        yield
        recorder.record_into(counted)
        self._steps.append((iteration, own))
        if iteration == self.request.iterations[-1]:
            self._end()

    def _begin(self) -> None:
        if self._comm.rank in self.request.ranks and not self.unwritten:
            device = self._comm.device
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
            self._profiler = profile(activities=activities)
            self._profiler.start()
            with record_function("before the first step"):  # what the profiler does at first is no part of a step
                torch.ones(1, device=device).sum().item()
            self._recorder.naming = True
            self._running.enter_context(name_layers(self._model.module, self._recorder))
        self._comm.barrier()

    def _end(self) -> None:
        if self._profiler is not None:
            self._running.close()
            self._recorder.naming = False
            self._profiler.stop()
        self._comm.barrier()  # so that the next iteration waits for no profiler

    def write(self, *, overlap: str) -> None:
        """Write this rank's file, if it was chosen."""
        if self._profiler is None:
            return
        folder, name = self.request.folder, f"rank-{self._comm.rank}.json"
        try:
            # In a folder of its own: torch.profiler leaves files of other names behind if it can't finish one.
            with TemporaryDirectory(prefix=f".{name}.", dir=folder) as own:
                raw = Path(own, name)
                self._profiler.export_chrome_trace(str(raw))
                text = json.dumps(self._completed(json.loads(raw.read_text()), overlap)).encode()
            large = len(text) > LARGE_BYTES
            path, other = (folder / f"{name}.gz", folder / name) if large else (folder / name, folder / f"{name}.gz")
            write_bytes(path, gzip.compress(text, QUICKLY) if large else text)
            other.unlink(missing_ok=True)
            self.file = str(path)
        except (FileNotFoundError, KeyError, TypeError, ValueError, RuntimeError):
            self._give_up("torch.profiler has not written all of it, as on a full disk")
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def _completed(self, trace: dict[str, Any], overlap: str) -> dict[str, Any]:
        """Add the recorder's figures to the trace, and its lanes as rows of their own."""
        events = trace["traceEvents"]
        begins = {event["name"]: event["ts"] for event in events if event.get("cat") == "user_annotation"}
        for iteration, recording in self._steps:
            origin_us = begins[Region.STEP.name_of(iteration)]
            events += trace_rows(recording.events, process=LANES, origin_us=origin_us)
        profiled = Profiled(
            rank=self._comm.rank,
            ranks=self._comm.grid.size,
            grid=str(self._comm.grid),
            overlap=overlap,
            device="cuda" if self._comm.device.type == "cuda" else "cpu",
            lanes_in_memory=(),
            steps=tuple(record_step(iteration, recording) for iteration, recording in self._steps),
        )
        return trace | {KEY: profiled.model_dump(by_alias=True)}


def record_step(iteration: int, recording: Recording) -> RecordedStep:
    """Return the recorder's figures of one step."""
    return RecordedStep(
        iteration=iteration,
        step_s=recording.time_s,
        exposed_s=sum(axis.exposed_s for axis in recording.axes.values()),
        hidden_s=sum(phase.hidden_s for phase in recording.phases.values()),
        axes=tuple(
            AxisTime(axis=name, exposed_s=axis.exposed_s, hidden_s=axis.hidden_s)
            for name, axis in sorted(recording.axes.items())
        ),
    )


def write_chrome_trace(path: Path, traced: list[TraceEvent], *, rank: int, about: dict[str, object]) -> None:
    """Write a step as a Chrome trace, for chrome://tracing or ui.perfetto.dev: one row a lane, compute on top, then the
    lanes of each axis. about: facts kept in the file.
    """
    trace = {"traceEvents": trace_rows(traced, process=rank), "displayTimeUnit": "ms", "otherData": about}
    write_text(path, json.dumps(trace) + "\n")


def trace_rows(traced: list[TraceEvent], *, process: int | str, origin_us: float = 0.0) -> list[dict[str, Any]]:
    """List the events as the format has them, in rows of one process; the step begins at origin_us."""
    lanes = sorted({event.lane for event in traced}, key=lambda lane: (lane != COMPUTE, lane))
    named = [
        {"ph": "M", "name": name, "pid": process, "tid": row, "args": args}
        for row, lane in enumerate(lanes)
        for name, args in (("thread_name", {"name": lane}), ("thread_sort_index", {"sort_index": row}))
    ]
    # A wait follows the phase that it lies in: of two events that begin together the longer one has to come first.
    events = [
        {
            "ph": "X",
            "name": event.name,
            "cat": event.kind,
            "pid": process,
            "tid": lanes.index(event.lane),
            "ts": origin_us + 1e6 * event.start_s,
            "dur": 1e6 * (event.end_s - event.start_s),
            "args": {} if event.issued_s is None else {"issued_us": origin_us + 1e6 * event.issued_s},
        }
        for event in sorted(traced, key=lambda event: (event.start_s, event.start_s - event.end_s))
    ]
    return named + events
