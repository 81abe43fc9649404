"""A reason for a missed effect fits the side on which it was missed."""

import pytest

from engine.validation.document import Effect
from engine.validation.effects import NOT_KNOWN, explained


def effect(predicted: float) -> Effect:
    return Effect(
        name="overlap", setting="gpt", unit="%", predicted=predicted, published_low=5, published_high=8, source="a"
    )


@pytest.mark.parametrize(("predicted", "reason"), [(9, "it hides more"), (3, NOT_KNOWN), (5, ""), (8, "")])
def test_a_reason_for_too_much_is_none_for_too_little(predicted: float, reason: str) -> None:
    assert explained(effect(predicted), above="it hides more").reason == reason


def test_a_reason_for_too_little_is_none_for_too_much() -> None:
    assert explained(effect(3), below="little was left").reason == "little was left"
    assert explained(effect(9), below="little was left").reason == NOT_KNOWN
