"""litgpt, through Lightning's Fabric."""

from engine.grid import Grid
from engine.peers.contest import WHOLE, Contest
from engine.peers.known.ddp import DISTRIBUTED

CONTESTS = (
    Contest(
        "litgpt",
        "litgpt through Fabric, DDP",
        Grid(data=2),
        0.95,
        "engine.peers.external.litgpt:LitGPT",
        library="litgpt",
        splits=("data",),
        does=WHOLE,
        recomputes=False,
    ),
)
OPTIONS = {"litgpt": {"DDPStrategy": DISTRIBUTED}}
