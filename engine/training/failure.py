"""Result of a run that has failed, or has not ended yet. No torch, which takes long to load."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.comm.launch import Launch
from engine.data.dataset import Text
from engine.footprint.fit import parameters_per_rank
from engine.grid import Grid
from engine.reporter import Reporter, Status
from engine.result import provenance
from engine.result.schema import Diagnosis, Iteration, Model, Result, read, write
from engine.training.checks import CheckedRun
from engine.training_record import Training

if TYPE_CHECKING:
    from engine.training.gathered import Ranks


class RunReporter(Reporter[Result]):
    """Result of a run on one of its ranks."""

    def __init__(self, run: CheckedRun, launch: Launch) -> None:
        super().__init__(launch, run.config.out, read, write)
        self._run = run
        self.iterations: list[Iteration] = []
        """Those so far."""
        self.training = False
        """Whether iterations have begun."""
        self.devices: tuple[str, ...] = ()
        """Device of this rank, once known."""
        self.resolved: dict[str, Any] = {}
        """Options that only torch settles, once known."""

    def document(
        self, status: Status, reason: str | None, diagnosis: Diagnosis | None, ranks: "Ranks | None" = None
    ) -> Result:
        """Make what every result of this run holds. ranks: without them host and device are this rank's."""
        run, config = self._run, self._run.config
        return Result(
            kind=run.kind,
            status=status,
            reason=reason,
            told=diagnosis,
            labels=dict(config.labels),
            config=run.as_options() | self.resolved,
            ranks=self.launch.world_size,
            grid=str(run.grid),
            model=recorded(run.training, run.grid),
            iterations=tuple(self.iterations),
            dtype=config.precision,
            provenance=provenance.collect(
                start=self.start,
                launcher=self.launch.launcher,
                hosts=ranks.hosts if ranks else (),
                devices=ranks.devices if ranks else self.devices,
                clocks=ranks.clocks if ranks else (),
                bindings=self.bindings,
            ),
        )

    def known(self, document: Result) -> dict[str, Any]:
        return {"config": document.config | self.resolved, "iterations": tuple(self.iterations)}

    def when(self, error: Exception) -> str:
        if not self.met:
            return super().when(error)
        if not self.training:
            return "before iteration 0"
        done = len(self.iterations)
        return f"in iteration {done}" if done < self._run.config.iterations else "after the last iteration"

    def end_well(self, ranks: "Ranks", fields: Mapping[str, Any]) -> None:
        """Write the result of a run that has ended well, with these fields, on rank 0. ranks: what they say of
        themselves.
        """
        update = {"memory": ranks.memory, "transport": ranks.transport, **fields}
        self.succeed(self.document("ok", None, None, ranks).model_copy(update=update))


def recorded(training: Training, grid: Grid) -> Model:
    model = training.model
    return Model(
        name=model.name,
        family=model.family,
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        vocabulary=data.vocabulary if isinstance(data := model.task.data, Text) else None,
        sequence=model.sequence,
        parameters=model.parameters,
        parameters_per_rank=parameters_per_rank(training, grid),
    )
