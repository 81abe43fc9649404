"""Traces of the engine's step on the meta device."""

LOADED = ("engine.tracing.forecast", "torch._dynamo")
"""Modules that a process which traces grids needs; torch loads the second one at its first operator that is watched."""
