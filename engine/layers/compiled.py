"""Compilation of pure functions for GPUs by Inductor: one pass over memory, where PyTorch makes one an operator.

Processors run the plain function, the reference. TORCH_COMPILE_DISABLE=1 has everything run uncompiled, and so does a
GPU for which nothing can be compiled. Compiled code is kept in the user's cache folder, or TORCHINDUCTOR_CACHE_DIR.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from engine.errors import first_line
from engine.files import cache_folder

Given = ParamSpec("Given")
Found = TypeVar("Found")

log = logging.getLogger(__name__)

REMEDY = (
    "Install a C compiler such as gcc with Python's headers, and triton where it is missing, or set "
    "TORCH_COMPILE_DISABLE=1 to hide this."
)
FORMS = 64
"""Forms of a function, by formats, absent arguments and sizes: PyTorch would give up after eight."""


class Compiled(Generic[Given, Found]):
    """Function in two forms. plain: for processors; source: to be compiled, by default the same.

    Its first argument, a tensor, says where it runs. tried: whether Inductor may try several block sizes, for which it
    copies all that is written to.
    """

    def __init__(
        self, plain: Callable[Given, Found], source: Callable[Given, Found] | None = None, *, tried: bool = True
    ) -> None:
        self.plain, self.source, self._tried = plain, source or plain, tried

    def __call__(self, *given: Given.args, **named: Given.kwargs) -> Found:
        """Call the compiled function for tensors of a GPU, where there is a compiler for it."""
        first = given[0]
        assert isinstance(first, Tensor)
        if not fuses(first):
            return self.plain(*given, **named)
        if first.is_meta:
            return _traced(self.plain, *given, **named)  # type: ignore[misc]
        # Whether a gradient is wanted or a parameter is given would each be a form of its own.
        plain_tensors = (one.detach() if isinstance(one, Tensor) else one for one in given)
        _allow_forms()
        return self.fused(*plain_tensors, **named)  # type: ignore[arg-type]

    @cached_property
    def fused(self) -> Callable[Given, Found]:
        """Source, compiled when it is first called with such tensors."""
        return _compiled(self.source, {} if self._tried else {"triton.autotune_pointwise": False})


def _compiled(
    source: Callable[Given, Found], options: Mapping[str, Any] = MappingProxyType({})
) -> Callable[Given, Found]:
    folder = cache_folder()
    if folder is not None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    _allow_forms()
    from torch._inductor import config

    # Else a rank may add in another order than the next run, or than those of x, whose replicas have to stay the same:
    # it times some ways to add up a row, and takes the fastest. Older versions have no such option.
    alike = {"deterministic": True} if hasattr(config, "deterministic") else {}
    compiled: Callable[Given, Found] = torch.compile(source, fullgraph=True, options={**alike, **options})
    return compiled


_threads = threading.local()


def _allow_forms() -> None:
    """Raise the limit in this thread: PyTorch 2.13 keeps its settings by threads, and a GPU's backward has its own."""
    if not hasattr(_threads, "allowed"):
        from torch._dynamo import config

        _threads.allowed = config.recompile_limit = max(config.recompile_limit, FORMS)


_traced: Callable[..., Any] | None = None
"""Runs compiled functions on the meta device meanwhile."""


@contextmanager
def traced(run: Callable[..., Any]) -> Iterator[None]:
    """Give run each function that a GPU would run compiled, with its arguments, for networks on the meta device."""
    global _traced
    before, _traced = _traced, run
    try:
        yield
    finally:
        _traced = before


def fuses(tensor: Tensor) -> bool:
    """Return whether functions of this tensor run compiled."""
    return compiles(tensor.device) if tensor.is_cuda else tensor.is_meta and _traced is not None


def compiles(device: torch.device) -> bool:
    """Return whether functions of this device's tensors run compiled: a GPU for which Inductor may and can compile."""
    return device.type == "cuda" and not disabled() and why_not(device) is None


def disabled() -> bool:
    return os.environ.get("TORCH_COMPILE_DISABLE") == "1"


@cache
def why_not(device: torch.device) -> str | None:
    """Return why Inductor can compile nothing for a device here, and warn; None where it can."""
    why = _fault(device)
    if why is not None:
        log.warning(
            "Nothing can be compiled for %s here, so the layers run in more passes over memory than need be (%s). %s",
            device,
            why,
            REMEDY,
        )
    return why


def _fault(device: torch.device) -> str | None:
    """Compile the least of functions anew; return what is wrong."""
    from torch.utils._triton import has_triton

    if device.type == "cuda" and not has_triton():
        return "PyTorch finds no Triton that knows this GPU"
    one = torch.ones(1, device=device)
    with _fresh_cache():
        try:
            return None if _compiled(_increment)(one) == 2 else "1 + 1 isn't 2 when it is compiled"
        except Exception as error:  # Inductor, Triton and the compilers behind them have many kinds
            return first_line(error)


@contextmanager
def _fresh_cache() -> Iterator[None]:
    """Compile everything meanwhile, in this process: in a shared home another machine, with a compiler, may have left
    the code. Inductor's workers would outlive the folder.
    """
    from torch._inductor import config
    from torch._inductor.utils import fresh_inductor_cache

    here = config.patch({"compile_threads": 1, "fx_graph_remote_cache": False})
    folder = TemporaryDirectory(prefix="par4d-", ignore_cleanup_errors=True)
    with here, folder as name, fresh_inductor_cache(dir=name, delete=False):
        yield


def _increment(x: Tensor) -> Tensor:
    return x + 1
