"""Kinds of single files: how each is recognised, where its networks are, and what it is called.

Order and rules follow diffusers' `loaders/single_file_utils.py` and ComfyUI's `model_detection.py`.
A kind is never recognised by elimination: many other models have a UNet of the same names.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.checkpoints.checkpoint import Section
from pipeline.checkpoints.original_names import (
    to_diffusers_clip,
    to_diffusers_open_clip,
    to_diffusers_tiny_vae,
    to_diffusers_unet,
    to_diffusers_vae,
)
from pipeline.checkpoints.single_file import (
    GLOBAL_STEP,
    UNET_PREFIX,
    V_PREDICTION,
    VAE_PREFIXES,
    ZERO_SNR,
    prefix_of,
    take_section,
)
from pipeline.checkpoints.tensors import Tensor, TensorFiles
from pipeline.checkpoints.weights import modern_name
from pipeline.errors import CheckpointError
from pipeline.families.family import Config, Family, Network
from pipeline.families.sdxl import SDXL, SDXL_REFINER
from pipeline.families.stable_diffusion import SD_1, SD_2
from pipeline.models.unet_config import OTHER_UNETS

# The configuration of a published model of each kind, in diffusers' layout.
CONFIGS = Path(__file__).parent / "configs"
Tensors = Mapping[str, Tensor]

FIRST_LAYER = f"{UNET_PREFIX}input_blocks.0.0.weight"
FIRST_CONTEXT = f"{UNET_PREFIX}input_blocks.2.1.transformer_blocks.0.attn2.to_k.weight"
LAST_NORM = f"{UNET_PREFIX}output_blocks.11.1.transformer_blocks.0.norm1.bias"
OPEN_CLIP_LAYERS = "model.transformer.resblocks."
SD_2_CONTEXT = 1024
SD_2_BASE_STEPS = 875000  # training steps of the published model, which predicts the noise
V_PREDICTION_SPREAD = 0.09  # of LAST_NORM; files that predict the noise have less


@dataclass(frozen=True)
class FileKind:
    """A kind of single files.

    Attributes:
        name: its name, for users.
        family: the family of its models.
        folder: the folder in `CONFIGS` with the configuration of a published one.
        recognise: returns whether the tensors of a file are of this kind.
        sections: the networks' tensors, by the network's name.
    """

    name: str
    family: Family
    folder: str
    recognise: Callable[[Tensors], bool]
    sections: Mapping[str, Section]


def predicts_noise(tensors: Tensors) -> bool:
    """Return whether a Stable Diffusion 2 predicts the noise, and not the velocity."""
    step, norm = tensors.get(GLOBAL_STEP), tensors.get(LAST_NORM)
    if V_PREDICTION in tensors:
        return False
    if step is not None and step.read().item() == SD_2_BASE_STEPS:
        return True
    return norm is not None and float(np.std(norm.read().astype(np.float64))) <= V_PREDICTION_SPREAD


def _has(start: str, tensors: Tensors) -> bool:
    return any(name.startswith(start) for name in tensors)


def _is_version_2(tensors: Tensors) -> bool:
    return FIRST_CONTEXT in tensors and tensors[FIRST_CONTEXT].shape[-1] == SD_2_CONTEXT


UNET = Section((UNET_PREFIX,), to_diffusers_unet)
VAE = Section(VAE_PREFIXES, to_diffusers_vae)
# A UNet may be alone in its file, in either layout.
UNET_FILE = Section((UNET_PREFIX, ""), to_diffusers_unet)
# A VAE may be alone in its file, with a loss and an average of its training.
VAE_FILE = Section((*VAE_PREFIXES, ""), to_diffusers_vae, re.compile(r"^(loss|model_ema)\."))
TINY_VAE_FILE = Section(("",), to_diffusers_tiny_vae)
# Parts of CLIP that compare texts with pictures, and a mask that follows from the length.
NOT_CLIP = r"^(transformer\.)?(logit_scale|attn_mask|text_projection(\.weight)?)$"
NOT_OPEN_CLIP = re.compile(r"^(logit_scale|attn_mask)$")
SECTIONS_2 = {
    # The last of 24 layers was never used.
    "text_encoder": Section(
        ("cond_stage_model.model.",),
        to_diffusers_open_clip,
        re.compile(NOT_CLIP + r"|^transformer\.resblocks\.23\."),
    ),
    "unet": UNET,
    "vae": VAE,
}
KINDS = (
    FileKind(
        name="Stable Diffusion 2 base",
        family=SD_2,
        folder="sd_2_base",
        recognise=lambda tensors: _is_version_2(tensors) and predicts_noise(tensors),
        sections=SECTIONS_2,
    ),
    FileKind(
        name="Stable Diffusion 2",
        family=SD_2,
        folder="sd_2",
        recognise=_is_version_2,
        sections=SECTIONS_2,
    ),
    FileKind(
        name="Stable Diffusion XL",
        family=SDXL,
        folder="sdxl",
        recognise=partial(_has, f"conditioner.embedders.1.{OPEN_CLIP_LAYERS}"),
        sections={
            "text_encoder": Section(
                ("conditioner.embedders.0.",), to_diffusers_clip, re.compile(NOT_CLIP)
            ),
            "text_encoder_2": Section(
                ("conditioner.embedders.1.model.",),
                to_diffusers_open_clip,
                NOT_OPEN_CLIP,
            ),
            "unet": UNET,
            "vae": VAE,
        },
    ),
    FileKind(
        name="the refiner of Stable Diffusion XL",
        family=SDXL_REFINER,
        folder="sdxl_refiner",
        recognise=partial(_has, f"conditioner.embedders.0.{OPEN_CLIP_LAYERS}"),
        sections={
            "text_encoder_2": Section(
                ("conditioner.embedders.0.model.",), to_diffusers_open_clip, NOT_OPEN_CLIP
            ),
            "unet": UNET,
            "vae": VAE,
        },
    ),
    FileKind(
        name="Stable Diffusion 1",
        family=SD_1,
        folder="sd_1",
        recognise=partial(_has, "cond_stage_model.transformer."),
        sections={
            "text_encoder": Section(
                ("cond_stage_model.",), to_diffusers_clip, re.compile(NOT_CLIP)
            ),
            "unet": UNET,
            "vae": VAE,
        },
    ),
)

# Unsupported contents of files, by patterns of tensors' names that nothing else has.
OTHER_FILES = {
    r"(^|\.)double_blocks\.\d": "FLUX",
    r"(^|\.)joint_blocks\.\d": "Stable Diffusion 3",
    r"^edm_mean$": "Playground 2.5",
    r"^edm_vpred\.sigma_max$": "CosXL",
    r"^control_model\.": "a ControlNet",
    r"\.time_stack\.": "Stable Video Diffusion",
    r"^lora_(unet|te\d?)_|\.lora_(down|A)\.weight$|\.hada_w1_a$|\.lokr_w1": (
        "a LoRA, which is loaded on top of a checkpoint"
    ),
    r"^(emb_params|clip_[lg])$": "a textual inversion",
}
# Networks alone, by the start of a tensor's name.
LONE_NETWORKS = {
    "down_blocks.": "a UNet in diffusers' layout",
    "input_blocks.": "a UNet",
    "decoder.": "a VAE",
    "text_model.": "a text encoder",
}
COMPLETE = "expected a checkpoint of Stable Diffusion 1, 2 or XL with UNet, text encoders and VAE"


def recognise_file(tensors: TensorFiles) -> FileKind:
    """Find the kind of a file from its tensors' names and shapes.

    Args:
        tensors: all tensors of the file.

    Raises:
        CheckpointError: if it is of no kind that is supported; the message names the kind.
    """
    for pattern, name in OTHER_FILES.items():
        if any(re.search(pattern, tensor) for tensor in tensors):
            raise CheckpointError(f"{tensors.where}: this is {name}; {COMPLETE}")
    _check_channels(tensors)
    kind = next((kind for kind in KINDS if kind.recognise(tensors)), None)
    if kind is not None:
        return kind
    if any(name.startswith(UNET_PREFIX) for name in tensors):
        raise CheckpointError(
            f"{tensors.where}: the text encoder is missing (no tensors cond_stage_model.transformer"
            f".*, cond_stage_model.model.* or conditioner.embedders.*); {COMPLETE}"
        )
    for start, name in LONE_NETWORKS.items():
        if any(tensor.startswith(start) for tensor in tensors):
            raise CheckpointError(f"{tensors.where}: this is {name} alone; {COMPLETE}")
    first = next(iter(tensors), "none")
    raise CheckpointError(f"{tensors.where}: unknown contents (first tensor: {first}); {COMPLETE}")


def _check_channels(tensors: TensorFiles) -> None:
    shape = tensors[FIRST_LAYER].shape if FIRST_LAYER in tensors else ()
    channels = shape[1] if len(shape) == 4 else 4
    if channels in OTHER_UNETS:
        raise CheckpointError(
            f"{tensors.where}: this UNet is for {OTHER_UNETS[channels]} ({channels} input"
            f" channels); {COMPLETE}"
        )


def read_published(family: Family, part: Network) -> Any:
    """Return the configuration of a network of a published model."""
    kind = next(kind for kind in KINDS if kind.family is family)
    return part.read(CONFIGS / kind.folder / part.name / "config.json")


def scheduler_settings(tensors: Tensors) -> dict[str, Any]:
    """Return the settings of the scheduler that a file's marks replace."""
    settings: dict[str, Any] = {}
    if V_PREDICTION in tensors:
        settings["prediction_type"] = "v_prediction"
    if ZERO_SNR in tensors:
        settings["rescale_betas_zero_snr"] = True
    return settings


