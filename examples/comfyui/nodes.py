"""Nodes that send a prompt, a picture and a mask to a server, and give its pictures on.

ComfyUI's pictures (IMAGE) are tensors [images, H, W, 3] float32 in 0..1. Its masks (MASK) are
[masks, H, W] float32, 1 where a picture is redrawn.
"""

import base64
import io
import os
from typing import Any

import numpy as np
from PIL import Image

from . import client

CATEGORY = "SDXL server"
LORAS = "SDXL_SERVER_LORAS"  # the type of connections that carry names and weights of LoRAs
CONTROLS = "SDXL_SERVER_CONTROLS"  # the same of pictures to follow
KEY_VARIABLE = "SDXL_SERVER_KEY"
MAX_SEED = 2**32 - 1

Inputs = dict[str, dict[str, tuple[str, dict[str, Any]]]]


class AddServerLora:
    """A LoRA of the server, by name, beside those of further nodes of this kind."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (LORAS,)
    RETURN_NAMES = ("loras",)
    FUNCTION = "add"

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:  # noqa: N802  # ComfyUI's name
        """Describe the inputs, as ComfyUI asks for them."""
        weight = {"default": 1.0, "min": -4.0, "max": 4.0, "step": 0.05}
        return {
            "required": {"name": ("STRING", {"default": ""}), "weight": ("FLOAT", weight)},
            "optional": {"loras": (LORAS, {})},
        }

    def add(
        self, name: str, weight: float, loras: dict[str, float] | None = None
    ) -> tuple[dict[str, float]]:
        """Return the LoRAs with one more."""
        return ({**(loras or {}), name: weight},)


class AddServerControl:
    """A picture to follow through a ControlNet of the server, beside those of further nodes."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (CONTROLS,)
    RETURN_NAMES = ("controls",)
    FUNCTION = "add"

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:  # noqa: N802  # ComfyUI's name
        """Describe the inputs, as ComfyUI asks for them."""
        share = {"min": 0.0, "max": 1.0, "step": 0.01}
        return {
            "required": {
                "name": ("STRING", {"default": ""}),
                "image": ("IMAGE", {}),
                "preprocessor": ("STRING", {"default": "none"}),
                "scale": ("FLOAT", {"default": 1.0, "min": 0.0, "max": 2.0, "step": 0.05}),
                "start": ("FLOAT", {"default": 0.0, **share}),
                "end": ("FLOAT", {"default": 1.0, **share}),
            },
            "optional": {"type": ("STRING", {"default": ""}), "controls": (CONTROLS, {})},
        }

    def add(
        self,
        name: str,
        image: Any,
        preprocessor: str,
        scale: float,
        start: float,
        end: float,
        type: str = "",  # noqa: A002  # the server's name
        controls: list[dict[str, Any]] | None = None,
    ) -> tuple[list[dict[str, Any]]]:
        """Return the controls with one more, which follows the first picture of a batch."""
        control = {
            "name": name,
            "image": _encoded(_picture(image.cpu().numpy()[0])),
            "preprocessor": preprocessor,
            "scale": scale,
            "start": start,
            "end": end,
            "type": type,
        }
        return ([*(controls or ()), control],)


