"""The result of a measurement: a failed one from when its ranks meet, what was measured in the end."""

import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch

from engine.comm.launch import Launch
from engine.errors import EngineError
from engine.files import locked
from engine.measure.clock_rate import clock_hz
from engine.result import provenance
from engine.result.schema import Result, read, write
from engine.training.failure import LOCK_S, UNFINISHED, end_after
from engine.training.gathered import Ranks

log = logging.getLogger(__name__)

Kind = Literal["gemm", "matmul", "memory", "latency", "collectives"]


class Begun:
    """What one rank knows of it. config: options after their defaults, without what every command has."""

    def __init__(
        self, kind: Kind, launch: Launch, device: torch.device, *, config: Mapping[str, Any], dtype: str,
        labels: dict[str, str], out: Path,
    ) -> None:  # fmt: skip
        self._launch, self._device, self._out = launch, device, out
        self._result = Result(
            kind=kind,
            status="failed",
            reason=UNFINISHED,
            told="nothing",
            labels=labels,
            config={"device": device.type, **config, "threads": torch.get_num_threads()},
            ranks=launch.world_size,
            dtype=dtype,
            provenance=provenance.collect(
                start=provenance.now(), launcher=launch.launcher, devices=[provenance.device_name(device)]
            ),
        )

    def announce(self) -> None:
        """Where there are several ranks, write that they have not ended: so says even a run that is killed."""
        if self._launch.rank == 0 and self._launch.world_size > 1:
            write(self._result, self._out)

    def fail(self, error: EngineError) -> NoReturn:
        """Write why, unless another rank has, and end this process, whatever its main thread is at.

        The ranks have met, so that a file that is there is surely theirs.
        """

        def tell() -> None:
            log.error("%s", error)
            with suppress(EngineError, OSError), locked(self._out.parent, LOCK_S):
                present = read(self._out)
                if present.told == "nothing":
                    ended = present.provenance.model_copy(update={"end": provenance.now()})
                    update = {"reason": str(error), "told": "symptom", "provenance": ended}
                    write(present.model_copy(update=update), self._out)

        end_after(tell)

    def end(self, reason: str | None, ranks: Ranks | None = None, **found: Any) -> Result:
        """The result, which rank 0 writes. reason: why it has failed. ranks: what they say of themselves; else this
        one's clock counts. found: what was measured, by its names in Result.
        """
        told: dict[str, Any] = {"end": provenance.now()}
        if ranks is not None:
            told |= {"hosts": tuple(dict.fromkeys(ranks.hosts)), "devices": tuple(dict.fromkeys(ranks.devices))}
            told |= {"clocks_hz": provenance.least(ranks.clocks)}
        elif reason is None:
            rate = clock_hz(self._device)
            told |= {"clocks_hz": {} if rate is None else {socket.gethostname(): rate}}
        ended = self._result.provenance.model_copy(update=told)
        found |= {"status": "failed" if reason else "ok", "reason": reason, "told": None, "provenance": ended}
        result = self._result.model_copy(update=found)
        if self._launch.rank == 0:
            write(result, self._out)
        return result
