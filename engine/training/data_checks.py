"""Whether data are those that a network knows, and what is evaluated of them. No torch."""

from typing import TYPE_CHECKING

from engine.data.dataset import Dataset
from engine.errors import UsageError
from engine.models.architecture import Architecture
from engine.training.config import TrainConfig

if TYPE_CHECKING:
    from engine.models.adapters.folder import Pretrained

MOST_NAMED = 5
"""Classes that an error names."""


def open_evaluated(config: TrainConfig, model: Architecture, dataset: Dataset) -> Dataset | None:
    """Open the data that is evaluated. Raises UsageError for less than a batch, or what stands for something else than
    what is trained on.
    """
    folder, every, batch = config.evaluation_data, config.evaluate_every, config.batch.sequences
    if (folder is None) != (every == 0) or every < 0:
        raise UsageError(
            "--evaluation-data and --evaluate-every go together: give a prepared folder and a number of steps from 1 "
            "up, or leave both out."
        )
    if folder is None:
        return None
    found = model.task.data.open(folder)
    if found.count < batch:
        raise UsageError(
            f"--evaluation-data {folder} has {found.count} {model.task.data.samples}, but whole batches of {batch} are "
            "evaluated: prepare more, or take a smaller --batch-size."
        )
    if dataset.classes and found.classes != dataset.classes:
        raise UsageError(
            f"The classes of --evaluation-data {folder} are {', '.join(found.classes[:MOST_NAMED])}, but those of "
            f"--data {', '.join(dataset.classes[:MOST_NAMED])}: prepare both of the same folders of classes."
        )
    if dataset.tokenizer is not None and found.tokenizer is not None:
        from engine.data.tokenizer import are_same

        if not are_same(dataset.tokenizer, found.tokenizer):
            raise UsageError(
                f"The tokens of --evaluation-data {folder} are of another tokenizer than those of --data: prepare it "
                f"with `data prepare --tokenizer {dataset.tokenizer.parent}`."
            )
    return found


def check_tokenizer(pretrained: "Pretrained", dataset: Dataset) -> None:
    """Raise UsageError for text whose tokens are others than those that the network knows."""
    own = pretrained.tokenizer
    if own is None or dataset.tokenizer is None:
        return
    from engine.data.tokenizer import are_same

    if not are_same(own, dataset.tokenizer):
        raise UsageError(
            f"The tokens of {dataset.tokenizer.parent} are of another tokenizer than {own}, so the network would learn "
            f"them anew: prepare the text with `data prepare --tokenizer {pretrained.folder}`."
        )


def check_classes(pretrained: "Pretrained", dataset: Dataset) -> None:
    """Raise UsageError for images whose classes are the network's in another order."""
    own = dataset.classes
    theirs = pretrained.classes if own else ()
    if own != theirs and sorted(own) == sorted(theirs):
        raise UsageError(
            f"The images' classes are {', '.join(own)}, but {pretrained.folder} has {', '.join(theirs)}: "
            "put its id2label, or the folders that were prepared, in the other's order."
        )
