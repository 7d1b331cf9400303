"""Kinds of single files: how each is recognised, where its networks are, and what it is called.

Order and rules follow diffusers' `loaders/single_file_utils.py` and ComfyUI's `model_detection.py`.
A kind is never recognised by elimination: many other models have a UNet of the same names.
"""

import logging
import re
import reprlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.checkpoints.checkpoint import Section
from pipeline.checkpoints.contents import TINY_VAE, UNET, VAE, WHOLE, contents, use_of
from pipeline.checkpoints.original_names import (
    to_diffusers_clip,
    to_diffusers_open_clip,
    to_diffusers_tiny_vae,
    to_diffusers_unet,
    to_diffusers_vae,
)
from pipeline.checkpoints.single_file import (
    GLOBAL_STEP,
    MARKS,
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

log = logging.getLogger(__name__)

# The configuration of a published model of each kind, in diffusers' layout.
CONFIGS = Path(__file__).parent / "configs"
Tensors = Mapping[str, Tensor]

FIRST_LAYER = f"{UNET_PREFIX}input_blocks.0.0.weight"
FIRST_CONTEXT = f"{UNET_PREFIX}input_blocks.2.1.transformer_blocks.0.attn2.to_k.weight"
LAST_NORM = f"{UNET_PREFIX}output_blocks.11.1.transformer_blocks.0.norm1.bias"
OPEN_CLIP_LAYERS = "model.transformer.resblocks."
SD_2_CONTEXT = 1024
INPAINTING_CHANNELS = 9
SD_2_BASE_STEPS = 875000  # training steps of the published model, which predicts the noise
V_PREDICTION_SPREAD = 0.09  # of LAST_NORM; files that predict the noise have less
# Where a file's header says what the UNet predicts: the keys of ModelSpec, as kohya's scripts and
# OneTrainer write it, of ComfyUI, and of kohya's scripts before. Their values without punctuation.
PREDICTION_NOTES = ("modelspec.prediction_type", "modelspec.predict_key", "ss_v_parameterization")
PREDICTIONS = {
    **dict.fromkeys(("epsilon", "eps", "false"), "epsilon"),
    **dict.fromkeys(("v", "vprediction", "vpred", "velocity", "true"), "v_prediction"),
    **dict.fromkeys(("sample", "x0"), "sample"),
}
ZERO_SNR_NOTE = "ss_zero_terminal_snr"
# AUTOMATIC1111 reads a configuration beside a file, which OneTrainer writes too.
PARAMETERIZATION = re.compile(r"^[ \t]*+parameterization:[ \t]*+[\"']?(\w+)", re.M)
MAX_YAML = 2**16  # characters; those of published models have 2,000


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
    step, norm, first = (tensors.get(name) for name in (GLOBAL_STEP, LAST_NORM, FIRST_LAYER))
    if V_PREDICTION in tensors:
        return False
    if step is not None and step.read().item() == SD_2_BASE_STEPS:
        return True
    if first is not None and first.shape[1:2] == (INPAINTING_CHANNELS,):  # as in ComfyUI
        return True
    return norm is not None and float(np.std(norm.read().astype(np.float64))) <= V_PREDICTION_SPREAD


def _has(start: str, tensors: Tensors) -> bool:
    return any(name.startswith(start) for name in tensors)


def _is_version_2(tensors: Tensors) -> bool:
    return FIRST_CONTEXT in tensors and tensors[FIRST_CONTEXT].shape[-1] == SD_2_CONTEXT


UNET_SECTION = Section((UNET_PREFIX,), to_diffusers_unet)
VAE_SECTION = Section(VAE_PREFIXES, to_diffusers_vae)
# Tensors that training leaves in the file of a single network: marks, a loss and an average.
TRAINING = re.compile(rf"^(loss|model_ema)\.|^({'|'.join(MARKS)})$")
# A UNet may be alone in its file, in either layout.
UNET_FILE = Section((UNET_PREFIX, "unet.", ""), to_diffusers_unet, TRAINING, (UNET, WHOLE))
VAE_FILE = Section((*VAE_PREFIXES, ""), to_diffusers_vae, TRAINING, (VAE, WHOLE))
TINY_VAE_FILE = Section(("",), to_diffusers_tiny_vae, kinds=(TINY_VAE,))
# Parts of CLIP that compare texts with pictures.
NOT_OPEN_CLIP = re.compile(r"^(transformer\.)?(vision_model|visual|visual_projection)\.")
NOT_CLIP = re.compile(rf"{NOT_OPEN_CLIP.pattern}|^(transformer\.)?text_projection(\.weight)?$")
SECTIONS_2 = {
    # The last of 24 layers was never used.
    "text_encoder": Section(
        # The second prefix is that of `sd_turbo`.
        ("cond_stage_model.model.", "conditioner.embedders.0.model."),
        to_diffusers_open_clip,
        re.compile(NOT_CLIP.pattern + r"|^transformer\.resblocks\.23\."),
    ),
    "unet": UNET_SECTION,
    "vae": VAE_SECTION,
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
            "text_encoder": Section(("conditioner.embedders.0.",), to_diffusers_clip, NOT_CLIP),
            "text_encoder_2": Section(
                ("conditioner.embedders.1.model.",),
                to_diffusers_open_clip,
                NOT_OPEN_CLIP,
            ),
            "unet": UNET_SECTION,
            "vae": VAE_SECTION,
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
            "unet": UNET_SECTION,
            "vae": VAE_SECTION,
        },
    ),
    FileKind(
        name="Stable Diffusion 1",
        family=SD_1,
        folder="sd_1",
        recognise=partial(_has, "cond_stage_model.transformer."),
        sections={
            "text_encoder": Section(("cond_stage_model.",), to_diffusers_clip, NOT_CLIP),
            "unet": UNET_SECTION,
            "vae": VAE_SECTION,
        },
    ),
)

