"""ControlNets beside a model: finding one, and checking that it fits."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from pipeline.checkpoints.checkpoint import Component, Section
from pipeline.checkpoints.contents import CONTROLNET
from pipeline.checkpoints.folder import LONE_CONFIG
from pipeline.checkpoints.original_names import to_diffusers_controlnet
from pipeline.checkpoints.single_file import SUFFIX, UNET_PREFIX
from pipeline.checkpoints.source import fetch_component, local_path
from pipeline.checkpoints.tensors import Tensor, TensorFiles
from pipeline.errors import CheckpointError
from pipeline.families.family import Config
from pipeline.families.latent_unet import CONTROL, CONTROL_NETWORK
from pipeline.families.reader import FIXED, check_fit
from pipeline.families.single_files import TRAINING, fit_network
from pipeline.models.controlnet_config import ControlNetConfig
from pipeline.text.controls import UNION_TYPES

# The folder of a ControlNet in a whole checkpoint in diffusers' layout.
FOLDER = "controlnet"
# The models that ControlNets are published for, by the width of their text encoders.
MODELS = {768: "Stable Diffusion 1", 1024: "Stable Diffusion 2", 2048: "Stable Diffusion XL"}
FAULT = "this ControlNet is not built as those of Stable Diffusion 1, 2 and XL"
# No tensor says that residuals are means. ComfyUI tells it by the file's name too.
POOLED = re.compile(r"_shuffle(_fp16)?$")
TYPES = "task_embedding"  # the tensor with a row for each type of a union network
_HASHED = 2**20, 2**16  # the start and the number of the bytes that a digest covers of a file


@dataclass(frozen=True, eq=False)
class ControlFiles:
    """The files of a ControlNet that fits a model.

    Attributes:
        name: its Hub id, or the name of its folder or file without the suffix.
        config: its configuration.
        open: opens its tensors, by their names in diffusers' layout.
        digest: the 8 digits that AUTOMATIC1111's ControlNet extension writes behind the name: of
            the SHA-256 of 64 KiB of the weights.
    """

    name: str
    config: ControlNetConfig
    open: Callable[[], TensorFiles]
    digest: str


def _to_diffusers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a file's tensors by their names in diffusers' layout.

    The reader of single files gives a UNet's prefix to original names without any.
    """
    return to_diffusers_controlnet(
        {name.removeprefix(UNET_PREFIX): tensor for name, tensor in tensors.items()}
    )


FILE = Section(("control_model.", ""), _to_diffusers, TRAINING, (CONTROLNET,))


def find_control(source: str, config: Config, half: bool) -> ControlFiles:
    """Find a ControlNet, of which little more than the header is read.

    Args:
        source: a folder in diffusers' layout, or with a single file; an id on the Hub; or a file
            there or here.
        config: the configuration of the model that it is for.
        half: whether to prefer an fp16 variant.

    Raises:
        CheckpointError: if it is not there, cannot be downloaded, is of another kind, or does not
            fit the model.
    """
    folder = local_path(source)
    files = [*folder.glob(f"*{SUFFIX}")] if source and folder.is_dir() else []
    if len(files) == 1 and not (folder / LONE_CONFIG).is_file():
        source = str(files[0])
    component = fetch_component(source, FOLDER, FILE, half)
    with component.open() as tensors:
        network = _read(component, tensors, config)
        digest = _digest(tensors.versions)
    check_fit(network, config.networks["vae"], FIXED["tiny_vae"], component, config.family.name)
    check_fit(network, config.networks["unet"], FIXED[CONTROL], component, config.family.name)
    return ControlFiles(component.name.removesuffix(SUFFIX), network, component.open, digest)


def _read(component: Component, tensors: TensorFiles, config: Config) -> ControlNetConfig:
    """Return a ControlNet's configuration, from its file or from its tensors."""
    unet = config.networks["unet"]
    if component.config is None:
        keys = [x for name, x in tensors.items() if name.endswith(".attn2.to_k.weight")]
        width = [*chain.from_iterable(x.shape[1:] for x in keys), unet.cross_attention_dim][0]
        _check_model(component, width, config)
        network = fit_network(CONTROL_NETWORK, unet, component.where, tensors, FAULT)
        network = replace(network, global_pool=bool(POOLED.search(component.where.stem)))
    else:
        network = CONTROL_NETWORK.read(component.config)
        _check_model(component, network.cross_attention_dim, config)
    # A union network's own repository has weights for 6 types and for 8.
    types = (*tensors[TYPES].shape, 0)[0] if TYPES in tensors and network.addition else 0
    if types > len(UNION_TYPES):
        raise CheckpointError(
            f"{component.where}: it tells {types} types of pictures apart; expected at most"
            f" {len(UNION_TYPES)}: {', '.join(UNION_TYPES)}"
        )
    return replace(network, control_types=types)


def _check_model(component: Component, width: int, config: Config) -> None:
    """Raise CheckpointError if a ControlNet is for models with another text width."""
    right = config.networks["unet"].cross_attention_dim
    if width != right:
        models = MODELS.get(width, "another model")
        raise CheckpointError(
            f"{component.where}: this ControlNet is for {models} (its text width is {width}), and"
            f" the model is {config.family.name} ({right})"
        )


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    start, count = _HASHED
    for file in sorted(files):  # there are several if the weights are sharded
        with file.open("rb") as content:
            content.seek(start if file.stat().st_size > start else 0)
            digest.update(content.read(count))
    return digest.hexdigest()[:8]
