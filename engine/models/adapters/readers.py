"""Parts of a configuration that networks.yaml can't say: a function for each network that has some. No torch.

Each takes the options that are left and the architecture's fields as read so far, and returns further fields.
"""

from collections.abc import Mapping
from typing import Any

from engine.models.adapters.options import IGNORED, Options
from engine.models.llama.config import KEPT_BELOW, SLOWED_ABOVE, UNSCALED_SEQUENCE
from engine.models.unet.config import GROUPS

Fields = dict[str, Any]

LLAMA3 = {
    "original_max_position_embeddings": UNSCALED_SEQUENCE,
    "low_freq_factor": UNSCALED_SEQUENCE / SLOWED_ABOVE,
    "high_freq_factor": UNSCALED_SEQUENCE / KEPT_BELOW,
}
LITGPT_LLAMA3 = {"original_max_seq_len" if "original" in name else name: value for name, value in LLAMA3.items()}
LITGPT_ACTIVATIONS = {"none": "gelu", "tanh": "gelu_tanh"}
OTHER_NORMS = ("Gemma", "OLMo")
"""Words in the name of a configuration of litgpt that make norms others."""
FULL_ATTENTION, UNTOLD = "full_attention", ""
THETA, SHARE, DEFAULT_THETA = "rope_theta", "partial_rotary_factor", 1e4

SCHEDULERS_LIKE_DDPM = (
    *("DDPMScheduler", "DDPMParallelScheduler", "DDIMScheduler", "DDIMParallelScheduler", "PNDMScheduler"),
    *("DEISMultistepScheduler", "DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler"),
    "UniPCMultistepScheduler",
)
"""By these images become noise as by DDPM, whatever each samples by."""
NOISE = {"linear": "linear", "squaredcos_cap_v2": "cosine"}
RESAMPLING = {"conv": "convolution", "resnet": "block"}
LEVELS = {
    "down_block_types": ("downsample_type", "AttnDownBlock2D", "DownBlock2D", "ResnetDownsampleBlock2D"),
    "up_block_types": ("upsample_type", "AttnUpBlock2D", "UpBlock2D", "ResnetUpsampleBlock2D"),
}
"""Option of the kinds of a U-Net's levels: the option that says how those with attention resample, their kind, and the
kinds without attention that resample by a convolution and by a residual block.
"""
DEFAULT_CHANNELS = (224, 448, 672, 896)


def read_llama(options: Options, fields: Fields) -> Fields:
    kinds = options.several("layer_types", (UNTOLD,))  # the layers of a broken configuration are too many to list
    if kinds != (UNTOLD,) and (len(kinds) != fields["layers"] or set(kinds) != {FULL_ATTENTION}):
        raise options.refusal(f"layer_types={list(kinds)!r}", f"{FULL_ATTENTION} in every layer")
    theta, scaling, share = _rope(options)
    if share != 1:
        raise options.refusal(f"partial_rotary_factor={share}", "1")
    kv_heads = fields["heads"] if fields["kv_heads"] is None else fields["kv_heads"]
    rope = {"rope_theta": theta, "rope_scaling": scaling}
    return rope | {"kv_heads": kv_heads, "padding": _padding(options, fields["vocabulary"])}


