"""A network published by itself, in a folder or a file."""

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pipeline.checkpoints.checkpoint import Component, Section
from pipeline.checkpoints.folder import LONE_CONFIG
from pipeline.checkpoints.single_file import open_section
from pipeline.checkpoints.tensors import choose_weight_files, open_tensors
from pipeline.errors import CheckpointError


class ComponentFiles(NamedTuple):
    """The files of a network, as paths below a root.

    Attributes:
        folder: the network's folder, "" for the root itself.
        weights: its weight files; see `choose_weight_files`.
    """

    folder: str
    weights: list[str]

    @property
    def config(self) -> str:
        """The network's configuration."""
        return str(Path(self.folder, LONE_CONFIG))


def find_component(
    names: Collection[str], where: str, network: str, prefer_fp16: bool = False
) -> ComponentFiles:
    """Find a network among the files of a root: its own, or that of a whole checkpoint.

    Args:
        names: all files, as paths below the root.
        where: the root, for messages.
        network: the network's folder in a checkpoint, such as `vae`.
        prefer_fp16: whether to choose the fp16 variant where both are complete.

    Raises:
        CheckpointError: if the network is not there, or has no safetensors weights.
    """
    folder = "" if LONE_CONFIG in names else network
    if str(Path(folder, LONE_CONFIG)) not in names:
        raise CheckpointError(
            f"{where}: holds no {network}; expected a {LONE_CONFIG}, {network}/{LONE_CONFIG} or the"
            " name of a .safetensors file, with weights"
        )
    paths = [name if folder else f"{network}/{name}" for name in names]
    try:
        weight_files = choose_weight_files(paths, network, prefer_fp16)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from None
    return ComponentFiles(
        folder, [name if folder else name.removeprefix(f"{network}/") for name in weight_files]
    )


def component_in_folder(root: Path, name: str, files: ComponentFiles) -> Component:
    """Return the network whose files `find_component` found."""
    folder = root / files.folder
    open_weights = partial(open_tensors, folder, files.weights)
    return Component(name, folder, root / files.config, open_weights)


def component_in_file(file: Path, name: str, section: Section) -> Component:
    """Return the network whose tensors are a section of a file."""
    return Component(name, file, None, partial(open_section, file, section))