class DrawOnServer:
    """Pictures that a server draws: from a prompt, from a picture, or in the mask of a picture."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("images",)
    FUNCTION = "draw"
    DESCRIPTION = (
        "Draws on a server, whose sizes, LoRAs and models can be used. 0 is the server's own."
    )

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:  # noqa: N802  # ComfyUI's name
        """Describe the inputs, as ComfyUI asks for them."""
        side = {"default": 0, "min": 0, "max": 8192, "step": 8}
        seed = {"default": 0, "min": 0, "max": MAX_SEED, "control_after_generate": True}
        return {
            "required": {
                "server": ("STRING", {"default": "http://127.0.0.1:7860"}),
                "prompt": ("STRING", {"default": "", "multiline": True}),
                "negative_prompt": ("STRING", {"default": "", "multiline": True}),
                "width": ("INT", side),
                "height": ("INT", side),
                "images": ("INT", {"default": 1, "min": 1, "max": 64}),
                "steps": ("INT", {"default": 0, "min": 0, "max": 50}),
                "guidance_scale": ("FLOAT", {"default": 0.0, "min": 0.0, "max": 50.0, "step": 0.5}),
                "seed": ("INT", seed),
            },
            "optional": {
                "loras": (LORAS, {}),
                "image": ("IMAGE", {}),
                "mask": ("MASK", {}),
                "strength": ("FLOAT", {"default": 0.8, "min": 0.01, "max": 1.0, "step": 0.01}),
                "model": ("STRING", {"default": ""}),
                "controls": (CONTROLS, {}),
            },
        }

    def draw(
        self,
        server: str,
        prompt: str,
        negative_prompt: str,
        width: int,
        height: int,
        images: int,
        steps: int,
        guidance_scale: float,
        seed: int,
        loras: dict[str, float] | None = None,
        image: Any = None,
        mask: Any = None,
        strength: float = 0.8,
        model: str = "",
        controls: list[dict[str, Any]] | None = None,
    ) -> tuple[Any]:
        """Return the pictures; each of several pictures to start from has its own.

        Raises:
            RuntimeError: if the server does not draw; the message says why.
        """
        import torch  # pyright: ignore[reportMissingImports]
        from comfy.model_management import (  # pyright: ignore[reportMissingImports]
            throw_exception_if_processing_interrupted,
        )
        from comfy.utils import ProgressBar  # pyright: ignore[reportMissingImports]

        body = {
            "prompt": prompt,
            "negative_prompt": negative_prompt or None,
            "images": images,
            "size": f"{width}x{height}" if width and height else None,
            "num_inference_steps": steps or None,
            "guidance_scale": guidance_scale or None,
            "loras": loras or None,
            "model": model or None,
            "controls": controls or None,
            "previews": True,
        }
        starts = [{}] if image is None else started_from(image, mask, strength)
        bar = ProgressBar(len(starts))

        def follow(name: str, fields: dict[str, Any]) -> None:
            throw_exception_if_processing_interrupted()
            if name == "step":
                bar.update_absolute(fields["done"], fields["total"])
            elif name == "preview":
                shown = Image.open(io.BytesIO(base64.b64decode(fields["jpegs"][0])))
                bar.update_absolute(bar.current, bar.total, ("JPEG", shown, None))

        files = []
        for index, start in enumerate(starts):
            each = {"seed": (seed + index * images) % (MAX_SEED + 1), **start}
            files += client.draw(server, body | each, os.environ.get(KEY_VARIABLE, ""), follow)
        return (torch.from_numpy(np.stack([_pixels(file) for file in files])),)


def started_from(image: Any, mask: Any, strength: float) -> list[dict[str, Any]]:
    """Return the fields of the requests that start from the pictures of a batch.

    An empty mask, which ComfyUI gives for pictures without transparency, counts as none.
    """
    pictures = [_picture(pixels) for pixels in image.cpu().numpy()]
    masks = [None] if mask is None else [_picture(pixels) for pixels in _masks(mask)]
    starts: list[dict[str, Any]] = []
    for index, picture in enumerate(pictures):
        start: dict[str, Any] = {"image": _encoded(picture), "strength": strength}
        own = masks[index % len(masks)]
        if own is not None and own.getbbox():
            own = own.resize(picture.size, Image.Resampling.NEAREST)
            start["mask"] = _encoded(own)
        starts.append(start)
    return starts


def _masks(mask: Any) -> np.ndarray:
    values = mask.cpu().numpy()
    return values.reshape(-1, *values.shape[-2:])


def _picture(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(np.round(255 * np.clip(pixels, 0, 1)).astype(np.uint8))


def _encoded(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _pixels(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as picture:
        return np.asarray(picture.convert("RGB"), np.float32) / 255