def read_neox(options: Options, fields: Fields) -> Fields:
    theta, scaling, share = _rope(options, theta="rotary_emb_base", share="rotary_pct", default_share=0.25)
    options.require(THETA, theta, default=theta)  # late version 4 wrote these two once more
    options.require(SHARE, share, default=share)
    if scaling != 1:
        raise options.refusal("rotary positions of rope_type llama3", "the default kind")
    return {"rope_theta": theta, "rotary": int(fields["hidden"] // fields["heads"] * share)}


def read_bert(options: Options, fields: Fields) -> Fields:
    return {"padding": _padding(options, fields["vocabulary"], default=0)}


def read_vit(options: Options, fields: Fields) -> Fields:
    options.require_if_given("problem_type", "single_label_classification")  # the others have another loss
    return {"classes": options.count("id2label", options.count("num_labels", 2))}


def read_litgpt(options: Options, fields: Fields) -> Fields:
    name = options.take("name", "")
    if any(word in name for word in OTHER_NORMS):
        raise options.refusal(f"name={name!r}", f"names without {' and '.join(OTHER_NORMS)}")
    if "kv_heads" not in fields:
        options.require("n_query_groups", fields["heads"], default=fields["heads"])
        options.require("head_size", fields["hidden"] // fields["heads"], default=None)
        return {"activation": options.one_of("gelu_approximate", LITGPT_ACTIVATIONS, "none")}
    options.require("mlp_class_name", "LLaMAMLP", default="GptNeoxMLP")
    options.require("bias", False, default=True)
    options.require("parallel_residual", False, default=True)
    options.require("rope_n_elem", fields["head_features"], default=None)
    _, inner = options.within("rope_adjustments")
    scaling = _llama3(inner, LITGPT_LLAMA3) if inner else 1.0
    inner.finish()
    return {"rope_scaling": scaling}


def _padding(options: Options, vocabulary: int, default: int | None = None) -> int | None:
    """Read the token whose row of the table learns nothing where it stands: nn.Embedding's padding_idx."""
    if options.is_none("pad_token_id"):
        return None
    token = options.given("pad_token_id", 0)
    token = default if token is None else token
    if token is None:
        return None
    if not -vocabulary <= token < vocabulary:
        raise options.refusal(f"pad_token_id={token}", f"tokens of its vocabulary of {vocabulary}")
    return token % vocabulary


def _rope(
    options: Options, *, theta: str = THETA, share: str = "", default_share: float = 1.0
) -> tuple[float, float, float]:
    """Read rotary positions: the base of their frequencies, their scaling (LlamaConfig), and the share of a head's
    features that are turned.

    transformers has them in rope_parameters since version 5, in options of their own before, here called theta and
    share. Raises UsageError for a kind of positions that isn't known, and where two places contradict each other.
    """
    place, inner = options.within("rope_parameters", "rope_scaling")
    thetas = {theta: options.given_positive(theta), f"{place}.{THETA}": inner.given_positive(THETA)}
    shares = {f"{place}.{SHARE}": inner.given_positive(SHARE)}
    if share:
        shares[share] = options.given_positive(share)
    base, turned = options.same(thetas, DEFAULT_THETA), options.same(shares, default_share)
    kind = inner.same({name: inner.given(name, "") for name in ("rope_type", "type")}, "default")
    if kind not in ("default", "llama3"):
        raise inner.refusal(f"rope_type={kind!r}", "'default' or 'llama3'")
    scaling = _llama3(inner, LLAMA3) if kind == "llama3" else 1.0
    inner.finish()
    return base, scaling, turned


def _llama3(options: Options, known: Mapping[str, float]) -> float:
    """Read Llama 3.1's scaling, whose factor may be any. known: what the others have to be, by their names."""
    for name, value in known.items():
        options.require(name, value, default=None)
    factor = options.given_positive("factor")
    if factor is None:
        raise options.refusal("factor=None", "a number")
    return factor


def read_unet(options: Options, fields: Fields) -> Fields:
    options.require("act_fn", "silu", "swish", default="silu")
    scales = options.known("resnet_time_scale_shift", ("default", "scale_shift"), "default") == "scale_shift"
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
    attends, resampling = _levels(options, len(channels))
    schedule, steps = _noise(options)
    return {
        "base": base,
        "multipliers": tuple(size // base for size in channels),
        "attention": tuple(fields["image"] // 2**level for level, attend in enumerate(attends) if attend),
        "level_heads": 1 if options.is_none("attention_head_dim") else None,
        "resampling": resampling,
        "padding": "around" if options.take("downsample_padding", 1) else "after",
        "sines_first": sines_first,
        "scales": scales,
        "schedule": schedule,
        "diffusion_steps": steps,
    }


def _levels(options: Options, levels: int) -> tuple[list[bool], str]:
    """Read which levels attend, from the largest images on, and how images are resampled."""
    attends: list[list[bool]] = []
    resampling: set[str] = set()
    for side, (option, attending, by_convolution, by_block) in LEVELS.items():
        default = [by_convolution, *[attending] * 3]
        usual = tuple(default if side == "down_block_types" else default[::-1])
        kinds = [kind.removeprefix("UNetRes") for kind in options.several(side, usual)]
        known = {by_convolution: "convolution", by_block: "block"}
        known[attending] = RESAMPLING[options.known(option, RESAMPLING, "conv")]
        for kind in kinds:
            if kind not in known:
                raise options.refusal(f"{kind} among its {side}", " and ".join(known))
        if len(kinds) != levels:
            raise options.refusal(f"{len(kinds)} {side} for {levels} block_out_channels", "as many of both")
        attends.append([kind == attending for kind in kinds])
        resampling |= {known[kind] for kind in kinds[:-1]}
    down, up = attends
    if up[::-1] != down:
        raise options.refusal(f"other levels that attend by {' than by '.join(LEVELS)}", "the same")
    if len(resampling) > 1:
        raise options.refusal("levels that are resampled by convolutions and others by residual blocks", "one of both")
    return down, next(iter(resampling), "block")


def _noise(options: Options) -> tuple[str, int]:
    """Read the schedule of noise and its steps. What is forgotten of a scheduler is about sampling."""
    _, scheduler = options.within("scheduler")
    scheduler.known("_class_name", SCHEDULERS_LIKE_DDPM, "DDPMScheduler")
    scheduler.forget(*IGNORED["sampling"])
    scheduler.require_off("use_flow_sigmas", "use_dynamic_shifting", "rescale_betas_zero_snr")
    scheduler.require("prediction_type", "epsilon", default="epsilon")
    scheduler.require("trained_betas", None, default=None)
    steps: int = scheduler.take("num_train_timesteps", 1000)
    schedule = scheduler.one_of("beta_schedule", NOISE, "linear")
    if schedule == "linear":
        for option, of_1000 in (("beta_start", 1e-4), ("beta_end", 0.02)):
            scheduler.require(option, of_1000 * 1000 / steps, default=of_1000)
    scheduler.forget("beta_start", "beta_end")  # which another schedule doesn't ask for
    scheduler.finish()
    return schedule, steps
