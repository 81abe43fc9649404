"""diffusers' U-Net is the engine's: its configuration is read or refused, what was trained is a folder of its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from library_models import build
from pretrained_folders import UNET, write

from engine.data.dataset import Images
from engine.errors import UsageError
from engine.models.adapters.adapter import ADAPTERS
from engine.models.adapters.folder import open_pretrained
from engine.models.adapters.library import understand
from engine.models.adapters.options import Options
from engine.models.catalogue import lookup
from engine.models.denoising import Denoising
from engine.models.unet.config import UNetConfig

LACKING = "diffusers is not installed"


def read(**changed: Any) -> UNetConfig:
    return ADAPTERS["UNet2DModel"].read(Options("config.json", UNET | changed), "test", None, 0.0)


def test_a_configuration_is_read_by_level() -> None:
    assert read() == UNetConfig(
        "test", 32, (1, 2), depth=1, attention=(4,), head_channels=16, resampling="convolution", scales=False, image=8
    )
    as_ho = read(attention_head_dim=None, downsample_padding=0, flip_sin_to_cos=False, freq_shift=1)
    assert (as_ho.level_heads, as_ho.padding, as_ho.sines_first) == (1, "after", True)
    assert read(out_channels=6, norm_eps=1e-6) == read(norm_eps=1e-6, out_channels=6, act_fn="swish")
    old = {"down_block_types": ["UNetResDownBlock2D", "UNetResAttnDownBlock2D"]}
    assert read(**old) == read()


BLOCKS = {"down_block_types": ["ResnetDownsampleBlock2D", "AttnDownBlock2D"]}
SCALING = {"resnet_time_scale_shift": "scale_shift"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"up_block_types": ["AttnUpBlock2D", "SkipUpBlock2D"]}, "SkipUpBlock2D among its up_block_types"),
    ({"block_out_channels": [32, 64, 64]}, "2 down_block_types for 3 block_out_channels"),
    ({"up_block_types": ["UpBlock2D", "UpBlock2D"]}, "attend by down_block_types"),
    (BLOCKS, "convolutions and others by residual"),
    ({"block_out_channels": [64, 96]}, r"block_out_channels=\[64, 96\]"),
    ({"block_out_channels": 64}, "block_out_channels=64"),
    ({"sample_size": None}, "nothing of sample_size"),
    ({"mid_block_type": None}, "mid_block_type=None, .*'UNetMidBlock2D'"),
    ({"add_attention": False}, "add_attention=False"),
    (SCALING, "attn_norm_num_groups=None, .* 32"),
    ({"norm_num_groups": 16}, "norm_num_groups=16, .* 32"),
    ({"time_embedding_type": "fourier"}, "time_embedding_type='fourier'"),
    ({"resnet_time_scale_shift": "ada_group"}, "'ada_group', .* 'default' or 'scale_shift'"),
    ({"num_class_embeds": 10}, "num_class_embeds=10, .* None"),
    ({"out_channels": 4}, "channels_out of 4"),
    ({"act_fn": "gelu"}, "act_fn='gelu', .* 'silu' or 'swish'"),
    ({"freq_shift": 1}, "freq_shift=1, .* 0"),
    ({"downsample_padding": 2}, "downsample_padding=2, .* 0 or 1"),
    ({"down_block_types": ["UpBlock2D", "AttnDownBlock2D"]}, "UpBlock2D among its down_block_types"),
    ({"attention_head_dim": 24}, "64 channels, which heads of 24"),
    ({"cross_attention_dim": 8}, "cross_attention_dim=8"),
]


@pytest.mark.parametrize(("changed", "said"), REFUSED, ids=str)
def test_unknown_options_are_refused_by_name(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(**changed)


SCHEDULERS: list[tuple[dict[str, Any], str]] = [
    ({"prediction_type": "sample"}, "scheduler of config.json .*prediction_type='sample'"),
    ({"beta_schedule": "sigmoid"}, "beta_schedule='sigmoid', .* 'linear' or 'squaredcos_cap_v2'"),
    ({"trained_betas": [0.1]}, r"trained_betas=\[0.1\]"),
    ({"beta_end": 0.012}, r"beta_end=0\.012, .* 0\.02"),
    ({"num_train_timesteps": 250}, r"beta_start=0\.0001, .* 0\.0004"),
    ({"num_train_timesteps": 20, "beta_start": 5e-3, "beta_end": 1.0}, "20 diffusion steps"),
    ({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}, "_class_name='FlowMatchEuler"),
    ({"_class_name": "EDMEulerScheduler", "sigma_data": 0.5}, "_class_name='EDMEulerScheduler'"),
    ({"use_flow_sigmas": True}, "use_flow_sigmas=True"),
    ({"_class_name": "DDIMScheduler", "noise_offset": 0.1}, r"noise_offset=0\.1"),
    ({"rescale_betas_zero_snr": True}, "rescale_betas_zero_snr=True"),
]


@pytest.mark.parametrize(("scheduler", "said"), SCHEDULERS, ids=str)
def test_a_scheduler_whose_noise_the_task_has_not_is_refused(scheduler: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(scheduler=scheduler)


@pytest.mark.parametrize("place", ["scheduler_config.json", "../scheduler/scheduler_config.json"])
def test_a_folder_trains_with_the_noise_of_the_scheduler_beside_it(place: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "unet", UNET)
    assert open_pretrained(folder).architecture.task == Denoising(Images(8), "linear", 1000)
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text(
        '{"beta_schedule": "squaredcos_cap_v2", "num_train_timesteps": 50, "clip_sample": true}'
    )
    assert open_pretrained(folder).architecture.task == Denoising(Images(8), "cosine", 50)


@pytest.mark.parametrize("given", [{}, {"beta_schedule": "squaredcos_cap_v2", "num_train_timesteps": 50}], ids=str)
def test_diffusers_makes_the_same_noisy_images(given: dict[str, Any]) -> None:
    diffusers = pytest.importorskip("diffusers", reason=LACKING)
    scheduler = diffusers.DDPMScheduler(**given)
    task = read(scheduler=dict(scheduler.config)).task
    steps = torch.tensor([1, 2, 30, task.steps - 1, task.steps])
    images, noise = torch.randn(2, 5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = scheduler.add_noise(images, noise, steps - 1)
    torch.testing.assert_close(task.diffusion.noisy(images, noise, steps), expected, rtol=1e-4, atol=1e-4)
    assert (task.diffusion.noisy(images, noise, steps - 1)[2:4] - expected[2:4]).abs().max() > 1e-3


def test_dropout_is_read_and_a_sequence_is_refused() -> None:
    adapter = ADAPTERS["UNet2DModel"]
    assert adapter.read(Options("config.json", UNET | {"dropout": 0.1}), "test", None, None).options["dropout"] == 0.1
    assert read(dropout=0.1) == read()
    with pytest.raises(UsageError, match="--seq"):
        adapter.read(Options("config.json", UNET), "test", 64, None)


def test_an_attention_that_is_computed_by_something_else_is_refused() -> None:
    pytest.importorskip("diffusers", reason=LACKING)
    from diffusers.models.attention_processor import AttnProcessor

    model = build("unet")
    model.get_submodule("mid_block.attentions.0").set_processor(AttnProcessor())  # type: ignore[operator]
    with pytest.raises(UsageError, match=r"mid_block\.attentions\.0 .* AttnProcessor, .*2_0"):
        understand(model)


def test_diffusers_can_build_the_published_network() -> None:
    diffusers = pytest.importorskip("diffusers", reason=LACKING)
    with torch.device("meta"):
        model = diffusers.UNet2DModel(
            sample_size=32,
            block_out_channels=(128, 256, 256, 256),
            layers_per_block=3,
            attention_head_dim=64,
            down_block_types=("ResnetDownsampleBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("ResnetUpsampleBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
            downsample_type="resnet",
            upsample_type="resnet",
            attn_norm_num_groups=32,
            **SCALING,
        )
    found, own = understand(model).architecture, lookup("unet-50m")
    assert found.shape == own.shape
    assert sum(parameter.numel() for parameter in model.parameters()) == own.parameters == 57_091_203
