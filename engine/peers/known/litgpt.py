"""litgpt, through Lightning's Fabric."""

from engine.grid import Grid
from engine.peers.comparison import DECODERS, WHOLE, Comparison, Habits
from engine.peers.known.ddp import DISTRIBUTED

COMPARISONS = (
    Comparison(
        "litgpt",
        "litgpt through Fabric, DDP",
        Grid(data=2),
        "engine.peers.external.litgpt:LitGPT",
        library="litgpt",
        families=DECODERS,
        splits=("data",),
        does=WHOLE,
        recomputes=False,
    ),
)
OPTIONS = {"litgpt": {"DDPStrategy": DISTRIBUTED}}
MEMORY = {"litgpt": Habits(vocabulary=False, built="host")}