COMPLETE = "expected a checkpoint of Stable Diffusion 1, 2 or XL with UNet, text encoders and VAE"
# The setting that names a network which a file lacks.
WITHOUT = {"vae": "VAE_ID names one", "unet": "UNET_ID names one"}


def recognise_file(tensors: TensorFiles) -> FileKind:
    """Find the kind of a file from its tensors' names and shapes.

    Args:
        tensors: all tensors of the file.

    Raises:
        CheckpointError: if it is of no kind that is supported; the message names the kind.
    """
    content = contents(tensors)
    if content in (None, WHOLE, UNET):
        _check_channels(tensors)
    if content not in (None, WHOLE):
        raise CheckpointError(
            f"{tensors.where}: this is {content}{use_of(content) or f'; {COMPLETE}'}"
        )
    kind = next((kind for kind in KINDS if kind.recognise(tensors)), None)
    if kind is not None:
        return kind
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


def scheduler_settings(tensors: TensorFiles) -> dict[str, Any]:
    """Return the settings of the scheduler that the marks of a UNet's file replace.

    A mark is an empty tensor, a note in the header, or the configuration beside the file. The
    tensors count most, as in ComfyUI.

    Args:
        tensors: all tensors of the file.

    Raises:
        CheckpointError: if the UNet predicts something else than is supported.
    """
    settings: dict[str, Any] = {}
    noted_prediction = _noted_prediction(tensors)
    if V_PREDICTION in tensors:
        settings["prediction_type"] = "v_prediction"
        if noted_prediction not in (None, "v_prediction"):
            log.warning(
                "%s: its tensor %s says v_prediction, and its notes %s; the tensor counts",
                *(tensors.where, V_PREDICTION, noted_prediction),
            )
    elif noted_prediction is not None:
        settings["prediction_type"] = noted_prediction
    elif _is_version_2(tensors):
        settings["prediction_type"] = "epsilon" if predicts_noise(tensors) else "v_prediction"
    if ZERO_SNR in tensors or tensors.metadata.get(ZERO_SNR_NOTE) == "True":
        settings["rescale_betas_zero_snr"] = True
    elif V_PREDICTION in tensors:
        settings["rescale_betas_zero_snr"] = False
    return settings


def _noted_prediction(tensors: TensorFiles) -> str | None:
    """Return the type of prediction that a file's header or configuration names; None if none."""
    notes: list[tuple[str, str]] = []
    with suppress(OSError), tensors.where.with_suffix(".yaml").open(errors="replace") as file:
        notes += [(file.name, note) for note in PARAMETERIZATION.findall(file.read(MAX_YAML))]
    notes += [(f"note {key}", tensors.metadata.get(key, "")) for key in PREDICTION_NOTES]
    for source, note in notes:
        value = re.sub(r"[\W_]", "", note).lower()
        if value in PREDICTIONS:
            return PREDICTIONS[value]
        if value not in ("", "none"):
            raise CheckpointError(
                f"{tensors.where}: the {source} says that it predicts {reprlib.repr(note)};"
                " supported are epsilon, v and sample"
            )
    return None


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
            f"{tensors.where}: the {part.name} is missing (no tensors {names});"
            f" {WITHOUT.get(part.name, COMPLETE)}"
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
