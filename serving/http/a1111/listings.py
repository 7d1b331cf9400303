"""Lists of AUTOMATIC1111's API: the model, its additions, and what this program does not have."""

import resource
import sys
from collections.abc import Mapping
from typing import Any

from pipeline.facts import Facts
from pipeline.images import metadata
from pipeline.schedulers.names import SAMPLERS, SCHEDULE_TYPES
from serving.http.a1111.faults import PythonError
from serving.http.a1111.requests import AUTOMATIC, SGM_UNIFORM

# Answers of the routes for what this program does not have.
EMPTY: dict[str, Any] = {
    "extensions": [],
    "face-restorers": [],
    "hypernetworks": [],
    "latent-upscale-modes": [],
    "prompt-styles": [],
    "realesrgan-models": [],
    "script-info": [],
    "scripts": {"txt2img": [], "img2img": []},
    "sd-modules": [],
    "upscalers": [],
}
# Answers of the routes that look for new files, and that free memory or take it again. Folders are
# watched without them, and the model stays.
UNNEEDED: dict[str, Any] = {
    "refresh-checkpoints": None,
    "refresh-vae": None,
    "refresh-embeddings": None,
    "refresh-loras": None,
    "unload-checkpoint": {},
    "reload-checkpoint": {},
}
# The flags of a program whose options cannot be changed.
FLAGS = {"api": True, "api_auth": None, "freeze_settings": True, "listen": None, "nowebui": False}


def sd_models(facts: Facts) -> list[dict[str, Any]]:
    """Return the model, as the only one."""
    name = facts.name
    entry = {"title": name, "model_name": name, "filename": name}
    return [entry | {"hash": None, "sha256": None, "config": None}]


def sd_vaes(facts: Facts) -> list[dict[str, Any]]:
    """Return the VAE that replaces the model's own, if there is one."""
    return [] if facts.vae is None else [{"model_name": facts.vae, "filename": facts.vae}]


def samplers(facts: Facts) -> list[dict[str, Any]]:
    """Return the schedulers that the model draws with."""
    return [
        {"name": SAMPLERS[name], "aliases": [name], "options": {}}
        for name in facts.schedulers
        if name in SAMPLERS
    ]


def schedulers(facts: Facts) -> list[dict[str, Any]]:
    """Return the sigma schedules that the model draws with."""
    known_schedules = {
        name: SCHEDULE_TYPES[name] for name in facts.sigma_schedules if name in SCHEDULE_TYPES
    }
    labels = {AUTOMATIC: "Automatic", **known_schedules, SGM_UNIFORM: "SGM Uniform"}
    return [
        {
            "name": label.lower().replace(" ", "_"),
            "label": label,
            "aliases": None,
            "default_rho": 7.0 if name == "karras" else -1.0,
            "need_inner_model": False,
        }
        for name, label in labels.items()
    ]


def loras(facts: Facts) -> list[dict[str, Any]]:
    """Return the LoRAs that prompts can name."""
    return [
        # Prompts name them by either.
        {"name": name, "alias": name, "path": name, "metadata": _described(lora.words)}
        for name, lora in facts.usable_loras.items()
    ]


def embeddings(facts: Facts) -> dict[str, Any]:
    """Return the textual inversions that prompts can name; what they were trained on is unknown."""
    training = {"step": None, "sd_checkpoint": None, "sd_checkpoint_name": None}
    shapes = {
        embedding.name: {**training, "shape": embedding.width, "vectors": embedding.vectors}
        for embedding in facts.embeddings
    }
    return {"loaded": shapes, "skipped": {}}


def _described(words: tuple[str, ...]) -> dict[str, Any]:
    """Return trigger words in the form of the counts that training tools write."""
    return {"ss_tag_frequency": {"trigger words": dict.fromkeys(words, 1)}} if words else {}


def options(facts: Facts) -> dict[str, Any]:
    """Return the options that mean something here, with the values that they always have."""
    return {
        "CLIP_stop_at_last_layers": 1,
        "jpeg_quality": metadata.QUALITY,
        "samples_format": "png",
        "sd_checkpoint_hash": "",
        "sd_lora": "None",
        "sd_model_checkpoint": facts.name,
        "sd_vae": facts.vae or "Automatic",
    }


def queue(waiting: int) -> dict[str, Any]:
    """Return the length of the queue as Gradio 3 does, on which AUTOMATIC1111's page runs."""
    times = ("rank", "avg_event_process_time", "avg_event_concurrent_process_time", "rank_eta")
    return {"msg": "estimation", "queue_size": waiting, **dict.fromkeys(times), "queue_eta": 0}


def check_options(values: Mapping[str, Any], facts: Facts) -> None:
    """Check that a client sets options to the values that they have.

    Raises:
        PythonError: if it does not; as in AUTOMATIC1111 with --freeze-settings.
    """
    known_values = options(facts)
    name = values.get("sd_model_checkpoint")
    if name not in (None, facts.name):
        raise PythonError("RuntimeError", f"model {str(name)[:200]!r} not found")
    for key, value in values.items():
        if key not in known_values:
            raise PythonError("KeyError", repr(key[:200]))
        if value != known_values[key]:
            raise PythonError("AssertionError", "changing settings is disabled")


def memory() -> dict[str, Any]:
    """Return the most memory that this process has had, in bytes; that of devices is unknown."""
    num_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    num_bytes *= 1 if sys.platform == "darwin" else 1024
    return {"ram": {"used": num_bytes}, "cuda": {"error": "unavailable"}}
