"""PyTorch on one device, as any of its users writes a training step, the same compiled, and in its other format."""

from engine.grid import Grid
from engine.peers.comparison import Comparison, Habits, Option

COMPARISONS = (
    Comparison("plain", "plain PyTorch", Grid(), "engine.peers.plain:Plain", target=1.0, together=True),
    Comparison(
        "compile", "plain PyTorch, torch.compile", Grid(), "engine.peers.plain:Compiled", target=1.05, together=True
    ),
    Comparison(
        "channels-last",
        "plain PyTorch, channels_last",
        Grid(),
        "engine.peers.plain:ChannelsLast",
        target=None,
        families=("unet",),
        together=True,
    ),
)
OPTIONS = {
    "compile": {
        "torch.compile": {
            "dynamic": Option(False, False, "torch/__init__.py (shapes never change)"),
            "mode": Option("default", "default", "torch/__init__.py"),
        }
    }
}
MEMORY = dict.fromkeys(("plain", "compile", "channels-last"), Habits(vocabulary=False))
