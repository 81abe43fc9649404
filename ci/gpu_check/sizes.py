"""The checks train the largest networks that fit: a published one as a whole, and others cut to their first blocks. A
rehearsal trains tiny ones. No torch.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from engine import training_record as record
from engine.batch import Batch
from engine.footprint.memory import Footprint, Needs
from engine.grid import Grid
from engine.models.choice import ModelChoice
from engine.overlap.flags import ALL
from engine.peers.comparison import Case
from engine.peers.memory import Room, side_bytes
from engine.peers.registry import COMPARISONS
from engine.training_record import BYTES, PrecisionName


@dataclass(frozen=True, slots=True)
class TrainingSize:
    """A network and its batch on one device. micro: so many sequences are computed at once, if not all."""

    choice: ModelChoice
    sequences: int
    precision: PrecisionName
    micro: int | None = None

    @property
    def network(self) -> list[str]:
        """Return the network and the number format as options of the engine's commands."""
        given = {name: value for name, value in asdict(self.choice).items() if value not in (None, False)}
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        return [*words, "--precision", self.precision]

    @property
    def options(self) -> list[str]:
        """Return all of it as options of commands that train."""
        parts = ["--micro-batch", str(self.micro)] if self.micro else []
        return [*self.network, "--batch-size", str(self.sequences), *parts]

    @property
    def words(self) -> str:
        parts = f", {self.micro} at once," if self.micro else ""
        return f"{self.choice.resolve().name}, {self.sequences} sequences{parts} in {self.precision}"

    @property
    def needs(self) -> Needs:
        """Return the bytes that a step takes by the plan."""
        batch = Batch(self.sequences, self.micro)
        training = record.Training(self.choice.resolve(), batch, precision=self.precision, overlap=ALL)
        return Footprint(training).on(Grid())

    @property
    def wider_sums(self) -> float:
        """Gradients take more bytes than plain PyTorch's: those that add up over micro-batches are in fp32."""
        if self.micro is None or self.precision != "bf16":
            return 0.0
        return (BYTES["fp32"] - BYTES["bf16"]) * self.choice.resolve().parameters

    def fits(self, memory_bytes: float) -> bool:
        """Say whether both sides of a contest fit at once, so that they take turns."""
        batch = Batch(self.sequences, self.micro)
        case = Case(self.choice.resolve(), batch, precision=self.precision, peer_micro_batch=self.micro)
        return Room("cuda", memory_bytes).fits(sum(side_bytes(COMPARISONS["plain"], case, "cuda")))

    def fits_alone(self, memory_bytes: float) -> bool:
        """Say whether the engine's side fits."""
        return Room("cuda", memory_bytes).fits(self.needs.total)


def _cut(name: str, layers: int, sequences: int) -> TrainingSize:
    return TrainingSize(ModelChoice(model=name, layers=layers, seq=2048), sequences, "bf16")


def _whole(at_once: int) -> TrainingSize:
    """Return the published network. A step has so many tokens that the optimizer is a small part of it."""
    return TrainingSize(ModelChoice(model="gpt3-1.3b", seq=2048), 8, "bf16", None if at_once == 8 else at_once)


TINY = {family: TrainingSize(ModelChoice(model=f"{family}-test"), 4, "fp32") for family in ("gpt", "llama")}
TINY_WHOLE = replace(TINY["gpt"], micro=2)
WHOLE = tuple(map(_whole, (8, 4, 2, 1)))
ON_GPU: dict[str, Sequence[TrainingSize]] = {
    "gpt": (_cut("gpt-5b", 3, 8), _cut("gpt-5b", 3, 4), _cut("gpt3-1.3b", 8, 4), _cut("gpt3-1.3b", 4, 2)),
    "llama": (*(_cut("llama-3.2-3b", 6, n) for n in (8, 4, 2)), _cut("llama-3.2-3b", 3, 2), _cut("llama-3.2-1b", 4, 2)),
}
"""The first two of each are of about a billion parameters. Of 16 GiB llama has none whose sides fit at once."""
ONE_RANK = {"cpu": TINY["gpt"], "cuda": _cut("gpt3-1.3b", 4, 2)}
"""Short steps, as the cost of flags is the host's."""


def training(family: str, device: str, memory_bytes: float) -> TrainingSize:
    """Return the largest training that fits, or else the smallest."""
    if device == "cpu":
        return TINY[family]
    return next((one for one in ON_GPU[family] if one.fits(memory_bytes)), _smallest(family))


def largest(device: str, memory_bytes: float, *, alone: bool = False) -> TrainingSize:
    """Return the whole network, whose elementwise part isn't hidden by its head, or else the largest GPT that is cut.

    alone: whether no other side is beside it.
    """
    if device == "cpu":
        return TINY_WHOLE
    fitting = (one for one in WHOLE if (one.fits_alone if alone else one.fits)(memory_bytes))
    return next(fitting, None) or training("gpt", device, memory_bytes)


def _smallest(family: str) -> TrainingSize:
    last = ON_GPU[family][-1]
    return replace(last, choice=replace(last.choice, layers=1, seq=512), sequences=1)
