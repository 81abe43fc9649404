"""The loss of fp16 is scaled, for gradients of its small range (Micikevicius et al. 2018, section 3.2). No torch.

Gradients below 2^-24 would vanish, and those above 65,504 overflow. So the loss is multiplied by a scale, which is as
large as no gradient overflows: where one does, the step is skipped and the scale halves, and after many good steps it
doubles. The numbers are those of torch.amp.GradScaler.
"""

from dataclasses import dataclass, replace

FIRST = 2.0**16
"""The scale starts so, with GradScaler's init_scale."""
INTERVAL = 2000
"""After so many good steps in a row it doubles: GradScaler's growth_interval."""


@dataclass(frozen=True, slots=True)
class LossScale:
    """It is the scale of a step's loss. good_steps: how many in a row have been taken at it; skipped: how many of all
    steps have been skipped. interval: so many good steps in a row double it.
    """

    value: float = FIRST
    good_steps: int = 0
    skipped: int = 0
    interval: int = INTERVAL

    def after(self, *, taken: bool) -> "LossScale":
        """Give the scale of the next step, once this one was taken or skipped."""
        if not taken:
            return replace(self, value=self.value / 2, good_steps=0, skipped=self.skipped + 1)
        if self.good_steps + 1 >= self.interval:
            return replace(self, value=self.value * 2, good_steps=0)
        return replace(self, good_steps=self.good_steps + 1)
