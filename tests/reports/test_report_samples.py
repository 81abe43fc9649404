"""The validation page shows what trained networks make, in the order of their training."""

import base64
import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from sample_images import images
from sample_results import save, validation

from engine.result.image_sheet import ImageSheet
from engine.result.schema import Result
from reports.site import build

PICTURE = re.compile(
    r'<figure class="picture">\s*<h3>([^<]*)</h3>\s*<img src="data:image/png;base64,([^"]*)" alt="([^"]*)">'
    r"\s*<figcaption><p>([^<]*)</p>"
)


def page(results: list[Result], folder: Path) -> str:
    save(results, folder)
    build([folder], folder / "site")
    return (folder / "site" / "validation.html").read_text()


def test_images_stand_in_the_order_of_the_training_with_their_sampler(tmp_path: Path) -> None:
    made = [images(1000, job=1), images(250, job=2), images(1000, sampler="ddpm", steps=1000, job=3)]
    html = page([*validation(), *made, images(500, job=4, failure="No image was sampled.")], tmp_path)
    found = PICTURE.findall(html)
    assert [(title, caption) for title, _, _, caption in found] == [
        ("After 250 steps", "DDIM, 50 steps"),
        ("After 1,000 steps", "DDIM, 50 steps"),
        ("After 1,000 steps", "DDPM, 1,000 steps"),
    ]
    assert made[1].images is not None
    assert (found[0][1], html.count("<img")) == (made[1].images.png, 3)
    assert found[0][2] == "16 images of 32 x 32 pixels, sampled by DDIM, 50 steps. After 250 steps of training."
    assert "<h2>Images of local, cpu, unet-test</h2>" in html
    assert "No image was sampled." in html
    assert "Training loss" in html


def test_of_sheets_alike_the_newest_is_shown_and_each_training_has_a_strip(tmp_path: Path) -> None:
    again = images(250, job=2, colour="red")
    html = page([images(250, job=1), again, images(250, job=3, resume="runs/other")], tmp_path)
    assert again.images is not None
    assert [png for _, png, _, _ in PICTURE.findall(html)].count(again.images.png) == 1
    assert (len(PICTURE.findall(html)), html.count("<h2>Images of")) == (2, 2)
    index = (tmp_path / "site" / "index.html").read_text()
    assert "Runs of no study" not in index


@pytest.mark.parametrize("png", ["", "x", base64.b64encode(b"<svg onload=alert(1)>").decode(), '"><script>'])
def test_what_is_no_png_is_no_sheet(png: str) -> None:
    with pytest.raises(ValidationError):
        ImageSheet(trained_steps=1, sampler="ddim", steps=50, images=16, side=32, time_s=1.0, png=png)
