"""Checkpoints in one file, in the original layout of Stable Diffusion: all networks' tensors."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoints.checkpoint import Checkpoint, FetchOptions, Section
from pipeline.checkpoints.tensors import PICKLE_SUFFIXES, Tensor, TensorFiles, open_file
from pipeline.errors import CheckpointError

SUFFIX = ".safetensors"
UNET_PREFIX = "model.diffusion_model."
VAE_PREFIXES = ("first_stage_model.", "vae.")
# The moving average of the UNet's weights has their names without dots.
EMA_PREFIX = "model_ema.diffusion_model"
# Tensors that files carry and no picture depends on: the noise schedule, which follows from two
# numbers, losses of training, and counters.
UNUSED = re.compile(
    r"^((log_)?(one_minus_)?alphas_cumprod(_prev)?|sqrt_(recip_|recipm1_|one_minus_)?alphas_cumprod"
    r"|log_one_minus_alphas_cumprod|betas|posterior_\w+|lvlb_weights|logvar|denoiser\.sigmas"
    r"|scale_factor|loss\..*|model_ema\.(decay|num_updates)"
    r"|(first_stage_model|vae)\.(loss|model_ema)\..*)$"
)
# Tensors that say how a model was trained: the number of steps, and two that are empty.
GLOBAL_STEP, V_PREDICTION, ZERO_SNR = MARKS = ("global_step", "v_pred", "ztsnr")


@dataclass(frozen=True)
class SingleFileCheckpoint(Checkpoint):
    """A checkpoint in one file.

    Attributes:
        file: its path.
        sections: its networks' tensors, by the network's name.
        ema: whether the UNet's weights are their moving average.
    """

    file: Path
    sections: Mapping[str, Section]
    ema: bool

    def own_tensors(self, network: str) -> TensorFiles:
        section = self.sections[network]
        return open_section(self.file, section, self.ema and UNET_PREFIX in section.prefixes)


def open_single_file(
    file: Path, model: str, revision: str | None, options: FetchOptions
) -> SingleFileCheckpoint:
    """Return the checkpoint in a file, of which little more than the header is read.

    Raises:
        CheckpointError: if the file is damaged, or not a checkpoint that is supported.
    """
    replacements = options.reader.replacements
    with open_file(file, UNUSED) as tensors:
        file_kind = options.reader.recognise(tensors)
        _check_known(tensors, file_kind.sections, replacements)
        if options.ema and not any(name.startswith(EMA_PREFIX) for name in tensors):
            raise CheckpointError(
                f"{file}: it holds no moving average of the UNet's weights ({EMA_PREFIX}*); load it"
                " without ema"
            )
    return SingleFileCheckpoint(
        file_kind.folder,
        model,
        revision,
        file_kind.config,
        file,
        file_kind.sections,
        options.ema,
        replacements=replacements,
    )


def check_is_safetensors(file: str) -> None:
    """Raise CheckpointError unless a file's name ends in `.safetensors`."""
    if file.endswith(SUFFIX):
        return
    if file.lower().endswith(PICKLE_SUFFIXES):
        raise CheckpointError(
            f"{file}: only safetensors files are read; this format can run code when it is opened,"
            " and never is. Convert the file where you trust it, or look for its .safetensors"
        )
    raise CheckpointError(
        f"{file}: is a file; expected a folder in diffusers' layout or a {SUFFIX} file"
    )


def prefix_of(tensors: Iterable[str], section: Section) -> str | None:
    """Return the prefix that a section has in a file; None if the section is not there."""
    names = list(tensors)
    prefixes = (prefix for prefix in section.prefixes if any(x.startswith(prefix) for x in names))
    return next(prefixes, None)


def take_section(
    tensors: Mapping[str, Tensor], section: Section, average: bool = False
) -> dict[str, Tensor]:
    """Return a network's tensors by their names in diffusers' layout; empty if it is not there.

    Args:
        tensors: all tensors of the file.
        section: the network's.
        average: whether to return the moving average of the weights.

    Raises:
        CheckpointError: if two tensors have the same name in diffusers' layout, if one has no
            moving average, or if one cannot be divided.
    """
    prefix = prefix_of(tensors, section)
    if prefix is None:
        return {}
    names = {
        name.removeprefix(prefix): name
        for name in tensors
        if name.startswith(prefix)
        and not (section.unused and section.unused.search(name.removeprefix(prefix)))
    }
    if average:
        names = {name: _average_name(name, tensors) for name in names}
    return dict(section.rename({name: tensors[key] for name, key in names.items()}))


def open_section(file: Path, section: Section, average: bool = False) -> TensorFiles:
    """Open a network's tensors in a file; the arguments are those of `take_section`.

    Raises:
        CheckpointError: if the file is damaged or cannot be read, or as `take_section` says.
    """
    files = open_file(file, UNUSED)
    try:
        return files.selected(take_section(files, section, average))
    except BaseException:
        files.close()
        raise


def _average_name(name: str, tensors: Mapping[str, Tensor]) -> str:
    average = EMA_PREFIX + name.replace(".", "")
    if average not in tensors:
        [file] = {tensor.file for tensor in tensors.values()}
        raise CheckpointError(f"{file}: the tensor {average} is missing")
    return average


def _check_known(
    tensors: Mapping[str, Tensor], sections: Mapping[str, Section], replacements: Collection[str]
) -> None:
    """Raise CheckpointError if a tensor belongs to no network.

    Args:
        tensors: all tensors of the file.
        sections: each network's.
        replacements: networks that are not read from the file.
    """
    known_prefixes = [EMA_PREFIX]
    for network, section in sections.items():
        prefixes = section.prefixes if network in replacements else [prefix_of(tensors, section)]
        known_prefixes += [prefix for prefix in prefixes if prefix]
    unknown_tensors = [
        tensor
        for name, tensor in tensors.items()
        if name not in MARKS and not name.startswith(tuple(known_prefixes))
    ]
    if unknown_tensors:
        tensor, more = unknown_tensors[0], len(unknown_tensors) - 1
        raise CheckpointError(
            f"{tensor.file}: unknown tensor {tensor.name}"
            + (f", and {more} more" if more else "")
            + f"; expected only names that start with {', '.join(known_prefixes)}"
        )
