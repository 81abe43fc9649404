"""Names of what runs in a profiled step, for torch.profiler to see: phases, collectives and layers.

They are put in before the first such step and taken out after the last one: no other step has anything of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.profiler import record_function

from engine.measure.pending import Pending
from engine.measure.recorder import Recorder
from engine.profiling.trace import Region, name_collective


def _begin(name: str) -> record_function:
    region = record_function(name)
    region.__enter__()
    return region


def _end(region: record_function) -> None:
    region.__exit__(None, None, None)


@dataclass(slots=True)
class NamedPending(Pending):
    """Collective whose launch, where the host sees it end (CUDA), and wait are regions."""

    what: str = ""
    regions: dict[Region, record_function] = field(default_factory=dict)

    def _begin_region(self, region: Region) -> None:
        self.regions[region] = _begin(region.name_of(self.what))

    def _end_region(self, region: Region) -> None:
        if region in self.regions:
            _end(self.regions.pop(region))

    def issue(self, number: int) -> None:
        """Mark as issued. number: among the step's collectives."""
        self.what = name_collective(self.kind, self.lane, number)
        if self.at_once:
            self._begin_region(Region.WAIT)
        _end(_begin(Region.ISSUE.name_of(self.what)))

    def begin(self, *, in_line: bool = False) -> None:
        self._begin_region(Region.LAUNCH)
        Pending.begin(self, in_line=in_line)

    def end(self) -> None:
        """Mark as ended. gloo calls this from a thread of its own, for which there is no region."""
        Pending.end(self)
        self._end_region(Region.LAUNCH)

    def wait(self, *, unavoidable: bool) -> None:
        if not self.at_once:
            self._begin_region(Region.WAIT)
        Pending.wait(self, unavoidable=unavoidable)

    def resume(self) -> None:
        """Mark the wait as over. A region that began before its stamp ends before its stamp, too, and one that began
        after it, as that of a wait at once, ends after it: both last as long.
        """
        if self.at_once:
            Pending.resume(self)
            self._end_region(Region.WAIT)
        else:
            self._end_region(Region.WAIT)
            Pending.resume(self)


class NamingRecorder(Recorder):
    """Recorder that names regions of its steps while `naming` is set. iteration: the next step's."""

    naming = False
    iteration = 0
    phase = ""
    _regions: list[record_function]

    def issued(
        self, kind: str, axis: str, lane: str, num_bytes: int, *, blocking: bool, at_once: bool = False
    ) -> Pending | None:
        pending = super().issued(kind, axis, lane, num_bytes, blocking=blocking, at_once=at_once)
        if isinstance(pending, NamedPending):
            pending.issue(len(self._collectives))
        return pending

    def mark(self, phase: str) -> None:
        """Begin a phase; the first one of a step begins the step, too."""
        self.phase = phase
        if not self.naming:
            super().mark(phase)
            return
        if self._marks:
            _end(self._regions.pop())
        else:
            self._pending_class = NamedPending
            self._regions = [_begin(Region.STEP.name_of(self.iteration))]
        super().mark(phase)
        self._regions.append(_begin(Region.PHASE.name_of(phase)))

    def _mark_end(self) -> None:
        super()._mark_end()
        if self.naming:
            while self._regions:
                _end(self._regions.pop())
            self._pending_class = Pending


@contextmanager
def name_layers(model: nn.Module, recorder: NamingRecorder) -> Iterator[None]:
    """Make the forward of each layer a region by its serial name, and each operation of its backward too.

    A layer that holds others has what none of them does. What a checkpoint runs again in the backward is of LAYER.
    """
    regions: list[record_function] = []

    def hooks(name: str, layer: nn.Module) -> list[torch.utils.hooks.RemovableHandle]:
        def begin(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            regions.append(_begin(Region.LAYER.name_of(name)))

        def end(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            _end(regions.pop())
            # The graph of a recomputation is never walked, and to hold on to it would keep its activations.
            if recorder.phase == "forward" and isinstance(output, Tensor) and output.grad_fn is not None:
                before = {tensor.grad_fn for tensor in inputs if isinstance(tensor, Tensor)}
                _name_backward(name, output.grad_fn, before, regions)

        # always_call: a checkpoint leaves the last layer that it runs again by an exception.
        return [layer.register_forward_pre_hook(begin), layer.register_forward_hook(end, always_call=True)]

    handles = [handle for name, layer in model.named_modules() if name for handle in hooks(name, layer)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _name_backward(name: str, last: Node, before: set[Node | None], regions: list[record_function]) -> None:
    """Name the operations between a layer's output and its inputs that have no name yet."""

    def begin(gradients: object) -> None:
        regions.append(_begin(Region.BACKWARD.name_of(name)))

    def end(inputs: object, outputs: object) -> None:
        _end(regions.pop())

    left, seen = [last], set(before)
    while left:
        node = left.pop()
        # A parameter's own node outlives the step.
        if node in seen or hasattr(node, "variable"):
            continue
        seen.add(node)
        noted: dict[Any, Any] = node.metadata  # type: ignore[assignment]  # a property, whatever its stub says
        if Region.BACKWARD not in noted:
            noted[Region.BACKWARD] = name
            node.register_prehook(begin)
            node.register_hook(end)
        left += [following for following, _ in node.next_functions if following is not None]
