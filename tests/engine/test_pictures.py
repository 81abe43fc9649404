"""A folder of pictures becomes an image set, whatever its pictures are like; what can't is refused in a sentence."""

import logging
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from engine.data import pictures
from engine.data.dataset import Images, open_dataset
from engine.data.folder import LEFT_OUT
from engine.data.image_set import LABEL, LABELS, PIXELS
from engine.data.pictures import prepare, read
from engine.data.prepared import HEADER
from engine.errors import RunError, UsageError

RED, WHITE = [255, 0, 0], [255, 255, 255]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name, colour in {"blue": (0, 0, 255), "red": (255, 0, 0)}.items():
        (folder / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (12, 8 + number), colour).save(folder / name / f"{number}.png")
    return folder


def test_every_image_comes_once_an_epoch_with_the_label_of_its_class(source: Path, tmp_path: Path) -> None:
    (source / "red" / "damaged.png").write_bytes((source / "red" / "0.png").read_bytes()[:40])
    header = prepare(source, tmp_path / "out", 4)
    assert (header.images, header.classes, header.source.skipped) == (6, ("blue", "red"), 1)
    found = open_dataset(str(tmp_path / "out"), Images(4, 2)).read(3, np.arange(6))
    assert sorted(found["labels"]) == [0, 0, 0, 1, 1, 1]
    for pixels, label in zip(found["pixels"], found["labels"], strict=True):
        assert pixels[0 if label else 2].min() == 255
        assert pixels[1].max() == 0


def test_progress_counts_files_that_are_left_out_too(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (source / "red" / "the last.png").write_text("no picture")
    with caplog.at_level(logging.INFO):
        prepare(source, tmp_path / "out", 4)
    assert caplog.messages[-1] == "7 of 7 pictures"


def test_a_picture_is_cut_to_its_middle_as_its_camera_was_held(tmp_path: Path) -> None:
    turned = Image.new("RGB", (30, 10), "white")
    turned.paste((255, 0, 0), (10, 0, 15, 10))  # the middle's left half: on top, once it is turned to the right
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    pixels = read(tmp_path / "turned.png", 10)
    assert pixels[:, 1, 5].tolist() == RED
    assert pixels[:, 8, 5].tolist() == WHITE


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [("L", 128, [128] * 3), ("RGBA", (255, 0, 0, 0), WHITE), ("LA", (0, 255), [0] * 3), ("I;16", 0x8000, [128] * 3)],
)
def test_grey_is_three_channels_and_transparent_is_white(
    mode: str, colour: int, expected: list[int], tmp_path: Path
) -> None:
    Image.new(mode, (6, 6), colour).save(tmp_path / "one.png")
    assert read(tmp_path / "one.png", 3)[:, 1, 1].tolist() == expected


RAMP = np.arange(64 * 64).reshape(64, 64) % 64 * 4
DEEP = (RAMP * 257).astype(np.uint16)


@pytest.mark.parametrize("maxval", [65535, 4095, 1023])
def test_deep_greys_keep_their_brightness(maxval: int, tmp_path: Path) -> None:
    raw = (RAMP * maxval // 255).astype(">u2").tobytes()
    (tmp_path / "a.pgm").write_bytes(b"P5 64 64 %d\n" % maxval + raw)
    Image.fromarray(DEEP).save(tmp_path / "a.png")
    Image.fromarray(DEEP).save(tmp_path / "a.tif")
    for name in ("a.pgm", "a.png", "a.tif"):
        off = np.abs(read(tmp_path / name, 64).astype(int) - RAMP).max()
        assert off <= 1 + 255 / maxval, name


@pytest.mark.parametrize("numbers", [RAMP.astype(np.float32), (RAMP / 255).astype(np.float32), DEEP.astype(np.int32)])
def test_pictures_that_say_of_no_number_that_it_is_white_are_left_out(
    numbers: np.ndarray, source: Path, tmp_path: Path
) -> None:
    Image.fromarray(numbers).save(source / "red" / "deep.tif")
    assert prepare(source, tmp_path / "out", 4).source.skipped == 1
    assert b"deep.tif" in (tmp_path / "out" / LEFT_OUT).read_bytes()


def test_a_damaged_exif_leaves_out_no_more_than_its_picture(source: Path, tmp_path: Path) -> None:
    """Its fields are of types that Pillow's reader of them does not expect."""
    Image.new("RGB", (8, 8)).save(tmp_path / "base.jpg")
    jpeg = (tmp_path / "base.jpg").read_bytes()
    entries = [(0x0100, 7, 3, 0x414141), (0x011B, 1, 2, 5), (0x0112, 2, 2, 0x36), (0x9204, 10, 1, 8)]
    for number in range(1, len(entries) + 1):
        fields = b"".join(struct.pack("<HHII", *entry) for entry in entries[:number])
        exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", number) + fields + b"\0\0\0\0"
        app1 = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
        (source / "red" / f"{number}.jpg").write_bytes(jpeg[:2] + app1 + jpeg[2:])
    header = prepare(source, tmp_path / "out", 4)
    assert header.images + header.source.skipped == 6 + len(entries)


def test_whatever_a_reader_raises_leaves_out_its_picture_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def transpose(image: Image.Image) -> Image.Image:
        if image.size == (12, 9):
            raise struct.error("unpack requires a buffer")
        return image

    monkeypatch.setattr(ImageOps, "exif_transpose", transpose)
    header = prepare(source, tmp_path / "out", 4)
    assert (header.images, header.source.skipped) == (4, 2)


def test_a_class_whose_name_no_json_can_hold_is_refused_before_any_picture_is_read(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "red").rename(source / os.fsdecode(b"caf\xe9"))
    monkeypatch.setattr(pictures, "read", None)
    with pytest.raises(UsageError, match=r"caf\\xe9"):
        prepare(source, tmp_path / "out", 4)


def test_a_label_beyond_the_classes_is_named_with_its_file(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path / "out", 4)
    labels = np.fromfile(tmp_path / "out" / LABELS, LABEL)
    labels[4] = 2
    labels.tofile(tmp_path / "out" / LABELS)
    with pytest.raises(RunError, match=r"labels\.bin has 2.* 4"):
        open_dataset(str(tmp_path / "out"), Images(4, 2)).read(3, np.arange(6))


def test_the_parts_of_a_data_set_are_no_classes(source: Path, tmp_path: Path) -> None:
    (source / "red").rename(source / "train")
    assert prepare(source, tmp_path / "out", 4).classes == ("blue", "train")
    (source / "blue").rename(source / "Test")
    with pytest.raises(UsageError, match="no classes"):
        prepare(source, tmp_path / "out", 4)


def test_what_makes_no_image_set_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "empty").mkdir()
    with pytest.raises(UsageError, match="empty of a class"):
        prepare(source, tmp_path / "out", 4)
    (source / "empty" / "text").write_text("no picture")
    with pytest.raises(UsageError, match="/empty"):
        prepare(source, tmp_path / "out", 4)
    with pytest.raises(UsageError, match="0 subfolders"):
        prepare(source / "red", tmp_path / "out", 4)
    assert not (tmp_path / "out").exists()


