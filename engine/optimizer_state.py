"""An optimizer keeps this of every parameter, beside it and its gradient. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """Names of tensors as large as the parameter, in the master dtype: on the device and on the host."""

    device: tuple[str, ...] = ()
    host: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Give all names, as checkpoints have them."""
        return self.device + self.host

    def device_bytes(self, parameters: float) -> float:
        """Count the bytes that the device holds for parameters of so many bytes in the master dtype."""
        return len(self.device) * parameters

    def host_bytes(self, parameters: float) -> float:
        """Count the bytes that the host holds for them."""
        return len(self.host) * parameters

    def bucket_bytes(self, bucket: float) -> float:
        """Count the bytes of the device's buckets, of so many bytes of parameters each, where all else is offloaded."""
        return TURNS * (1 + len(self.names)) * bucket


BUCKET = 2**22
"""So many elements come from the host's memory to the device at a time; axonn-ipdps22 VI-C has 4 million."""
TURNS = 2
"""So many buckets are on the device at once: one that is stepped, and one that comes or goes."""

ADAMW = OptimizerState(device=("exp_avg", "exp_avg_sq"))
"""AdamW keeps its moments, under the names that torch.optim.AdamW gives them."""
OptimizerName = Literal["adamw", "none"]
STATES: Mapping[OptimizerName, OptimizerState] = {"adamw": ADAMW, "none": OptimizerState()}
