"""Hashes of what training gives, to be compared before and after the engine is rebuilt: equal to the last bit.

Losses, gradients and weights of two steps of every family, on grids that use each axis alone, three together and two
stages, in fp32 and bf16, with no overlap and with all of them; and of the trainer with AdamW and clipping. Processes
talk over gloo, whose sums have one order. Hashes are of one machine: of its matrix products and versions.

    python tests/engine/same_numbers.py --out before.json
    python tests/engine/same_numbers.py --against before.json    # exit code 1 if anything differs
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from library_models import build
from real_ranks import run_processes
from test_parity import BERT, EAGER, LLAMA, SMALL, VIT
from test_unet_grid import GUIDED
from torch import Tensor
from trainers import trainer_of
from training import Case, train_parallel

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.models.adapters.library import understand
from engine.models.choice import ModelChoice
from engine.overlap.flags import ALL, Overlap
from engine.training.config import TrainConfig
from engine.training_record import OptimConfig

GRIDS = ("1x1x1x1", "2x1x1x1", "1x2x1x1", "1x1x2x1", "1x1x1x2", "2x2x2x1", "1x1x1x1p2")
PRECISIONS = ("fp32", "bf16")
OVERLAPS = {"none": Overlap(), "all": EAGER}
TRANSFORMERS = "neox"


def families() -> dict[str, Case]:
    """One case a family, with what its layers have: dropout, recomputation, micro-batches."""
    case = Case(SMALL, sequences=16, micro_batches=2, checkpoint=1)
    two = {name: replace(shape, dropout=0.2) for name, shape in {"gpt": SMALL, "bert": BERT, "vit": VIT}.items()}
    networks = two | {
        "llama": LLAMA,
        "unet": GUIDED,
        TRANSFORMERS: understand(build(TRANSFORMERS, num_hidden_layers=2)).architecture,
    }
    return {
        name: replace(case, config=network, checkpoint=3 if name == "unet" else 1) for name, network in networks.items()
    }


def hashed(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The digest of names and of each bit of the values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def run_cases(comm: Comm, cases: dict[str, Case]) -> dict[str, str]:
    """Train each case on these ranks."""
    found = {}
    for name, case in cases.items():
        outcome = train_parallel(case, comm)
        found[f"{name} losses"] = " ".join(loss.hex() for loss in outcome.losses)
        found[f"{name} gradients"] = hashed(outcome.gradients.items())
        found[f"{name} weights"] = hashed(outcome.parameters.items())
    return found


def run_trainer(comm: Comm, precision: str) -> dict[str, str]:
    """Train GPT as `train` does, with AdamW, clipping and masters on the host in bf16."""
    config = TrainConfig(
        model=ModelChoice(layers=2, hidden=96, heads=8, vocab=96, seq=16),
        grid=comm.grid,
        batch=Batch(16, 4),
        precision=precision,
        data="synthetic",
        iterations=3,  # type: ignore[arg-type]
        warmup=0,
        overlap=ALL,
        optim=OptimConfig(clip=0.1),
        offload=precision == "bf16",
        device="cpu",
    )
    trainer = trainer_of(config, comm)
    losses = [trainer.step().loss for _ in range(config.iterations)]
    name = f"trainer {precision}"
    return {
        f"{name} losses": " ".join(float(loss).hex() for loss in losses),
        f"{name} weights of rank {comm.rank}": hashed(trainer.model.local_parameters().items()),
    }


def rounds() -> Iterator[tuple[str, dict[str, Case]]]:
    """The cases of each grid."""
    for grid in GRIDS:
        cases = {}
        for family, case in families().items():
            for precision in PRECISIONS:
                for flags, overlap in OVERLAPS.items():
                    cases[f"{family} {precision} {flags}"] = replace(case, precision=precision, overlap=overlap)
        yield grid, cases


def measure() -> dict[str, str]:
    found: dict[str, str] = {}
    for grid, cases in rounds():
        ranks = run_processes(Grid.parse(grid), run_cases, cases)
        found |= {f"{grid} {name}": value for name, value in ranks[0].items()}
        for precision in PRECISIONS:
            for rank in run_processes(Grid.parse(grid), run_trainer, precision):
                found |= {f"{grid} {name}": value for name, value in rank.items()}
        sys.stderr.write(f"{grid}: {len(cases)} cases\n")
    return found


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Name what differs, is gone or new."""
    return [
        f"{name}: {before.get(name, 'not there')} before, {after.get(name, 'not there')} now"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the hashes here")
    parser.add_argument("--against", type=Path, help="compare with those written before")
    options = parser.parse_args()
    found = measure()
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))
    if not options.against:
        return 0
    differing = differences(json.loads(options.against.read_text()), found)
    sys.stdout.write("\n".join(differing or [f"all {len(found)} hashes are equal"]) + "\n")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
