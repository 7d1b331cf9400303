"""Names and weights of a request's LoRAs, as text and as tags in a prompt.

The text is such as "pixel:0.8,other:0.5:0.3": a name, the weight in the UNet and, if it differs,
the weight in the text encoders. A prompt's tags are AUTOMATIC1111's, `<lora:pixel:0.8>` or
`<lora:other:0.3:0.5>`, which name the text encoders' weight first. Source:
https://github.com/AUTOMATIC1111/stable-diffusion-webui/blob/master/extensions-builtin/Lora/extra_networks_lora.py
"""

import re
from collections.abc import Collection, Mapping
from typing import TypeAlias

import numpy as np

MAX_LORAS = 8  # in a request
MAX_WEIGHT = 4.0  # of a LoRA; the lowest is its negative
LORA_NAME = r"[^\s:,<>\x00-\x1f\x7f](?:[^:,<>\x00-\x1f\x7f]{0,98}[^\s:,<>\x00-\x1f\x7f])?"
_WEIGHT = r"[+-]?[0-9]{1,3}(?:\.[0-9]{1,20})?"
_LORA = re.compile(rf"({LORA_NAME}):({_WEIGHT})(?::({_WEIGHT}))?")
# Spaces are looked at from the first of them only, so that no text takes more than linear time.
_TAG = re.compile(r"(?:(?<![ \t])[ \t]++)?<lora:([^<>]{1,300})>")
_TAG_WEIGHT = re.compile(r"[+-]?(?:[0-9]{1,3}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})")
_DECIMALS = 20

# LoRAs by name: one weight, or the weights in the UNet and in the text encoders.
LoraWeights: TypeAlias = Mapping[str, float | tuple[float, float]]


def is_lora_name(name: object) -> bool:
    """Return whether a LoRA may have this name: printable, without commas, colons, < and >."""
    return (
        isinstance(name, str)
        and re.fullmatch(LORA_NAME, name) is not None
        and all(map(str.isprintable, name))
    )


def parse_loras(text: str) -> dict[str, tuple[float, float]]:
    """Return the weights in the UNet and in the text encoders of each LoRA in a text, by name.

    The names are sorted. A LoRA whose weights are 0 is left out.

    Raises:
        TypeError: if `text` is not a text.
        ValueError: if it is not such a text, names a LoRA twice, or exceeds a limit.
    """
    weights: dict[str, tuple[float, float]] = {}
    for entry in text.split(",", MAX_LORAS) if text else ():
        match = _LORA.fullmatch(entry)
        if match is None or match[1] in weights:
            raise ValueError(f"{text!r} is not a list of LoRAs such as pixel:0.8,other:0.5:0.3")
        name, unet, encoders = match.groups()
        weights[name] = float(unet), float(unet if encoders is None else encoders)
    return _checked(weights)


def format_loras(loras: LoraWeights) -> str:
    """Return the text from which `parse_loras` reads the LoRAs.

    Raises:
        TypeError: if `loras` is not a mapping, or a weight no number.
        ValueError: if a name or a weight cannot be used, or there are too many.
    """
    pairs: dict[str, tuple[float, float]] = {}
    for name, weight in loras.items():
        unet, encoders = weight if isinstance(weight, tuple | list) else (weight, weight)
        if isinstance(unet, bool | str) or isinstance(encoders, bool | str):
            raise TypeError(f"the weight of {name!r} is {weight!r}; expected a number")
        pairs[name] = round(float(unet), _DECIMALS), round(float(encoders), _DECIMALS)
    return ",".join(f"{name}:{_text(*weights)}" for name, weights in _checked(pairs).items())


def add_tags(prompt: str, loras: str) -> str:
    """Return a prompt with a tag for each LoRA of a text at its end."""
    weights_by_name = parse_loras(loras)
    tags = (f"<lora:{name}:{_text(*weights[::-1])}>" for name, weights in weights_by_name.items())
    return " ".join(filter(None, (prompt, *tags)))


def take_tags(prompt: str) -> tuple[str, str]:
    """Return a prompt without the tags of LoRAs, and the text of these LoRAs.

    A tag that cannot be read stays in the prompt. If two tags have the same name, the last one
    counts. With too many LoRAs, all tags stay.
    """
    rest, loras = _without_tags(prompt, ())
    try:
        return rest, format_loras(dict(loras))
    except ValueError:
        return prompt, ""


def without_unknown_tags(prompt: str, known_names: Collection[str]) -> tuple[str, list[str]]:
    """Return a prompt without the tags of LoRAs outside `known_names`, and these LoRAs' names."""
    rest, loras = _without_tags(prompt, known_names)
    return rest, [name for name, _ in loras]


def _without_tags(
    prompt: str, kept_names: Collection[str]
) -> tuple[str, list[tuple[str, tuple[float, float]]]]:
    """Return a prompt without the tags of LoRAs outside `kept_names`, and what they say."""
    loras: list[tuple[str, tuple[float, float]]] = []

    def leave_out(tag: re.Match[str]) -> str:
        lora = _parse_tag(tag[1])
        if lora is None or lora[0] in kept_names:
            return tag[0]
        loras.append(lora)
        return ""

    rest = _TAG.sub(leave_out, prompt)
    return rest.strip() if loras else prompt, loras


def _parse_tag(content: str) -> tuple[str, tuple[float, float]] | None:
    """Return the name and the weights in a tag; without weights they are 1."""
    name, *weights = content.split(":")
    numbers = [float(weight) for weight in weights if _TAG_WEIGHT.fullmatch(weight)]
    if not is_lora_name(name) or len(numbers) != len(weights) or len(numbers) > 2:
        return None
    encoders, unet = (numbers * 2)[:2] if numbers else (1.0, 1.0)
    return None if max(abs(unet), abs(encoders)) > MAX_WEIGHT else (name, (unet, encoders))


def _checked(loras: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    used_loras = {name: loras[name] for name in sorted(loras) if any(loras[name])}
    if len(used_loras) > MAX_LORAS:
        raise ValueError(f"{len(used_loras)} LoRAs are too many; expected up to {MAX_LORAS}")
    for name, weights in used_loras.items():
        if not is_lora_name(name):
            raise ValueError(f"{name!r} is no name of a LoRA")
        if not all(abs(weight) <= MAX_WEIGHT for weight in weights):
            raise ValueError(f"a weight of {name!r} is outside -{MAX_WEIGHT} to {MAX_WEIGHT}")
    return used_loras


def _text(first: float, second: float) -> str:
    texts = [np.format_float_positional(weight, _DECIMALS, trim="-") for weight in (first, second)]
    return ":".join(dict.fromkeys(texts))
