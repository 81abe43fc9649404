"""Images are sampled from a checkpoint: those that its noise and its network make, the same on every grid."""

import base64
import io
import re
import resource
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_command import finish, start
from manifests import as_saved
from PIL import Image
from torch import Tensor
from virtual_ranks import run_ranks

from engine.checkpoint.manifest import Manifest
from engine.cli.main import main
from engine.cli.trained import trained as words_of
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.denoising import Denoising
from engine.models.diffusion import Diffusion, cosine_betas
from engine.parallel.parallelize import parallelize
from engine.parallel.serial_state import full_state_dict
from engine.precision import Precision
from engine.result import SamplerName
from engine.result.schema import read
from engine.sampling import GAP, Sampler, as_bytes, gather_images, own_images, sheet

SHAPE = replace(lookup("unet-tiny"), last_std=0.05)  # type: ignore[type-var]
DIFFUSION = Diffusion.of_betas(cosine_betas(1000))
IMAGES = 3
"""Of which two ranks can't have as many each."""


def test_steps_are_spaced_evenly_from_the_last_to_the_image() -> None:
    assert [*Sampler("ddim", 4, 0).times(1000)] == [(1000, 750), (750, 500), (500, 250), (250, 0)]
    assert [*Sampler("ddim", 3, 0).times(10)] == [(10, 7), (7, 3), (3, 0)]
    assert [*Sampler("ddpm", 1000, 0).times(1000)] == [*pairwise(range(1000, -1, -1))]


@pytest.mark.parametrize(("name", "steps"), [("ddim", 7), ("ddpm", 100)])
def test_the_right_noise_leads_to_the_image(name: SamplerName, steps: int) -> None:
    image = torch.linspace(-1, 1, 3 * 64, dtype=torch.float64).view(1, 3, 8, 8)
    made = Sampler(name, steps, 5).images(
        lambda x, steps_B: DIFFUSION.noise(x, image, steps_B), DIFFUSION, torch.arange(2), 8, torch.float64
    )
    torch.testing.assert_close(made, image.expand(2, -1, -1, -1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "steps"), [("ddim", 50), ("ddpm", 250)])
def test_samples_have_the_distribution_of_what_the_network_knows(name: SamplerName, steps: int) -> None:
    """Noise is known exactly if pixels are -0.5 or 0.5 by chance."""

    def find(x: Tensor, steps_B: Tensor) -> Tensor:
        left = DIFFUSION.alpha_bars[steps_B].view(-1, 1, 1, 1)
        return DIFFUSION.noise(x, 0.5 * torch.tanh(0.5 * x * left.sqrt() / (1 - left)), steps_B)

    made = Sampler(name, steps, 1).images(find, DIFFUSION, torch.arange(16), 8, torch.float64)
    torch.testing.assert_close(made.abs(), torch.full_like(made, 0.5), rtol=0, atol=0.02)
    assert (made > 0).double().mean().item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "channels"), [("ddim", 3), ("ddpm", 6)])
def test_every_grid_makes_the_images_of_the_serial_network(name: SamplerName, channels: int) -> None:
    shape = replace(SHAPE, channels_out=channels)  # type: ignore[type-var]
    sampler, task = Sampler(name, 4, 7), shape.task
    assert isinstance(task, Denoising)
    diffusion = task.diffusion

    def images(comm: Comm) -> tuple[Tensor, dict[str, Tensor]]:
        model = parallelize(shape, comm, precision=Precision.parse("fp64"), seed=3)
        found = sampler.images(model, diffusion, own_images(IMAGES, comm), 8, torch.float64)
        return gather_images(found, comm)[:IMAGES], full_state_dict(model)

    made, weights = run_ranks(Grid(), images)[0]
    serial = shape.serial().double()
    serial.load_state_dict(weights)
    expected = sampler.images(serial, diffusion, torch.arange(IMAGES), 8, torch.float64)
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-8)
    assert (expected.abs() < 1).double().mean() > 0.1  # the others are clipped
    for grid in (Grid(x=2), Grid(y=2), Grid(z=2), Grid(data=2), Grid(2, 1, 2, 2)):
        for found, _ in run_ranks(grid, images):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-8, msg=str(grid))


