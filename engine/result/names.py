"""Both results and commands know these names. No pydantic."""

UNTUNED = "untuned"
"""This peer is the engine itself, without its tuner."""
