"""Rotary positions as transformers configures them: rope_parameters, before version 5 rope_theta and rope_scaling."""

from dataclasses import dataclass

from engine.models.adapters.options import Options
from engine.models.llama.shape import KEPT_BELOW, SLOWED_ABOVE, UNSCALED_SEQUENCE

LLAMA3 = {
    "original_max_position_embeddings": UNSCALED_SEQUENCE,
    "low_freq_factor": UNSCALED_SEQUENCE / SLOWED_ABOVE,
    "high_freq_factor": UNSCALED_SEQUENCE / KEPT_BELOW,
}


@dataclass(frozen=True, slots=True)
class Rope:
    """theta: base of the frequencies. scaling: see LlamaShape. share: of a head's features that are turned."""

    theta: float
    scaling: float
    share: float


def rope(options: Options, *, theta: str = "rope_theta", share: str = "", shared: float = 1.0) -> Rope:
    """Raises UsageError for a kind of positions that isn't known. theta, share: what these were called before version
    5. shared: what is turned if nothing is said of it.
    """
    before = options.take(theta, 1e4), options.take(share, shared) if share else shared
    given = options.group("rope_scaling") | options.group("rope_parameters")
    kind = given.pop("rope_type", given.pop("type", "default"))
    given.pop("type", None)
    found = float(given.pop("rope_theta", before[0])), float(given.pop("partial_rotary_factor", before[1]))
    scaling = float(given.pop("factor", 1.0)) if kind == "llama3" else 1.0
    known: dict[str, float] = LLAMA3 if kind == "llama3" else {}
    if kind not in ("default", "llama3") or given != known:
        whole = {"rope_type": kind} | given
        raise options.refusal(f"rotary positions of {whole}", f"the default kind, and llama3 with {LLAMA3},")
    return Rope(found[0], scaling, found[1])
