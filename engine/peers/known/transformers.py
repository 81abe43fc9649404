"""Hugging Face's transformers: its networks on one device, and its own tensor parallelism."""

from engine.grid import Grid
from engine.peers.comparison import DECODERS, Comparison, Habits, Option

COMPARISONS = (
    Comparison(
        "transformers",
        "Hugging Face transformers",
        Grid(),
        "engine.peers.hugging_face:HuggingFace",
        target=None,
        families=DECODERS,
    ),
    Comparison(
        "transformers-tp",
        "transformers' own tensor parallelism",
        Grid(x=2),
        "engine.peers.external.transformers_tp:TransformersTP",
        splits=("tensor", "data"),
        families=DECODERS,
        does="vocabulary split over tensor ranks and logits gathered, activations whole on each, weights split "
        "over data ranks (FSDP), clipped by the norm over all ranks",
        about="tensor",
    ),
)
_FROM_CONFIG = {
    "from_config": {"attn_implementation": Option("sdpa", "sdpa", "transformers/modeling_utils.py (its default)")}
}
OPTIONS = {"transformers": _FROM_CONFIG, "transformers-tp": _FROM_CONFIG}
MEMORY = {"transformers": Habits(vocabulary=False), "transformers-tp": Habits(data="weights", vocabulary=False)}
