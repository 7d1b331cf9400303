"""The settings that NovelAI and ComfyUI write into pictures, as AUTOMATIC1111's text.

Both write JSON: NovelAI a text `Comment` with the settings, ComfyUI a text `prompt` with the nodes
that were run and a text `workflow` with the nodes as its page shows them. A node has inputs, each a
value or a link to another node. The settings are those of the nodes that lead to the saved picture,
the nearest ones first. JSON of any other form has no settings.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import PureWindowsPath
from typing import Any, TypeAlias

from pipeline.errors import PictureError, TooLargeError
from pipeline.schedulers.config import DEFAULT_SIGMAS
from pipeline.schedulers.names import SAMPLERS, SCHEDULE_TYPES, find_scheduler, find_sigma_schedule

# A prompt, a negative prompt, and further settings by ComfyUI's names.
_Settings: TypeAlias = tuple[str, str, Mapping[str, Any]]
# The inputs of nodes by the nodes' ids.
_Nodes: TypeAlias = Mapping[str, Mapping[str, Any]]

_SAMPLING = ("control_after_generate", "steps", "cfg", "sampler_name", "scheduler")
# The inputs that a node's `widgets_values` are in a workflow.
_WIDGETS: dict[str, tuple[str, ...]] = {
    "BasicScheduler": ("scheduler", "steps"),
    "CFGGuider": ("cfg",),
    "CheckpointLoaderSimple": ("ckpt_name",),
    "CLIPTextEncode": ("text",),
    "CLIPTextEncodeSDXL": (
        *("width", "height", "crop_w", "crop_h", "target_width", "target_height"),
        *("text_g", "text_l"),
    ),
    "EmptyLatentImage": ("width", "height", "batch_size"),
    "KSampler": ("seed", *_SAMPLING),
    "KSamplerAdvanced": ("add_noise", "noise_seed", *_SAMPLING),
    "KSamplerSelect": ("sampler_name",),
    "RandomNoise": ("noise_seed",),
    "SaveImage": ("filename_prefix",),
}
_USUAL = SCHEDULE_TYPES[DEFAULT_SIGMAS]
_SCHEDULE_TYPES = {**SCHEDULE_TYPES, "normal": _USUAL, "native": _USUAL}
_SEPARATOR = re.compile(r'[,:"\n]')  # in values that are written as JSON
_EMBEDDING = re.compile(r"\bembedding:")  # before the name of an embedding
_NO_PROMPT = "ConditioningZeroOut"  # a node whose input is a prompt that is not drawn
_TEXTS = ("text", "text_g", "string", "value", "prompt")  # inputs that hold a prompt
# ComfyUI's names of settings that have another name in some nodes, or in NovelAI's JSON.
_OTHER_NAMES = {
    "noise_seed": "seed",
    "unet_name": "ckpt_name",
    "sampler": "sampler_name",
    "noise_schedule": "scheduler",
    "scale": "cfg",
}


def text_of(texts: Mapping[str, Callable[[], str]]) -> str | None:
    """Return AUTOMATIC1111's text for the texts of a picture; None where there are no settings.

    Args:
        texts: functions that read the texts, by the texts' keywords.
    """
    for keyword, (program, read) in READERS.items():
        # The text may be damaged, and its JSON may have any form.
        with suppress(
            *(AttributeError, LookupError, RecursionError, TypeError, ValueError),
            *(PictureError, TooLargeError),
        ):
            prompt, negative_prompt, values = read(json.loads(texts[keyword]()))
            fields = ", ".join(
                f"{key}: {json.dumps(value) if _SEPARATOR.search(value) else value}"
                for key, value in (_fields(values) | {"Version": program}).items()
                if value
            )
            return f"{prompt}\nNegative prompt: {negative_prompt}\n{fields}"
    return None


def _fields(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of settings by AUTOMATIC1111's names; "" for a setting that is not there."""
    texts = {name: str(value) for name, value in values.items()}
    sampler, schedule = texts.get("sampler_name", ""), texts.get("scheduler", "")
    return {
        "Steps": texts["steps"],
        "Sampler": SAMPLERS.get(find_scheduler(sampler)[0] or "", sampler),
        "Schedule type": _SCHEDULE_TYPES.get(find_sigma_schedule(schedule) or schedule, schedule),
        "CFG scale": texts.get("cfg", ""),
        "Seed": texts["seed"],
        "Size": "{width}x{height}".format_map(texts) if "width" in texts else "",
        "Model": PureWindowsPath(texts.get("ckpt_name", "")).stem,
    }


