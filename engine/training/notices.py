"""Notices of what in a run is likely not meant, though nothing forbids it. No torch."""

from engine.footprint.fit import fits_nodes
from engine.overlap.flags import ALL
from engine.training.checks import CheckedRun
from engine.training_record import Training

MOST_NAMED = 5
WAITS = "--overlap data sums gradients early, but the optimizer waits for all of them: "
CLIPPED = WAITS + "clipping needs the norm of the whole gradient (--clip 0 steps each bucket as it is summed)."
SCALED = WAITS + "in fp16 a step is skipped where any gradient overflows."


def notices(run: CheckedRun) -> list[str]:
    """Say what of the run is likely not meant, a sentence each: a grid that ill suits the nodes, an overlap that was
    asked for by name and does nothing.
    """
    config, overlap, grid = run.config, run.training.overlap, run.grid
    found: list[str] = []
    if config.devices_per_node > 1 and not fits_nodes(grid, config.devices_per_node):
        found.append(
            f"Grid {grid} lays planes of x and y, {grid.plane} ranks each, across the border of nodes of "
            f"{config.devices_per_node} devices: their sums leave the node where grids of --grid auto don't."
        )
    if run.saved is not None and None in (run.saved.manifest.data, run.dataset.identity):
        found.append(
            f"Whether --data {config.data} is what {run.saved.folder} was trained on isn't known, as one of them is of "
            "an older Par4D, which kept no digests."
        )
    if run.pretrained is not None and run.pretrained.tokenizer is None and run.dataset.tokenizer is not None:
        found.append(
            f"Whether the tokens of --data {config.data} are those of {run.pretrained.folder} isn't known, as that has "
            "no tokenizer.json: --export writes the tokenizer of the data."
        )
    if config.model.folder is not None and run.pretrained is None:
        found.append(f"{config.model.folder} has no weights in safetensors yet, which train needs.")
    if config.export is not None and run.pretrained is not None:
        from engine.models.adapters.folder import list_unread  # loads numpy

        if names := list_unread(run.pretrained.folder):
            found.append(f"--export copies {', '.join(names)} as they are, which nothing here reads.")
    if run.pretrained is not None and run.dataset.classes and run.dataset.classes != run.pretrained.classes:
        found.append(
            f"The labels of --data {config.data} stand for {', '.join(run.dataset.classes[:MOST_NAMED])}, but those of "
            f"{run.pretrained.folder} for {', '.join(run.pretrained.classes[:MOST_NAMED]) or 'nothing that it names'}: "
            "an export keeps its id2label."
        )
    if run.saved is not None and not run.saved.manifest.sha256:
        found.append(
            f"Whether {run.saved.folder} is as it was written isn't known: it is of before there were digests."
        )
    if config.messages == "mpi" and not config.over_mpi(grid):
        found.append(f"--messages mpi carries nothing here: grid {grid} has one stage.")
    passes = run.training.passes(grid)
    if passes < grid.stages:
        found.append(
            f"{grid.stages} stages take turns with {passes} micro-batch{'es' if passes > 1 else ''} a step, so that "
            "most stand still: use a smaller --micro-batch or a larger --batch-size."
        )
    if str(overlap) == str(ALL):
        return found
    if overlap.cache and not run.training.checkpoint_activations:
        found.append(
            f"--overlap cache={overlap.cache} does nothing here: without --checkpoint-activations each weight is "
            "gathered only once."
        )
    if overlap.data and run.grid.model_replicas > 1:
        found += why_late(run.training)
    return found


def why_late(training: Training) -> list[str]:
    """Say why the optimizer steps no bucket of gradients before all are summed, if it doesn't."""
    return [SCALED] if training.precision == "fp16" else [CLIPPED] if training.optim.clip else []
