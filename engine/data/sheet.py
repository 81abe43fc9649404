"""Images stand on one sheet, in rows, as a PNG."""

import io
import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GAP = 2
"""So many white pixels lie between two images."""


def sheet(images_BCYX: NDArray[np.uint8]) -> bytes:
    """Make the PNG of images [B, 3, side, side], about as wide as high."""
    count, channels, side, _ = images_BCYX.shape
    columns = math.ceil(math.sqrt(count))
    rows, pitch = -(-count // columns), side + GAP
    whole = np.full((rows * pitch - GAP, columns * pitch - GAP, channels), 255, np.uint8)
    for number, image in enumerate(images_BCYX):
        top, left = number // columns * pitch, number % columns * pitch
        whole[top : top + side, left : left + side] = image.transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(whole).save(file, "PNG")
    return file.getvalue()