def _of_comment(comment: Mapping[str, Any]) -> _Settings:
    """Return the settings in NovelAI's JSON, which in WebP files is a text in another one."""
    if "Comment" in comment:
        return _of_comment(json.loads(comment["Comment"]))
    values = {_OTHER_NAMES.get(name, name): value for name, value in comment.items()}
    return str(values["prompt"]), str(values.get("uc", "")), values


def _of_prompt(prompt: Mapping[str, Any]) -> _Settings:
    """Return the settings of the nodes that ComfyUI ran, which may be in a JSON with all texts."""
    if isinstance(whole := prompt.get("prompt"), dict):
        return _of_prompt(whole)
    nodes = {
        key: node["inputs"]
        for key, node in prompt.items()
        if isinstance(node, dict) and "inputs" in node and node.get("class_type") != _NO_PROMPT
    }
    linked = {key for inputs in nodes.values() for key in _links(nodes, inputs.values())}
    ends = [key for key in nodes if key not in linked]
    order = _walk(nodes, max(ends, key=lambda key: "filename_prefix" in nodes[key]))
    values = {
        _OTHER_NAMES.get(name, name): value
        for key in reversed(order)  # the nearest node counts
        for name, value in nodes[key].items()
        if isinstance(value, str | int | float)
        # Other nodes have the sides of other things.
        and (name not in ("width", "height") or "batch_size" in nodes[key])
    }
    positive = _text(nodes, order, "positive") or _text(nodes, order, "conditioning")
    negative = _text(nodes, order, "negative")
    return _EMBEDDING.sub("", positive), _EMBEDDING.sub("", negative), values


def _of_workflow(workflow: Mapping[str, Any]) -> _Settings:
    """Return the settings of the nodes that ComfyUI's page shows."""
    links = {link[0]: [str(link[1])] for link in workflow["links"]}
    nodes: dict[str, Any] = {}
    for node in workflow["nodes"]:
        widgets = zip(
            _WIDGETS.get(node["type"], ()), node.get("widgets_values") or (), strict=False
        )
        slots = [(slot["name"], slot.get("link")) for slot in node.get("inputs") or ()]
        linked = {name: links[link] for name, link in slots if link in links}
        nodes[str(node["id"])] = {"class_type": node["type"], "inputs": dict(widgets) | linked}
    return _of_prompt(nodes)


def _text(nodes: _Nodes, order: Iterable[str], name: str) -> str:
    """Return the text behind the first node's input of a name; "" where there is none."""
    texts = (
        nodes[key][text]
        for start in islice((key for key in order if name in nodes[key]), 1)
        for key in _walk(nodes, start, name)
        for text in (name, *_TEXTS)
        if isinstance(nodes[key].get(text), str)
    )
    return next(texts, "")


def _walk(nodes: _Nodes, start: str, name: str = "") -> list[str]:
    """Return a node and those that it is linked to, the nearest first.

    Only an input of this name is followed where a node has one: the two prompts of a picture may
    pass through the same nodes.
    """
    order = {start: None}
    keys = [start]
    for key in keys:
        inputs = nodes[key]
        linked = _links(nodes, [inputs[name]] if name in inputs else inputs.values())
        keys += [link for link in dict.fromkeys(linked) if link not in order]
        order |= dict.fromkeys(linked)
    return keys


def _links(nodes: _Nodes, values: Iterable[Any]) -> list[str]:
    """Return the ids of the nodes that values are links to."""
    ids = [value[0] for value in values if isinstance(value, list) and value]
    return [key for key in ids if isinstance(key, str) and key in nodes]


# The program that writes the text with each keyword, and how the JSON in it is read.
READERS: dict[str, tuple[str, Callable[[Any], _Settings]]] = {
    "Comment": ("NovelAI", _of_comment),
    "prompt": ("ComfyUI", _of_prompt),
    "workflow": ("ComfyUI", _of_workflow),
}
