"""What a step does besides its numbers: when its batch is read."""

import pytest
from dry_plans import dry_plan

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.data import sampler
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.models.catalogue import lookup
from engine.training.trainer import Trainer


@pytest.mark.parametrize("ahead", [False, True])
def test_reading_ahead_takes_the_same_batches_sooner(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    plain = sampler.batch

    def noting(*given, step: int, **named):  # type: ignore[no-untyped-def]
        read.append(step)
        return plain(*given, step=step, **named)

    monkeypatch.setattr(sampler, "batch", noting)
    record, _ = dry_plan(lookup("gpt-test"), Grid(), Batch(2), checkpoint=False, precision="fp32")
    training = Trainer(record, record.model.task.data.synthetic(), Comm(Grid()), Recorder())
    training.reads_ahead = ahead
    found = []
    for _ in range(3):
        found.append(training.step()[:2])
        assert read == list(range(training.done + ahead))
    training.done = 0  # as from a checkpoint: what was read is of another step
    training.step()
    assert read[-1 - ahead] == 0
    monkeypatch.undo()
    again = Trainer(record, record.model.task.data.synthetic(), Comm(Grid()), Recorder())
    assert found == [again.step()[:2] for _ in range(3)]
