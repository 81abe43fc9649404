"""What of a recording a result tells."""

import pytest
import torch
from ticks import Ticks

from engine.comm.collective import Kind
from engine.comm.funnel import Comm
from engine.comm.groups import fake_group
from engine.grid import Axis, Grid
from engine.measure.recorder import Recorder
from engine.training.gathered import collectives


@pytest.mark.parametrize("timing", [True, False])
def test_collectives_that_were_not_timed_have_calls_and_bytes_and_no_time(timing: bool) -> None:
    recorder = Recorder(Ticks(), timing=timing)  # type: ignore[arg-type]
    with fake_group(Grid(z=2), 0):
        comm = Comm(Grid(z=2), recorder=recorder)
        for _ in range(2):
            recorder.start_step("all")
            comm.run(Kind.ALL_REDUCE, Axis.Z, torch.zeros(5))
            recorder.end_step()
    (told,) = collectives(recorder.total)
    assert (told.kind, told.axis, told.calls, told.bytes) == ("all_reduce", "z", 1.0, 20.0)
    assert (told.time_s is not None) == timing
