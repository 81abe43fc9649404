"""Megatron-core, without and with its sequence parallelism."""

from dataclasses import replace

from engine.grid import Grid
from engine.peers.comparison import DECODERS, STREAM_WHOLE, Comparison, Habits, Option, and_by_positions

COMPARISONS = and_by_positions(
    Comparison(
        "megatron-core",
        "Megatron-core",
        Grid(x=2),
        "engine.peers.external.megatron_core:MegatronCore",
        library="megatron-core",
        families=DECODERS,
        together=True,
        splits=("tensor", "pipeline", "data"),
        does=f"vocabulary split over tensor ranks, {STREAM_WHOLE}, attention in parts but with "
        "Transformer Engine, clipped by the norm over all ranks",
    )
)
_CONFIG = "megatron/core/transformer/transformer_config.py"
_DDP = "megatron/core/distributed/distributed_data_parallel_config.py"
_LAYERS = "megatron/core/tensor_parallel/layers.py"
_OPTIMIZER = "megatron/core/optimizer/optimizer_config.py"
OPTIONS = {
    "megatron-core": {
        "TransformerConfig": {
            "bias_dropout_fusion": Option(False, True, _CONFIG),
            "bias_activation_fusion": Option(
                False, True, "megatron/core/fusions/fused_bias_swiglu.py (gated networks only)"
            ),
            "masked_softmax_fusion": Option(
                False, True, "megatron/core/fusions/fused_softmax.py", needs="scaled_upper_triang_masked_softmax_cuda"
            ),
            "gradient_accumulation_fusion": Option(False, True, _LAYERS, needs="fused_weight_gradient_mlp_cuda"),
            "apply_rope_fusion": Option(False, True, _CONFIG, needs="transformer_engine"),
        },
        "layers": {
            "TEDotProductAttention": Option(
                False,
                True,
                "megatron/core/extensions/transformer_engine.py (else attention is in parts)",
                needs="transformer_engine",
            )
        },
        "environ": {
            "CUDA_DEVICE_MAX_CONNECTIONS": Option(
                None, 1, f"{_LAYERS} (so that kernels start in the order of their launch)"
            )
        },
        "DistributedDataParallelConfig": {
            "overlap_grad_reduce": Option(True, True, _DDP),
            "bucket_size": Option(
                4000000,
                None,
                "megatron/core/distributed/distributed_data_parallel.py (its default holds all of a network for "
                "processors)",
            ),
            "overlap_param_gather": Option(False, True, _DDP),
            "use_distributed_optimizer": Option(
                False, True, "megatron/core/optimizer/distrib_optimizer.py (takes GPUs)"
            ),
        },
        "OptimizerConfig": {
            "overlap_param_gather": Option(False, True, _OPTIMIZER),
            "use_distributed_optimizer": Option(False, True, _OPTIMIZER),
        },
    }
}
_HABITS = Habits(
    scores=True,
    fuses=("layers", "TEDotProductAttention"),
    divides=("OptimizerConfig", "use_distributed_optimizer"),
    autocast=False,
    built="host",
)
MEMORY = {"megatron-core": _HABITS, "megatron-core-sp": replace(_HABITS, stream=True, gathers=True)}
