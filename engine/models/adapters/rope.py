"""transformers configures rotary positions in rope_parameters since version 5, in options of their own before.

What is said twice has to be the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.models.adapters.options import Options
from engine.models.llama.config import KEPT_BELOW, SLOWED_ABOVE, UNSCALED_SEQUENCE

LLAMA3 = {
    "original_max_position_embeddings": UNSCALED_SEQUENCE,
    "low_freq_factor": UNSCALED_SEQUENCE / SLOWED_ABOVE,
    "high_freq_factor": UNSCALED_SEQUENCE / KEPT_BELOW,
}
THETA, SHARE = "rope_theta", "partial_rotary_factor"
DEFAULT_THETA = 1e4


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions have these. theta: base of the frequencies. scaling: see LlamaConfig. share: of a head's
    features that are turned.
    """

    theta: float
    scaling: float
    share: float


def rope(options: Options, *, theta: str = THETA, share: str = "", default_share: float = 1.0) -> Rope:
    """Read what a configuration says of its rotary positions.

    theta, share: what these are called outside of rope_parameters. default_share: if nothing is said of it. Raises
    UsageError for a kind of positions that isn't known, and where two places contradict each other.
    """
    place, inner = options.within("rope_parameters", "rope_scaling")
    thetas = {theta: options.given_positive(theta), f"{place}.{THETA}": inner.given_positive(THETA)}
    shares = {f"{place}.{SHARE}": inner.given_positive(SHARE)}
    if share:
        shares[share] = options.given_positive(share)
    found = Rope(options.same(thetas, DEFAULT_THETA), _scaling(inner), options.same(shares, default_share))
    inner.finish()
    return found


def _scaling(options: Options) -> float:
    kind = options.same({name: options.given(name, "") for name in ("rope_type", "type")}, "default")
    if kind not in ("default", "llama3"):
        raise options.refusal(f"rope_type={kind!r}", "'default' or 'llama3'")
    return llama3(options, LLAMA3) if kind == "llama3" else 1.0


def llama3(options: Options, known: Mapping[str, float]) -> float:
    """Read Llama 3.1's scaling, whose factor may be any. known: what the others have to be, by their names."""
    for name, value in known.items():
        options.require(name, value, default=None)
    factor = options.given_positive("factor")
    if factor is None:
        raise options.refusal("factor=None", "a number")
    return factor
