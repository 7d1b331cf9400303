"""The names of a model's modules in files of adapters.

A name is a prefix, which says what network it is of, and the module's name in one of several
layouts. Module names are looked up, never rewritten: with underscores in place of dots, they cannot
be split again for certain.
"""

import re
from collections.abc import Iterator, Mapping

from pipeline.adapters.adapter import Inventory
from pipeline.checkpoints.original_names import original_unet_names

Module = tuple[str, str]  # network, and the module's name there in diffusers' layout

# The parts of the prefixes before the names of a network's modules. Programs combine them freely,
# and converters of their files repeat some, as in `lora_unet_unet_`:
# - `base_model.model.` of PEFT, `lora_` of kohya's scripts, `lycoris_` of LyCORIS;
# - the networks of diffusers' pipelines, `unet`, `text_encoder` and `text_encoder_2`, and of
#   kohya's scripts, `te`, `te1` and `te2`;
# - the networks of ComfyUI, `diffusion_model`, `text_encoders.clip_l.transformer` and so on, where
#   SD 1 and SDXL have `clip_l`, SD 2 has `clip_h`, and the second encoder of SDXL is `clip_g`;
# - `text_model.`, which transformers before version 5 had in text encoders.
# A name without any of the networks may fit several.
_TEXT = r"base_model\.model\.|lora_|lycoris_|text_encoders[._]|transformer[._]|text_model[._]"
PREFIXES = {
    "unet": r"base_model\.model\.|lora_|lycoris_|unet[._]|model[._]|diffusion_model[._]",
    "text_encoder": rf"{_TEXT}|text_encoder(_1)?[._]|te1?[._]|clip_[lh][._]",
    "text_encoder_2": rf"{_TEXT}|text_encoder_2[._]|te2[._]|clip_g[._]",
}
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


class ModuleNames:
    """The names that files may use for the modules of a model."""

    def __init__(self, inventory: Inventory) -> None:
        self._names = {
            network: (re.compile(rf"(?:{PREFIXES[network]})*+"), dict(_spellings(network, tensors)))
            for network, tensors in inventory.items()
        }

    def find(self, name: str) -> Module | None:
        """Return the module of a name; None if there is none, or several."""
        modules = [
            (network, modules[rest])
            for network, (prefix, modules) in self._names.items()
            if (rest := prefix.sub("", name, count=1)) in modules
        ]
        return modules[0] if len(modules) == 1 else None


def _spellings(network: str, tensors: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the names of a network's modules in files, without prefixes, each with its module."""
    modules = dict.fromkeys(name.rpartition(".")[0] for name in tensors)
    originals = original_unet_names(modules) if network == "unet" else {}
    for module in modules:
        for name in (module, originals.get(module, module), *_old_projections(module)):
            yield name, module
            yield name.replace(".", "_"), module


def _old_projections(module: str) -> Iterator[str]:
    for name, old_name in OLD_PROJECTIONS.items():
        if module.endswith(f".{name}"):
            parent = module.removesuffix(name)
            yield from (
                f"{parent}{old_name}",
                f"{parent}processor.{old_name}",
                f"{parent}processor.{name}",
            )
