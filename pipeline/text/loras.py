"""Names and weights of a request's LoRAs, as text and as tags in a prompt.

The text is such as "pixel:0.8,other:0.5:0.3": a name, the weight in the UNet and, if it differs,
the weight in the text encoders. A prompt's tags are AUTOMATIC1111's, `<lora:pixel:0.8>`,
`<lora:other:0.3:0.5>` or `<lora:other:te=0.3:unet=0.5>`. The text encoders' weight comes first, and
`lyco` is another name of `lora`. Every `<name:...>` is a tag, also one of a hypernetwork, which is
not used here. Sources:
https://github.com/AUTOMATIC1111/stable-diffusion-webui/blob/master/extensions-builtin/Lora/extra_networks_lora.py
https://github.com/AUTOMATIC1111/stable-diffusion-webui/blob/master/modules/extra_networks.py
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import numpy as np

from pipeline.text.wildcards import find_lists

MAX_LORAS = 8  # in a request
MAX_WEIGHT = 4.0  # of a LoRA; the lowest is its negative
LORA_NAME = r"[^\s:,<>\x00-\x1f\x7f](?:[^:,<>\x00-\x1f\x7f]{0,98}[^\s:,<>\x00-\x1f\x7f])?"
_WEIGHT = r"[+-]?[0-9]{1,3}(?:\.[0-9]{1,20})?"
_LORA = re.compile(rf"({LORA_NAME}):({_WEIGHT})(?::({_WEIGHT}))?")
# Spaces are looked at from the first of them only, and a tag holds no "<", so that no text takes
# more than linear time.
_TAG = re.compile(r"((?<![ \t])[ \t]++)?(<(\w+):([^<>]+)>)")
_KINDS = ("lora", "lyco")
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


def take_tags(prompt: str, known_names: Collection[str] | None = None) -> tuple[str, str]:
    """Return a prompt without the tags of LoRAs that can be used, and the text of these LoRAs.

    If two tags have the same name, the last one counts. What a tag says beside weights stays in a
    tag of its own: `<options:pixel:dyn=32>`. Other tags stay: those of LoRAs outside `known_names`,
    if these are known, those inside lists, and those over a limit.
    """
    loras: dict[str, tuple[float, float]] = {}
    lists = "".join(find_lists(prompt))

    def take(tag: str, kind: str, content: str) -> str:
        lora = _parse_tag(content) if kind in _KINDS and tag not in lists else None
        if lora is None or (known_names is not None and lora[0] not in known_names):
            return tag
        name, weights, options = lora
        if name not in loras and len(loras) == MAX_LORAS:
            return tag
        loras[name] = weights
        return options and f"<options:{name}:{options}>"

    return _with_tags(prompt, take), format_loras(loras)


def drop_tags(prompt: str) -> tuple[str, list[str]]:
    """Return a prompt without any tags, and the tags."""
    tags = [tag for _, tag, _, _ in _TAG.findall(prompt)]
    return _with_tags(prompt, lambda *_: ""), tags


def _with_tags(prompt: str, change: Callable[[str, str, str], str]) -> str:
    """Return a prompt with what `change` returns in place of each tag, its kind and its content.

    The spaces before a tag that is left out go with it, unless two words or two signs around it
    would become one.
    """

    def changed(match: re.Match[str]) -> str:
        spaces, tag = match[1] or "", change(*match.groups()[1:])
        start, end = match.span()
        before, after = prompt[max(start - 1, 0) : start], prompt[end : end + 1]
        is_apart = not after.strip() or before.isalnum() != after.isalnum()
        return tag if not tag and is_apart else spaces + tag

    result = _TAG.sub(changed, prompt)
    return prompt if result == prompt else result.strip()


def _parse_tag(content: str) -> tuple[str, tuple[float, float], str] | None:
    """Return the name, the weights and further options in a tag; without weights they are 1."""
    items = content.split(":")
    named = dict(item.split("=") for item in items if item.count("=") == 1)
    name, *weights = [item for item in items if item.count("=") != 1] or [""]
    encoders = named.pop("te", [*weights, "1"][0])
    unet = named.pop("unet", [*weights[1:], encoders][0])
    options = ":".join([*weights[2:], *(f"{key}={value}" for key, value in named.items())])
    try:
        pair = float(unet), float(encoders)
    except ValueError:
        return None
    is_usable = is_lora_name(name) and all(abs(weight) <= MAX_WEIGHT for weight in pair)
    return (name, pair, options) if is_usable else None


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