def test_images_that_dont_fit_the_network_are_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(source, out, 4)
    with pytest.raises(UsageError, match=r"4 pixels.*--size 8"):
        open_dataset(str(out), Images(8, 2))
    (out / PIXELS).write_bytes(b"short")
    with pytest.raises(UsageError, match=r"5 bytes, .* 288"):
        open_dataset(str(out), Images(4, 2))


def test_pictures_of_no_classes_lie_in_any_folders_and_train_what_needs_none(source: Path, tmp_path: Path) -> None:
    Image.new("RGB", (9, 9), "white").save(source / "another.png")
    out = tmp_path / "out"
    header = prepare(source, out, 4, unlabelled=True)
    assert (header.images, header.classes, sorted(file.name for file in out.iterdir())) == (7, (), [HEADER, PIXELS])
    assert list(open_dataset(str(out), Images(4)).read(0, np.arange(7))) == ["pixels"]
    assert list(open_dataset("synthetic", Images(4)).read(0, np.arange(2))) == ["pixels"]
    with pytest.raises(UsageError, match="no classes"):
        open_dataset(str(out), Images(4, 2))
    prepare(source, out, 4)
    assert open_dataset(str(out), Images(4)).read(0, np.arange(2))["pixels"].shape == (2, 3, 4, 4)


def cifar_batch(labels: list[int], colours: list[tuple[int, int, int]]) -> bytes:
    """Return images of one colour each."""
    return b"".join(
        bytes([label, *(value for value in colour for _ in range(pictures.CIFAR_SIDE**2))])
        for label, colour in zip(labels, colours, strict=True)
    )


def test_batches_of_cifar_10_are_an_image_set(tmp_path: Path) -> None:
    source, out = tmp_path / "cifar-10-batches-bin", tmp_path / "out"
    source.mkdir()
    (source / "data_batch_1.bin").write_bytes(cifar_batch([9, 0], [(1, 2, 3), (4, 5, 6)]))
    (source / "data_batch_2.bin").write_bytes(cifar_batch([3], [(7, 8, 9)]))
    (source / "test_batch.bin").write_bytes(cifar_batch([5], [(0, 0, 0)]))
    assert prepare(source, out).classes == tuple("0123456789")
    (source / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    header = prepare(source, out, 32)
    assert (header.images, header.classes, header.source.files) == (3, tuple("abcdefghij"), 2)
    found = open_dataset(str(out), Images(32, 10)).read(0, np.arange(3))
    assert {(label, *pixels[:, 31, 31]) for label, pixels in zip(found["labels"], found["pixels"], strict=True)} == {
        (9, 1, 2, 3),
        (0, 4, 5, 6),
        (3, 7, 8, 9),
    }
    assert prepare(source, out, 32, unlabelled=True).classes == ()
    with pytest.raises(UsageError, match=r"32 pixels .*--size 64"):
        prepare(source, out, 64)
    (source / "data_batch_2.bin").write_bytes(cifar_batch([12], [(7, 8, 9)]))
    with pytest.raises(UsageError, match=r"class 12, .* 10"):
        prepare(source, out, 32)
    (source / "data_batch_2.bin").write_bytes(b"cut")
    with pytest.raises(UsageError, match=r"3 bytes, .* 3073"):
        prepare(source, out, 32)
