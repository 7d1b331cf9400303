"""The names of a model's modules in files of adapters, in one table.

Names are looked up, never rewritten: with underscores in place of dots, a name cannot be split
again for certain.
"""

from collections.abc import Iterator, Mapping

from pipeline.adapters.adapter import Inventory
from pipeline.checkpoints.original_names import original_unet_names

Module = tuple[str, str]  # network, and the module's name there in diffusers' layout


# The prefixes before the names of a network's modules, by the layout of these names: with dots in
# diffusers' layout (PEFT's and diffusers' files) or in the original one, or with underscores in
# place of dots in either ("joined": files of kohya's scripts, LyCORIS and OneTrainer).
# "base_model.model." is PEFT's. Without another prefix, a name may fit several networks.
PREFIXES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "unet": {
        "diffusers": ("unet.", "base_model.model.unet.", "base_model.model.", ""),
        "original": ("diffusion_model.",),
        "joined": ("lora_unet_", "lycoris_unet_", "lycoris_"),
    },
    "text_encoder": {
        "diffusers": (
            "text_encoder.",
            "base_model.model.text_encoder.",
            "base_model.model.",
            "",
        ),
        "original": (),
        "joined": ("lora_te_", "lora_te1_", "lycoris_te_", "lycoris_te1_", "lycoris_"),
    },
    "text_encoder_2": {
        "diffusers": (
            "text_encoder_2.",
            "base_model.model.text_encoder_2.",
            "base_model.model.",
            "",
        ),
        "original": (),
        "joined": ("lora_te2_", "lycoris_te2_", "lycoris_"),
    },
}
# transformers before version 5 had this before the names of the text encoders' modules, except
# `text_projection`.
TEXT_MODEL = "text_model."
# Attention's projections had other names in diffusers before version 0.22.
OLD_PROJECTIONS = {
    "to_q": "to_q_lora",
    "to_k": "to_k_lora",
    "to_v": "to_v_lora",
    "to_out.0": "to_out_lora",
    "q_proj": "to_q_lora",
    "k_proj": "to_k_lora",
    "v_proj": "to_v_lora",
    "out_proj": "to_out_lora",
}


def module_names(inventory: Inventory) -> dict[str, Module]:
    """Return every name that a file may use for a module of a model.

    A name that would fit several modules is left out.
    """
    modules: dict[str, Module] = {}
    ambiguous_names: set[str] = set()
    for network, tensors in inventory.items():
        for name, module in _names(network, tensors):
            if modules.setdefault(name, (network, module)) != (network, module):
                ambiguous_names.add(name)
    for name in ambiguous_names:
        del modules[name]
    return modules


def _names(network: str, tensors: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the names of a network's modules in files, each with its module."""
    prefixes = PREFIXES[network]
    modules = dict.fromkeys(name.rpartition(".")[0] for name in tensors)
    originals = original_unet_names(modules) if network == "unet" else {}
    for module in modules:
        spellings = [module, *_old_projections(module)]
        if network != "unet":
            spellings += [TEXT_MODEL + name for name in spellings]
        for name in spellings:
            yield from ((prefix + name, module) for prefix in prefixes["diffusers"])
            yield from ((prefix + _joined(name), module) for prefix in prefixes["joined"])
        original = originals.get(module, module)
        yield from ((prefix + original, module) for prefix in prefixes["original"])
        yield from ((prefix + _joined(original), module) for prefix in prefixes["joined"])


def _old_projections(module: str) -> Iterator[str]:
    for name, old_name in OLD_PROJECTIONS.items():
        if module.endswith(f".{name}"):
            parent = module.removesuffix(name)
            yield from (
                f"{parent}{old_name}",
                f"{parent}processor.{old_name}",
                f"{parent}processor.{name}",
            )


def _joined(name: str) -> str:
    return name.replace(".", "_")
