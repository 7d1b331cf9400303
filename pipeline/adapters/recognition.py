"""Telling what a file is that cannot be used as an adapter of a model."""

from collections.abc import Iterable, Iterator, Mapping

from pipeline.adapters.adapter import Inventory, Shape
from pipeline.adapters.kinds import SUFFIXES, split

# Width of the prompt's embeddings in cross-attention.
WIDTHS = {768: "Stable Diffusion 1", 1024: "Stable Diffusion 2", 2048: "Stable Diffusion XL"}
# The parts whose second axis is as wide as a module's input.
_INPUTS = ("lora_down.weight", "hada_w1_b", "diff")
_CHECKPOINT = "a whole checkpoint; load it as the model instead"
# Pieces of tensors' names, and the kind of file that has them; the first that occurs decides.
_MARKS = {
    "single_transformer_blocks": "an adapter for Flux",
    "single_blocks": "an adapter for Flux",
    "double_blocks": "an adapter for Flux",
    "joint_blocks": "an adapter for Stable Diffusion 3",
    "lora_te3_": "an adapter for Stable Diffusion 3 or Flux",
    "transformer.transformer_blocks.": "an adapter for Stable Diffusion 3 or another transformer",
    "lora_transformer_": "an adapter for Stable Diffusion 3 or another transformer",
    "motion_modules": "AnimateDiff's motion modules",
    "lora_controlnet": "a ControlNet",
    "controlnet_": "a ControlNet",
    "input_hint_block": "a ControlNet",
    "image_proj.": "an IP-Adapter",
    "first_stage_model.": _CHECKPOINT,
    "cond_stage_model.": _CHECKPOINT,
    "conditioner.embedders.": _CHECKPOINT,
    "string_to_param": "an embedding of textual inversion",
    "emb_params": "an embedding of textual inversion",
    "clip_g": "an embedding of textual inversion",
    "decoder.up": "a VAE",
}
_ORIGINAL_UNET = "model.diffusion_model."


def likely(shapes: Mapping[str, Shape], inventory: Inventory) -> str:
    """Return a sentence about the kind of a file, with a space before it; empty if unknown.

    Args:
        shapes: the shape of each tensor in the file.
        inventory: the model's tensors.
    """
    kind = _marked(shapes) or _other_width(shapes, inventory)
    return f" The file is likely {kind}." if kind else ""


def _marked(keys: Iterable[str]) -> str | None:
    keys = list(keys)
    for mark, kind in _MARKS.items():
        if any(mark in key for key in keys):
            return kind
    weight_keys = [key for key in keys if key.endswith((".weight", ".bias")) and not split(key)[1]]
    if any(key.startswith(_ORIGINAL_UNET) for key in weight_keys):
        return _CHECKPOINT
    if 2 * len(weight_keys) > len(keys):
        return "the weights of a network and not an adapter"
    return None


def _other_width(shapes: Mapping[str, Shape], inventory: Inventory) -> str | None:
    """Return the family that a file's cross-attention belongs to, unless it is the model's."""
    model = {
        shape[1]
        for name, shape in inventory.get("unet", {}).items()
        if name.endswith("attn2.to_k.weight")
    }
    file = set(_widths(shapes))
    if not model or not file or model & file:
        return None
    width, model_width = min(file), min(model)
    family = WIDTHS.get(width, "another model")
    return f"for {family}: its cross-attention is {width} wide, and this model's {model_width}"


def _widths(shapes: Mapping[str, Shape]) -> Iterator[int]:
    for key, shape in shapes.items():
        module, suffix = split(key)
        if SUFFIXES.get(suffix) in _INPUTS and len(shape) > 1:
            name = module.replace(".", "_").removesuffix("_lora")
            if "attn2" in name and name.endswith(("to_k", "to_v")):
                yield shape[1]
