"""Results of runs: their schema, the metrics in them, and judges of both."""

from typing import Literal

SamplerName = Literal["ddim", "ddpm"]
UNTUNED = "untuned"
"""Peer that is the engine itself, without its tuner."""
ANOTHER_COMMIT = "another-commit"
"""Peer that is the engine of another commit."""
