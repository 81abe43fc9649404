"""Adapt diffusers' U-Net, which has its layers by level, and keeps query, key and value apart.

It numbers diffusion steps from 0, as the engine's waves do: its step t is step t + 1 of the task. How images become
noise is the scheduler's matter, whose file lies beside; without one it is as DDPMScheduler has it by default.
"""

from collections.abc import Iterator

import numpy as np

from engine.data.colours import CHANNELS
from engine.errors import UsageError
from engine.models.adapters.adapter import Adapter
from engine.models.adapters.options import Options
from engine.models.adapters.stored import Index, Names, Stored, stored
from engine.models.architecture import Architecture
from engine.models.unet.config import UNetConfig
from engine.models.unet.steps import GROUPS

CONDITIONS = {"default": False, "scale_shift": True}
SCHEDULES = {"linear": "linear", "squaredcos_cap_v2": "cosine"}
RESAMPLING = {"conv": "convolution", "resnet": "block"}
DOWN, UP = "down_block_types", "up_block_types"
TYPE_OF = {DOWN: "downsample_type", UP: "upsample_type"}
"""These options say how blocks with attention resample."""
ATTENDING = {DOWN: "AttnDownBlock2D", UP: "AttnUpBlock2D"}
PLAIN = {
    DOWN: {"DownBlock2D": "convolution", "ResnetDownsampleBlock2D": "block"},
    UP: {"UpBlock2D": "convolution", "ResnetUpsampleBlock2D": "block"},
}
"""The other blocks say it by their names."""
FIXED: dict[str, object] = {
    "in_channels": CHANNELS,
    "center_input_sample": False,
    "time_embedding_type": "positional",
    "mid_block_type": "UNetMidBlock2D",
    "mid_block_scale_factor": 1,
    "norm_num_groups": GROUPS,
    "add_attention": True,
    "class_embed_type": None,
    "num_class_embeds": None,
}
OF_DDPM = (
    *("DDPMScheduler", "DDPMParallelScheduler", "DDIMScheduler", "DDIMParallelScheduler", "PNDMScheduler"),
    *("DEISMultistepScheduler", "DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler"),
    "UniPCMultistepScheduler",
)
"""By these images become noise as by DDPM, whatever each samples by."""
OF_SAMPLING = (
    *("_diffusers_version", "_use_default_values", "clip_sample", "clip_sample_range", "variance_type", "eta"),
    *("thresholding", "dynamic_thresholding_ratio", "sample_max_value", "timestep_spacing", "steps_offset"),
    *("set_alpha_to_one", "skip_prk_steps", "solver_order", "algorithm_type", "solver_type", "lower_order_final"),
    *("euler_at_final", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas"),
    *("final_sigmas_type", "lambda_min_clipped", "predict_x0", "disable_corrector", "solver_p", "flow_shift"),
    *("time_shift_type", "sigma_min", "sigma_max"),
)
DEFAULT_CHANNELS = (224, 448, 672, 896)
DEFAULT_BLOCKS = {
    DOWN: ("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
    UP: ("AttnUpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
}
NO_MATTER = ("_class_name", "_diffusers_version", "_use_default_values", "num_train_timesteps")


def unet(options: Options, name: str, sequence: int | None, dropout: float | None) -> UNetConfig:
    """Read the configuration of a UNet2DModel."""
    if sequence is not None:
        raise UsageError(f"{name} takes images, whose pixels are its sequence: leave --seq out.")
    options.forget(*NO_MATTER)
    for option, value in FIXED.items():
        if value is not None:
            options.refuse_none(option, value)
        options.require(option, value, default=value)
    options.require("act_fn", "silu", "swish", default="silu")
    scales = CONDITIONS[options.known("resnet_time_scale_shift", CONDITIONS, "default")]
    # a middle without a norm before its attention is what scale_shift alone makes
    options.require("attn_norm_num_groups", GROUPS, *(() if scales else (None,)), default=None)
    channels = options.several("block_out_channels", DEFAULT_CHANNELS)
    base = channels[0]
    if any(size % base for size in channels):
        raise options.refusal(f"block_out_channels={list(channels)}", "multiples of the first")
    options.require("time_embedding_dim", None, 4 * base, default=None)
    options.require("downsample_padding", 0, 1, default=1, keep=True)
    sines_first = not options.take("flip_sin_to_cos", True)
    options.require("freq_shift", int(sines_first), default=0)
    attends, resampling = _blocks(options, len(channels))
    schedule, steps = _noise(options)
    image: int = options.take("sample_size")
    options.require("out_channels", CHANNELS, 2 * CHANNELS, default=CHANNELS, keep=True)  # with a learned variance
    network = UNetConfig(
        name,
        base,
        multipliers=tuple(size // base for size in channels),
        depth=options.take("layers_per_block", 2),
        attention=tuple(image // 2**level for level, attend in enumerate(attends) if attend),
        head_channels=options.take("attention_head_dim", 8),
        level_heads=1 if options.says_none("attention_head_dim") else None,
        resampling=resampling,  # type: ignore[arg-type]
        padding="around" if options.take("downsample_padding", 1) else "after",
        sines_first=sines_first,
        scales=scales,
        norm_eps=options.positive("norm_eps", 1e-5),
        image=image,
        channels_out=options.take("out_channels", CHANNELS),
        schedule=schedule,  # type: ignore[arg-type]
        diffusion_steps=steps,
        dropout=options.dropout(["dropout"], [], 0.0, dropout),
    )
    options.finish()
    return network


def _blocks(options: Options, levels: int) -> tuple[list[bool], str]:
    """Read which levels attend, and how images are resampled."""
    attends: dict[str, list[bool]] = {}
    resampling: set[str] = set()
    for side in (DOWN, UP):
        types = [kind.removeprefix("UNetRes") for kind in options.several(side, DEFAULT_BLOCKS[side])]
        of_attending = RESAMPLING[options.known(TYPE_OF[side], RESAMPLING, "conv")]
        known = {**PLAIN[side], ATTENDING[side]: of_attending}
        for kind in types:
            if kind not in known:
                raise options.refusal(f"{kind} among its {side}", " and ".join(known))
        if len(types) != levels:
            raise options.refusal(
                f"{len(types)} {side} for {levels} block_out_channels", "as many of one as of the other"
            )
        attends[side] = [kind == ATTENDING[side] for kind in types]
        resampling |= {known[kind] for kind in types[:-1]}
    if attends[UP][::-1] != attends[DOWN]:
        raise options.refusal(f"other levels that attend by {UP} than by {DOWN}", "the same")
    if len(resampling) > 1:
        raise options.refusal("levels that are resampled by convolutions and others by residual blocks", "one of both")
    return attends[DOWN], next(iter(resampling), "block")


def _noise(options: Options) -> tuple[str, int]:
    """Read the schedule of noise and its steps. What is forgotten of a scheduler is about sampling."""
    _, scheduler = options.within("scheduler")
    scheduler.known("_class_name", OF_DDPM, "DDPMScheduler")
    scheduler.forget(*OF_SAMPLING)
    scheduler.require_off("use_flow_sigmas", "use_dynamic_shifting")
    scheduler.require("prediction_type", "epsilon", default="epsilon")
    scheduler.require("trained_betas", None, default=None)
    scheduler.require_off("rescale_betas_zero_snr")
    steps: int = scheduler.take("num_train_timesteps", 1000)
    schedule = scheduler.one_of("beta_schedule", SCHEDULES, "linear")
    if schedule == "linear":
        for option, of_1000 in (("beta_start", 1e-4), ("beta_end", 0.02)):
            scheduler.require(option, of_1000 * 1000 / steps, default=of_1000)
    scheduler.forget("beta_start", "beta_end")  # which another schedule doesn't ask for
    scheduler.finish()
    return schedule, steps


def unet_stored(architecture: Architecture) -> Stored:
    """Say where a UNet2DModel keeps its parameters."""
    assert isinstance(architecture, UNetConfig)
    names: dict[str, str | list[tuple[str, Index]]] = {
        "time.fc1": "time_embedding.linear_1",
        "time.fc2": "time_embedding.linear_2",
        "conv_in": "conv_in",
        "norm": "conv_norm_out",
        "conv_out": "conv_out",
    }
    for number, (step, path) in enumerate(zip(architecture.steps, _paths(architecture), strict=True)):
        attention, rows = path.replace("resnets", "attentions"), np.arange(step.channels)
        layers: Names = {
            "residual.norm1": f"{path}.norm1",
            "residual.conv1": f"{path}.conv1",
            "residual.embedding": f"{path}.time_emb_proj",
            "residual.norm2": f"{path}.norm2",
            "residual.conv2": f"{path}.conv2",
            "residual.skip": f"{path}.conv_shortcut",
            "resampling.conv": f"{path}.conv",
            "attention.norm": f"{attention}.group_norm",
            "attention.attention.qkv": [(f"{attention}.to_{part}", rows) for part in "qkv"],
            "attention.attention.out": f"{attention}.to_out.0",
        }
        names |= {f"blocks.{number}.{layer}": where for layer, where in layers.items()}  # type: ignore[misc]
    return stored(architecture, names)


def _paths(shape: UNetConfig) -> Iterator[str]:
    """Name the residual block of each step, or its convolution."""
    levels = len(shape.multipliers)
    for level in range(levels):
        yield from (f"down_blocks.{level}.resnets.{number}" for number in range(shape.depth))
        yield from (f"down_blocks.{level}.downsamplers.0" for _ in range(level < levels - 1))
    yield from ("mid_block.resnets.0", "mid_block.resnets.1")
    for level in range(levels):
        yield from (f"up_blocks.{level}.resnets.{number}" for number in range(shape.depth + 1))
        yield from (f"up_blocks.{level}.upsamplers.0" for _ in range(level < levels - 1))


UNET = Adapter(
    package="diffusers",
    network="UNet2DModel",
    model_type="UNet2DModel",
    attention="Attention",
    modules=frozenset(
        {
            *("Timesteps", "TimestepEmbedding", "ResnetBlock2D", "Downsample2D", "Upsample2D", "UNetMidBlock2D"),
            *(*PLAIN[DOWN], *PLAIN[UP], *ATTENDING.values()),
        }
    ),
    read=unet,
    stored=unet_stored,
    files="diffusion_pytorch_model",
    scheduler=("scheduler_config.json", "../scheduler/scheduler_config.json"),
    parts_in_files={".query.": ".to_q.", ".key.": ".to_k.", ".value.": ".to_v.", ".proj_attn.": ".to_out.0."},
)
