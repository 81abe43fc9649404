"""Results of runs: their schema, the metrics in them, and judges of both."""

from typing import Literal

SamplerName = Literal["ddim", "ddpm"]
UNTUNED = "untuned"
"""This peer is the engine itself, without its tuner."""
ANOTHER_COMMIT = "another-commit"
"""This peer is the engine of another commit."""
