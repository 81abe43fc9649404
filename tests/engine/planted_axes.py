"""Train on grids with two axes that engine/grid.py lacks: one that splits rows and does nothing else, as the data axis
does, and one without any role. A script: it fails unless losses, gradients, their norm and weights are those without.
"""

import sys
from pathlib import Path
from types import ModuleType

import engine

SOURCE = Path(engine.__path__[0], "grid.py")
PLANTED = {
    '    DATA = "data"\n': '    DATA = "data"\n    LATER = "later"\n    IDLE = "idle"\n',
    "    data: int = 0\n": "    data: int = 0\n    later: int = 0\n    idle: int = 0\n",
    "    data: int = 1\n": "    data: int = 1\n    later: int = 1\n    idle: int = 1\n",
    "(SHARDING, Axis.DATA)": "(SHARDING, Axis.DATA, Axis.LATER)",
}


def plant() -> ModuleType:
    """Plant the room with its two new axes in the place of engine.grid for all later imports."""
    text = SOURCE.read_text()
    for old, new in PLANTED.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    module = ModuleType("engine.grid")
    sys.modules["engine.grid"] = module
    exec(compile(text, str(SOURCE), "exec"), module.__dict__)
    return module


def main() -> None:
    grids = plant()
    import torch
    from training import Case, Outcome, start, step_parallel, train_parallel
    from virtual_ranks import run_ranks

    from engine.comm.funnel import Comm
    from engine.models.gpt.config import GPTConfig

    config = GPTConfig("tiny", layers=2, hidden=8, heads=2, vocabulary=16, sequence=4, tied=True, dropout=0.1)
    case = Case(config, sequences=8, checkpoint=True, steps=1)

    def trained(comm: Comm) -> tuple[Outcome, float]:
        model = start(case, comm)
        step_parallel(case, model, 0)
        return train_parallel(case, comm), model.gradient_norm().item()

    found, norm = run_ranks(grids.Grid(z=2, data=2, later=2, idle=2), trained)[0]
    usual, usual_norm = run_ranks(grids.Grid(z=2, data=4), trained)[0]
    torch.testing.assert_close(
        [found.losses, norm, found.gradients, found.parameters],
        [usual.losses, usual_norm, usual.gradients, usual.parameters],
        rtol=1e-12,
        atol=1e-14,
    )


if __name__ == "__main__":
    main()
