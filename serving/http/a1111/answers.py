"""Answers of AUTOMATIC1111's API."""

import base64
import io
import json
import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

from fastapi import HTTPException

from pipeline.errors import PictureError, TooLargeError
from pipeline.images import image_text, metadata
from pipeline.schedulers.names import SAMPLERS
from serving.generator import Image
from serving.http.a1111.bodies import DrawBody
from serving.http.a1111.jobs import Job
from serving.http.a1111.requests import Asked

_IDLE = Job("", 1, timestamp="0")
_FILES = {"init_images", "mask"}  # fields of bodies that no answer repeats


def drawn(
    body: DrawBody, asked: Asked, images: Sequence[Image], files: Sequence[bytes], timestamp: str
) -> dict[str, Any]:
    """Return the answer to a call for pictures.

    Args:
        body: the body of the call.
        asked: the request that it stands for.
        images: the pictures that were drawn.
        files: their files.
        timestamp: the time at which the call began, as a text.
    """
    parameters = body.model_dump(mode="json", exclude=_FILES)
    parameters |= dict.fromkeys(_FILES & type(body).model_fields.keys())
    return {
        "images": [_encoded(file) for file in files] if body.send_images is not False else [],
        "parameters": parameters,
        "info": json.dumps(_info(body, asked, images, timestamp)),
    }


def _info(body: DrawBody, asked: Asked, images: Sequence[Image], timestamp: str) -> dict[str, Any]:
    request, model = asked.request, asked.model
    checkpoint = request.model or model.name
    settings = [metadata.Settings(**image.settings) for image in images]
    subseeds = [request.of_picture(index)["variation_seed"] for index in range(asked.images)]
    width, height = asked.size or request.size or model.sizes[0]
    sampler = request.scheduler or model.scheduler
    return {
        "prompt": body.prompt or "",
        "all_prompts": [picture_settings.prompt for picture_settings in settings],
        "negative_prompt": body.negative_prompt or "",
        "all_negative_prompts": [picture_settings.negative_prompt for picture_settings in settings],
        "seed": request.seed,
        "all_seeds": [image.seed for image in images],
        "subseed": request.variation_seed,
        "all_subseeds": subseeds[: len(images)],
        "subseed_strength": request.variation_strength,
        "width": width,
        "height": height,
        "sampler_name": SAMPLERS.get(sampler, sampler),
        "cfg_scale": settings[0].guidance_scale if settings else request.guidance_scale,
        "steps": settings[0].num_inference_steps if settings else request.num_inference_steps,
        "batch_size": body.batch_size,
        "restore_faces": False,
        "face_restoration_model": None,
        "sd_model_name": checkpoint,
        "sd_model_hash": asked.facts.hashes.get(checkpoint, "")[: metadata.HASH_LENGTH],
        "sd_vae_name": model.vae,
        "sd_vae_hash": None,
        "seed_resize_from_w": -1,
        "seed_resize_from_h": -1,
        "denoising_strength": body.denoising_strength,
        "extra_generation_params": {},
        "index_of_first_image": 0,
        "infotexts": [metadata.to_text(picture_settings) for picture_settings in settings],
        "styles": [],
        "job_timestamp": timestamp,
        "clip_skip": request.clip_skip or model.clip_skip,
        "is_using_inpainting_conditioning": model.needs_mask,
        "version": metadata.PROGRAM,
        # AUTOMATIC1111 has no such fields.
        "ignored": list(dict.fromkeys(chain(asked.ignored, *(image.ignored for image in images)))),
        "replaced": dict(asked.replaced),
    }


def progress(job: Job | None, skip_current_image: bool) -> dict[str, Any]:
    """Return the answer to a call for the progress of a job; None for a client without any."""
    share = 0.0 if job is None else job.progress
    taken_s = 0.0 if job is None else time.monotonic() - job.began_at
    shown_job = job or _IDLE
    preview = None if skip_current_image else next(iter(shown_job.previews), None)
    return {
        "progress": share,
        "eta_relative": taken_s / share - taken_s if share else 0.0,
        "state": {
            "skipped": shown_job.skipped,
            "interrupted": shown_job.interrupted,
            "stopping_generation": False,
            "job": shown_job.kind,
            "job_count": 0 if job is None else job.count,
            "job_timestamp": shown_job.timestamp,
            "job_no": shown_job.done,
            "sampling_step": shown_job.step,
            "sampling_steps": shown_job.steps,
        },
        "current_image": None if preview is None else _encoded(preview),
        "textinfo": None if shown_job.queued is None else f"Waiting: place {shown_job.queued}",
    }


def png_info(file: bytes) -> dict[str, Any]:
    """Return the settings in a picture.

    Raises:
        HTTPException: if the file is no picture, or over a limit.
    """
    try:
        text = image_text.read_text(io.BytesIO(file), metadata.KEY) or ""
    except PictureError as error:
        raise HTTPException(500, f"Invalid encoded image: {error}") from error
    except TooLargeError as error:
        raise HTTPException(422, f"The image cannot be read: {error}") from error
    prompt, negative_prompt, fields = metadata.split(text)
    width, separator, height = fields.pop("Size", "").partition("x")
    sizes = {"Size-1": width, "Size-2": height} if separator else {}
    parameters = {"Prompt": prompt, "Negative prompt": negative_prompt} | fields | sizes
    sendable = {_sendable(name): _sendable(value) for name, value in parameters.items()}
    return {"info": _sendable(text), "items": {}, "parameters": sendable}


def _sendable(text: str) -> str:
    """Return a text without lone surrogates, which no answer can hold."""
    return text.encode("utf-8", "replace").decode()


def _encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()
