"""AxoNN: its rows with copies of data, and with its depth."""

from dataclasses import replace

from engine.grid import Grid
from engine.peers.comparison import DECODERS, Comparison, Habits, Option

_DOES = "head split over tensor ranks and logits gathered, table and activations whole on each, "
_ROWS = Comparison(
    "axonn",
    "AxoNN, rows and data",
    Grid(x=2),
    "engine.peers.external.axonn:AxoNN",
    ties=False,
    library="axonn",
    splits=("tensor", "data"),
    families=DECODERS,
    does=f"{_DOES}clipped by the norm over all ranks",
)
COMPARISONS = (
    _ROWS,
    replace(
        _ROWS,
        name="axonn-depth",
        peer="AxoNN, depth and rows",
        grid=Grid(z=2),
        splits=("data", "tensor"),
        does=f"{_DOES}weights split over data ranks, clipped by the norm over all ranks",
        about="data",
        arguments={"by_depth": True},
    ),
)
_SOURCE = "axonn/intra_layer/__init__.py"
OPTIONS = {
    "axonn": {
        "optimize_communication": {
            "overlap_all_reduce": Option(True, True, _SOURCE),
            "overlap_reduce_scatter": Option(True, True, f"{_SOURCE} (not of what is recomputed)"),
            "overlap_all_gather": Option(True, True, f"{_SOURCE} (of its depth)"),
        },
        "Linear": {"cache_weights_in_all_gather": Option(True, True, "axonn/intra_layer/fully_connected.py")},
    }
}
_HABITS = Habits(vocabulary=False, built="host")
MEMORY = {"axonn": _HABITS, "axonn-depth": replace(_HABITS, data="weights", keeps="always")}
