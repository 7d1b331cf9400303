"""Lists of AUTOMATIC1111's API: the model, its additions, and what this program does not have."""

import resource
import sys
from collections.abc import Mapping
from typing import Any

from pipeline.facts import Facts
from pipeline.images import metadata
from pipeline.schedulers.names import SAMPLERS
from serving.http.a1111 import checkpoints
from serving.http.a1111.controlnet import SCRIPT, controls_of
from serving.http.a1111.faults import PythonError
from serving.http.a1111.requests import AUTOMATIC, LABELS, SGM_UNIFORM

# Answers of the routes for what this program does not have, or cannot change.
FIXED: dict[str, Any] = {
    "cmd-flags": {
        "api": True,
        "api_auth": None,
        "freeze_settings": True,
        "listen": None,
        "nowebui": False,
    },
    "extensions": [],
    "face-restorers": [],
    "hypernetworks": [],
    "latent-upscale-modes": [],
    "prompt-styles": [],
    "realesrgan-models": [],
    "script-info": [],
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


def sd_models(facts: Facts) -> list[dict[str, Any]]:
    """Return the models that calls can name, the first one first."""
    digests = facts.hashes
    return [
        {
            "title": checkpoints.title(name, digests),
            "model_name": name,
            "hash": digests[name][:10] if name in digests else None,
            "sha256": digests.get(name),
            "filename": name,
            "config": None,
        }
        for name in facts.model_names
    ]


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
    return [
        {
            "name": label.lower().replace(" ", "_"),
            "label": label,
            "aliases": None,
            "default_rho": 7.0 if name == "karras" else -1.0,
            "need_inner_model": False,
        }
        for name, label in LABELS.items()
        if name in (AUTOMATIC, *facts.sigma_schedules, SGM_UNIFORM)
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


def scripts(facts: Facts) -> dict[str, list[str]]:
    """Return the scripts that calls can name, by which clients find the ControlNet extension."""
    names = [SCRIPT] if controls_of(facts) else []
    return {"txt2img": names, "img2img": names}


def options(facts: Facts, model: str) -> dict[str, Any]:
    """Return the options that mean something here; only the model's can be changed."""
    digests = facts.hashes
    return {
        "CLIP_stop_at_last_layers": facts.for_known(model).clip_skip,
        "jpeg_quality": metadata.QUALITY,
        "samples_format": "png",
        "sd_checkpoint_hash": digests.get(model, ""),
        "sd_lora": "None",
        "sd_model_checkpoint": checkpoints.title(model, digests),
        "sd_vae": facts.vae or "Automatic",
    }


def queue(waiting: int) -> dict[str, Any]:
    """Return the length of the queue as Gradio 3 does, on which AUTOMATIC1111's page runs."""
    return {
        "msg": "estimation",
        "rank": None,
        "queue_size": waiting,
        "avg_event_process_time": None,
        "avg_event_concurrent_process_time": None,
        "rank_eta": None,
        "queue_eta": 0,
    }


def chosen_model(values: Mapping[str, Any], facts: Facts, model: str) -> str:
    """Return the model that a client chooses, who sets the other options to what they are.

    Some clients send what they are for the model before it, others for this one.

    Raises:
        PythonError: if there is no such model, or for another option; as in AUTOMATIC1111 with
            --freeze-settings.
    """
    text = str(values.get("sd_model_checkpoint") or model)
    if (name := checkpoints.find(text, facts)) is None:
        raise PythonError("RuntimeError", f"model {text[:200]!r} not found")
    before, after = options(facts, model), options(facts, name)
    for key in values.keys() - {"sd_model_checkpoint", "sd_checkpoint_hash"}:
        if key not in after:
            raise PythonError("KeyError", repr(key[:200]))
        if values[key] not in (before[key], after[key]):
            raise PythonError("AssertionError", "changing settings is disabled")
    return name


def memory() -> dict[str, Any]:
    """Return the most memory that this process has had, in bytes; that of devices is unknown."""
    num_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    num_bytes *= 1 if sys.platform == "darwin" else 1024
    return {"ram": {"used": num_bytes}, "cuda": {"error": "unavailable"}}
