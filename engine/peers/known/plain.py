"""PyTorch on one device, as any of its users writes a training step, and the same compiled."""

from engine.grid import Grid
from engine.peers.comparison import Comparison, Option

COMPARISONS = (
    Comparison("plain", "plain PyTorch", Grid(), 1.0, "engine.peers.plain:Plain"),
    Comparison("compile", "plain PyTorch, torch.compile", Grid(), 1.05, "engine.peers.compiled:Compiled"),
)
OPTIONS = {
    "compile": {
        "torch.compile": {
            "dynamic": Option(False, False, "torch/__init__.py (shapes never change)"),
            "mode": Option("default", "default", "torch/__init__.py"),
        }
    }
}
