"""PNG files of finished pictures, with their settings."""

import io
from dataclasses import asdict

from PIL import Image as Pillow

from pipeline.drawing.drawing import Picture
from pipeline.images import metadata
from serving.generator import Image


def encode(picture: Picture, seed: int, unblurred: bool) -> Image:
    """Return a picture as an event with its PNG file.

    Args:
        picture: a finished PIL picture with its settings in `info`.
        seed: its seed.
        unblurred: whether the original of a blurred picture goes with it, if it may be shown.
    """
    original = picture.unblurred if unblurred else None
    settings = asdict(metadata.from_text(picture.image.info[metadata.KEY]))
    file = _png(picture.image)
    return Image(picture.index, file, seed, settings, original and _png(original))


def _png(image: Pillow.Image) -> bytes:
    buffer = io.BytesIO()
    metadata.save_png(image, buffer)
    return buffer.getvalue()
