"""What ci/gpu looks at in stages of a pipeline and in fp16: each fault that it must find is planted."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from real_ranks import start_server
from waiting import LONG_S

from engine.comm.collective import Kind
from engine.errors import RunError
from engine.result.schema.gpu_check import Finding, Status
from gpu_check import pair, pipelines, scaled, staged
from gpu_check.pair import Pair, found_by_all
from gpu_check.scaled import Scaled

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def server() -> None:
    """Ranks are forked from it."""
    start_server()


class Emptied(staged.StagedMessages):
    """Brings the third message without what is in its first kilobyte."""

    came = 0

    def start(self, kind: Kind, *given: Any, **named: Any) -> Callable[[], None]:
        finish = super().start(kind, *given, **named)
        if kind is Kind.SEND:
            return finish
        self.came += 1
        return _emptied(finish) if self.came == 3 else finish


def _emptied(finish: Any) -> Any:
    wait = type(finish).__call__

    class Message(type(finish)):  # type: ignore[misc]
        def __call__(self) -> None:
            wait(self)
            self._target[:1024] = 0

    finish.__class__ = Message
    return finish


class Exchanged(staged.StagedMessages):
    """Sends the second message first."""

    held: tuple[Any, ...] | None = None

    def start(self, kind: Kind, *given: Any, **named: Any) -> Callable[[], None]:
        if kind is Kind.SEND and self.held is None:
            self.held = given
            return lambda: None
        finish = super().start(kind, *given, **named)
        if kind is Kind.SEND and self.held:
            super().start(kind, *self.held, **named)
            self.held = ()
        return finish


FAULTY = (staged.StagedMessages, Emptied, Exchanged)


def _faulty(pair: Pair) -> Iterator[Finding]:
    """Findings over each channel, by its name; over the last one a rank fails."""
    for channel in FAULTY:
        with patch.object(staged, "StagedMessages", channel):
            for finding in pipelines.in_fp32(pair, pair.comm(pipelines.TWO), ["gpipe"]):
                yield finding.model_copy(update={"name": channel.__name__})


def test_a_message_that_loses_numbers_on_its_way_fails_and_one_that_comes_in_anothers_place_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pair, "LIMIT_S", LONG_S)
    found: dict[str, Status] = {}
    with pytest.raises(RunError, match="A rank failed"):
        found.update((finding.name, finding.status) for finding in found_by_all(_faulty, CPU))
    assert found == {"StagedMessages": "pass", "Emptied": "fail"}


@pytest.mark.weekly
def test_stages_of_two_ranks_are_right() -> None:
    assert [finding.status for finding in found_by_all(pipelines.of_four, CPU, 4)] == ["pass"]


GOOD = [Scaled(6.0, 4.0, True), Scaled(5.9, 2.0, False), Scaled(5.8, 2.0, False)]


@pytest.mark.parametrize(
    ("ours", "theirs", "status"),
    [
        (GOOD, GOOD, "pass"),
        ([*GOOD[:2], GOOD[2]._replace(loss=5.85)], GOOD, "fail"),
        ([*GOOD[:2], GOOD[2]._replace(scale=4.0)], GOOD, "fail"),
        ([*GOOD[:2], GOOD[2]._replace(skipped=True)], GOOD, "fail"),
        (GOOD[1:], GOOD[1:], "fail"),
        (GOOD[:1], GOOD[:1], "fail"),
    ],
    ids=["alike", "another loss", "another scale", "another skipped", "none is skipped", "none is taken"],
)
def test_steps_in_fp16_are_held_to_grad_scalers(ours: list[Scaled], theirs: list[Scaled], status: Status) -> None:
    assert scaled.judged(ours, theirs).status == status


def test_a_scale_that_does_not_come_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaled, "STEPS", 4)
    right = scaled.by_pytorch(CPU)
    assert scaled.judged(scaled.engines(CPU), right).status == "pass"
    monkeypatch.setattr(scaled, "SCALE", replace(scaled.SCALE, interval=100))
    assert scaled.judged(scaled.engines(CPU), right).status == "fail"