def test_a_sheet_has_its_images_in_rows() -> None:
    images = as_bytes(torch.rand(5, 3, 8, 8) * 4 - 2).numpy()
    whole = np.asarray(Image.open(io.BytesIO(sheet(images))))
    assert whole.shape == (2 * 8 + GAP, 3 * 8 + 2 * GAP, 3)
    for number, image in enumerate(images):
        top, left = (8 + GAP) * (number // 3), (8 + GAP) * (number % 3)
        assert (whole[top : top + 8, left : left + 8] == image.transpose(1, 2, 0)).all()
    assert (whole[8 + GAP :, 2 * (8 + GAP) :] == 255).all()
    assert as_bytes(torch.tensor([-1.5, -1, 0, 1, 1.5])).tolist() == [0, 0, 128, 255, 255]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of two steps of a small U-Net."""
    folder = tmp_path_factory.mktemp("trained")
    words = ["--model", "unet-tiny", "--grid", "1x1x1x1", "--batch-size", "2", "--data", "synthetic"]
    words += ["--iterations", "2", "--warmup", "1", "--learning-rate", "0.01"]
    words += ["--save", str(folder), "--save-every", "1"]
    codes, said = finish(start(1, "train", *words, "--out", str(folder / "result.json")))
    assert codes == [0], said
    return folder


def test_a_training_on_images_tells_images_and_no_tokens(trained: Path) -> None:
    names = [line.split()[0] for line in words_of(read(trained / "result.json")).splitlines()]
    assert names == ["time", "images", "flop/s", "loss", "memory"]


def sampled(trained: Path, out: Path, ranks: int = 1, *options: str) -> Image.Image:
    words = ["--resume", str(trained), "--images", "3", "--sampler-steps", "2", "--out", str(out), *options]
    codes, said = finish(start(ranks, "sample", *words))
    assert codes == [0] * ranks, said
    assert re.search(r"step (\d+) of \1\b", said[0]), said[0]
    return Image.open(out)


def test_the_command_makes_one_sheet_on_one_rank_or_several_and_records_it(trained: Path, tmp_path: Path) -> None:
    alone = np.asarray(sampled(trained, tmp_path / "alone.png", 1, "--micro-batch", "2")).astype(int)
    shared = np.asarray(sampled(trained, tmp_path / "shared.png", 2, "--grid", "1x1x2x1")).astype(int)
    assert np.abs(shared - alone).max() <= 1  # rounding to a byte
    other = np.asarray(sampled(trained, tmp_path / "other.PNG", 2, "--seed", "1")).astype(int)
    assert np.abs(other - alone).max() > 50
    result = read(tmp_path / "shared.json")
    assert (result.kind, result.status, result.grid, result.ranks) == ("sample", "ok", "1x1x2x1", 2)
    assert result.images is not None
    assert base64.b64decode(result.images.png) == (tmp_path / "shared.png").read_bytes()
    told = result.images.trained_steps, result.images.sampler, result.images.steps, result.images.images
    assert told == (2, "ddim", 2, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("alone.json", "alone.png", "other.PNG", "other.json", "shared.json", "shared.png")
    ]


def test_a_checkpoint_with_damaged_weights_is_refused_and_the_result_says_so(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = tmp_path / "step-1"
    step.mkdir()
    for path in (trained / "step-1").iterdir():
        content = path.read_bytes()
        (step / path.name).write_bytes(bytes(len(content)) if path.suffix == ".distcp" else content)
    out = tmp_path / "samples.png"
    assert main(["sample", "--resume", str(step), "--out", str(out)]) == 1
    assert "step-1" in capsys.readouterr().err
    result = read(tmp_path / "samples.json")
    assert (result.status, out.exists()) == ("failed", False)
    assert re.search("step-1 .*rank 0", str(result.reason))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sampler-steps", "1001"], "--sampler-steps .* 1000, .* 1001"),
        (["--sampler-steps", "0"], "--sampler-steps .* 0"),
        (["--images", "0"], "--images .* 1, .* 0"),
        (["--micro-batch", "0"], "--micro-batch .* 1, .* 0"),
        (["--out", "samples.jpg"], "--out .* samples.jpg"),
        (["--sampler", "euler"], "--sampler .* ddim, ddpm, .*'euler'"),
        (["--grid", "2x1x1x1"], "2x1x1x1 has 2 ranks, but 1"),
        (["--grid", "1x1x1x1p2"], "2 ranks, but 1"),
    ],
)
def test_what_cannot_be_sampled_is_told_in_one_sentence(
    options: list[str], says: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sample", "--resume", str(trained), *options]) == 2
    said = capsys.readouterr().err
    assert re.search(says, said)
    assert said.count("\n") == 1


def test_a_pipeline_samples_no_images(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    assert main(["sample", "--resume", str(trained), "--grid", "1x1x1x2P2"]) == 2
    assert re.search("--grid 1x1x1x2P2.* 1x1x1x4", capsys.readouterr().err)


def _leave_little_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))


def test_a_sheet_that_finds_no_room_is_one_sentence_of_the_result(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "full.png"
    words = ["--resume", str(trained), "--images", "128", "--micro-batch", "64"]
    words += ["--sampler-steps", "1", "--out", str(out)]
    codes, said = finish(start(2, "sample", *words, before=_leave_little_room))
    assert codes == [1, 1], said
    result = read(tmp_path / "full.json")
    assert f"{out} can't be written" in str(result.reason)
    assert str(result.reason) in said[0]
    assert [path.name for path in tmp_path.iterdir()] == ["full.json"]


def test_a_checkpoint_of_a_network_that_makes_no_images_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = lookup("gpt-test")
    known = Manifest(
        step=1, seed=0, batch_size=8, dtype="fp32", family="gpt", name="gpt-test", model=model.shape, files={}
    )
    as_saved(tmp_path, known)
    assert main(["sample", "--resume", str(tmp_path)]) == 2
    assert "gpt-test" in capsys.readouterr().err
    as_saved(tmp_path, known.model_copy(update={"files": {"__0_0.distcp": 10}}))
    assert main(["sample", "--resume", str(tmp_path)]) == 2
    assert "__0_0.distcp has 0" in capsys.readouterr().err


def test_without_pillow_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.errors.find_spec", lambda module: None)
    assert main(["sample", "--resume", str(tmp_path)]) == 2
    assert "pip install pillow" in capsys.readouterr().err
