"""Names that both results and commands know. No pydantic."""

UNTUNED = "untuned"
"""The peer that is the engine itself, without its tuner."""
