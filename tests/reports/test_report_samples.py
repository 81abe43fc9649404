"""The page of samples shows what trained networks make, in the order of their training."""

import base64
import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from reading import in_order
from sample_images import images
from sample_results import save, train

from engine.result.schema import Result
from engine.result.schema.bench import ImageSheet
from reports.site import build

PICTURE = re.compile(
    r'<figure class="picture">\s*<h3>([^<]*)</h3>\s*<img src="data:image/png;base64,([^"]*)" alt="([^"]*)">'
    r"\s*<figcaption><p>([^<]*)</p>"
)


def page(results: list[Result], folder: Path) -> str:
    save(results, folder)
    build([folder], folder / "site")
    return (folder / "site" / "samples.html").read_text()


def test_images_stand_in_the_order_of_the_training_with_their_sampler(tmp_path: Path) -> None:
    made = [images(1000, job=1), images(250, job=2), images(1000, sampler="ddpm", steps=1000, job=3)]
    made.append(images(500, job=4, failure="No image was sampled."))
    html = page([train(study="samples", ranks=1, model="gpt-test"), *made], tmp_path)
    found = PICTURE.findall(html)
    assert [(title, caption) for title, _, _, caption in found] == [
        ("After 250 steps", "DDIM, 50 steps"),
        ("After 1,000 steps", "DDIM, 50 steps"),
        ("After 1,000 steps", "DDPM, 1,000 steps"),
    ]
    assert made[1].images is not None
    assert (found[0][1], html.count("<img")) == (made[1].images.png, 3)
    assert in_order(found[0][2], "16 images", "32 x 32 pixels", "DDIM, 50 steps", "250 steps")
    assert in_order(html, "<h2>Images", "unet-test</h2>")
    assert "No image was sampled." in html
    assert "192 overlapping" in html
    assert "Runs of no study" not in (tmp_path / "site" / "index.html").read_text()
    assert "gpt-test" not in (tmp_path / "site" / "validation.html").read_text()


def test_of_more_sheets_than_a_strip_has_those_shown_are_spread_over_the_training(tmp_path: Path) -> None:
    many = [images(100 * step, job=step) for step in range(1, 24)]
    html = page([*many, images(900, sampler="ddpm", steps=1000, job=30)], tmp_path)
    after = [title for title, *_ in PICTURE.findall(html)]
    assert len(after) == 12 + 1
    assert (after[0], after[11], after[12]) == ("After 100 steps", "After 2,300 steps", "After 900 steps")
    assert html.count("12 of 23 shown") == html.count(" shown, spread") == 1


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