def fit_config(config: Config, tensors: TensorFiles, sections: Mapping[str, Section]) -> Config:
    """Return a configuration with the sizes of the networks in a file.

    Args:
        config: that of a published model of the same kind.
        tensors: all tensors of the file.
        sections: the networks that are read from it.

    Raises:
        CheckpointError: if a network is missing, or not built as this kind is.
    """
    fitted_networks = {
        part.name: _fit(part, config, tensors, sections[part.name])
        for part in config.family.all_networks
        if part.name in sections
    }
    return replace(config, networks={**config.networks, **fitted_networks})


def _fit(part: Network, config: Config, tensors: TensorFiles, section: Section) -> Any:
    if prefix_of(tensors, section) is None:
        names = " or ".join(f"{prefix}*" for prefix in section.prefixes)
        raise CheckpointError(
            f"{tensors.where}: the {part.name} is missing (no tensors {names}); {COMPLETE}"
        )
    section_tensors = take_section(tensors, section)
    return fit_network(part, config.networks[part.name], tensors.where, section_tensors)


def fit_network(
    part: Network, published_config: Any, where: Path, tensors: Tensors, fault: str = ""
) -> Any:
    """Return a network's configuration with the sizes of its tensors in diffusers' layout.

    Args:
        part: the network's place in the family.
        published_config: a configuration of the same structure.
        where: the file, for messages.
        tensors: the network's tensors.
        fault: the message if they do not fit; the default names supported models.

    Raises:
        CheckpointError: if a tensor that gives a size is missing or has other axes.
    """
    assert part.fit is not None
    shapes = {modern_name(name): tensor.shape for name, tensor in tensors.items()}
    try:
        return part.fit(published_config, shapes)
    except (LookupError, ValueError) as error:
        default = f"the {part.name} is not built as in {COMPLETE.removeprefix('expected ')}"
        raise CheckpointError(f"{where}: {fault or default} ({error})") from error
