"""A network and an optimizer of anyone's train in bf16 throughout, as in the engine and large runs.

Parameters, their gradients and the residual stream are bf16; AdamW steps fp32 masters of the parameters, and the norm
and the clipping are of gradients in fp32. Nothing else is cast: the angles of rotary positions stay as they are. With
autocast, or in another format, a network's own parameters are its masters. Gradients of micro-batches add up in bf16,
as PyTorch adds them.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from engine.peers.comparison import Case
from engine.peers.peer import Decays, adamw, is_matrix
from engine.precision import Precision


def is_pure(case: Case) -> bool:
    """Say whether parameters are stored in the compute format, beside masters."""
    precision = Precision.parse(case.precision)
    return precision.compute != precision.master and not case.autocast


class Masters:
    """An optimizer steps them. pairs: parameters of a network, each with its master; none where it steps these
    themselves.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], pairs: Sequence[tuple[nn.Parameter, nn.Parameter]] = ()
    ) -> None:
        self.parameters, self._pairs = list(parameters), pairs

    @classmethod
    def of(cls, case: Case, network: nn.Module) -> "Masters":
        """Make fp32 masters where the case is pure: the network's parameters are replaced by ones in bf16, before DDP,
        which keeps what it finds.
        """
        if not is_pure(case):
            return cls(network.parameters())
        pairs = _narrowed(network, Precision.parse(case.precision).compute)
        return cls((master for _, master in pairs), pairs)

    def adamw(self, case: Case, *kinds: Iterable[nn.Parameter], decays: Decays = is_matrix) -> torch.optim.AdamW:
        """Make peer.adamw of kinds of masters: after each step the network's parameters are these, rounded."""
        optimizer = adamw(case.optim, *kinds, decays=decays)
        if self._pairs:
            optimizer.register_step_post_hook(lambda *_: self._round())
        return optimizer

    def take_gradients(self) -> None:
        """Move gradients from the network to its masters: one after the other, as both at once may not fit."""
        for parameter, master in self._pairs:
            if parameter.grad is not None:
                master.grad, parameter.grad = parameter.grad.to(master.dtype), None

    @torch.no_grad()
    def _round(self) -> None:
        torch._foreach_copy_(
            [_own(parameter) for parameter, _ in self._pairs], [_own(master) for _, master in self._pairs]
        )


def _own(tensor: Tensor) -> Tensor:
    """Give what this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.data


def _narrowed(network: nn.Module, dtype: torch.dtype) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Replace each parameter of a network; returns the new ones, each with the one that was there."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in network.modules():
        for name, master in list(module.named_parameters(recurse=False)):
            if master not in made:  # else tied
                made[master] = nn.Parameter(master.detach().to(dtype))
                if not isinstance(master, DTensor):
                    made[master].__dict__.update(master.__dict__)  # libraries keep there how it is split
            setattr(module, name, made[master])
    return [(narrow, master) for master, narrow in made.items()]
