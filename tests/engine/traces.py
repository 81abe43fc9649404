"""Traces of profiles, made by hand: times are in microseconds, so that every figure can be told beforehand."""

import json
from pathlib import Path
from typing import Any

from engine.result.schema.profile import KEY, Profiled, RecordedStep
from engine.result.schema.step import AxisTime

HOST, BACKWARD = (1, 1), (1, 2)
"""A process's main thread, and that of its backward on a GPU."""


class TraceFile:
    """Events as torch.profiler writes them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._launched = 0

    def add(self, category: str, name: str, start: float, end: float, row: tuple[int, int] = HOST, **args: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": row[0], "tid": row[1], "args": args}
        self.events.append(event | {"ts": 5e12 + start, "dur": end - start})

    def region(self, name: str, start: float, end: float, row: tuple[int, int] = HOST) -> None:
        self.add("user_annotation", name, start, end, row)

    def kernel(
        self,
        name: str,
        launched: float,
        start: float,
        end: float,
        *,
        stream: int,
        row: tuple[int, int] = HOST,
        category: str = "kernel",
    ) -> None:
        """Add what the host launches at one time and the device runs at another."""
        self._launched += 1
        self.add("cuda_runtime", "cudaLaunchKernel", launched, launched + 2, row, correlation=self._launched)
        self.add(category, name, start, end, (0, stream), correlation=self._launched)

    def write(self, path: Path, *steps: RecordedStep, device: str = "cuda") -> Path:
        about: dict[str, Any] = {"rank": 0, "ranks": 2, "grid": "2x1x1x1", "overlap": "oar", "device": device}
        profiled = Profiled.model_validate(about | {"steps": steps})
        named = {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}
        path.write_text(json.dumps({"traceEvents": [named, *self.events], KEY: profiled.model_dump(by_alias=True)}))
        return path


def recorded(iteration: int, step: float, exposed: float, hidden: float, **axes: tuple[float, float]) -> RecordedStep:
    """Make the record of a step, in microseconds; those of axes are exposed and hidden."""
    along = tuple(AxisTime(axis=a, exposed_s=e * 1e-6, hidden_s=h * 1e-6) for a, (e, h) in axes.items())
    figures = {"step_s": step * 1e-6, "exposed_s": exposed * 1e-6, "hidden_s": hidden * 1e-6}
    return RecordedStep(iteration=iteration, axes=along, **figures)
