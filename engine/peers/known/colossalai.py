"""Colossal-AI's hybrid parallelism."""

from engine.grid import Grid
from engine.peers.comparison import DECODERS, Comparison, Habits, Option

COMPARISONS = (
    Comparison(
        "colossalai",
        "Colossal-AI",
        Grid(x=2),
        "engine.peers.external.colossalai:ColossalAI",
        library="colossalai",
        families=DECODERS,
        splits=("tensor", "pipeline", "data"),
        does="vocabulary split over tensor ranks, activations whole on each, GPT-2's attention in parts on "
        "processors, clipped by the norm over all ranks",
    ),
)
_PLUGIN = "colossalai/booster/plugin/hybrid_parallel_plugin.py"
OPTIONS = {
    "colossalai": {
        "HybridParallelPlugin": {
            "enable_flash_attention": Option(
                False, True, "colossalai/shardformer/layer/attn.py (else GPT-2's is in parts)"
            ),
            "enable_fused_normalization": Option(
                False, True, "colossalai/shardformer/layer/normalization.py", needs="apex"
            ),
            "enable_jit_fused": Option(False, True, "colossalai/kernel/jit"),
            "gradient_as_bucket_view": Option(True, True, _PLUGIN),
            "static_graph": Option(False, False, _PLUGIN),
            "overlap_p2p": Option(True, True, _PLUGIN),
        }
    }
}
MEMORY = {
    "colossalai": Habits(
        scores=True, fuses=("HybridParallelPlugin", "enable_flash_attention"), autocast=False, built="host"
    )
}
