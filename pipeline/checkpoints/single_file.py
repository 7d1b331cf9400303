"""Checkpoints in one file, in the original layout of Stable Diffusion: all networks' tensors."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoints.checkpoint import Checkpoint, FetchOptions, Section
from pipeline.checkpoints.contents import contents, use_of
from pipeline.checkpoints.original_names import renamed, replaced
from pipeline.checkpoints.tensors import PICKLE_SUFFIXES, Tensor, TensorFiles, open_file
from pipeline.errors import CheckpointError

SUFFIX = ".safetensors"
UNET_PREFIX = "model.diffusion_model."
VAE_PREFIXES = ("first_stage_model.", "vae.")
# The moving average of the weights; that of the UNet's has their names without dots.
EMA_PREFIX = "model_ema."
EMA_UNET_PREFIX = f"{EMA_PREFIX}diffusion_model"
# Other formats, by the ends of their files' names.
OTHER_FORMATS = {
    **dict.fromkeys(
        PICKLE_SUFFIXES,
        "this format can run code when it is opened, and never is. Convert the file where you trust"
        " it, or look for its .safetensors",
    ),
    ".gguf": "this is GGUF, whose weights are quantised; look for the model's .safetensors",
    ".sft": "rename it, so that its name ends in .safetensors",
    ".onnx": "this is ONNX, a program of its own; look for the model's .safetensors",
}
# Tensors that say how a model was trained: the number of steps, and two that are empty.
GLOBAL_STEP, V_PREDICTION, ZERO_SNR = MARKS = ("global_step", "v_pred", "ztsnr")
# Patterns of names that programs give to the UNet and to marks, and the usual names. ComfyUI puts
# the marks into the UNet or beside it, and a UNet may be alone in its file.
ALIASES = (
    (r"^(model\.)*diffusion_model\.", UNET_PREFIX),
    (
        r"^(input_blocks|middle_block|output_blocks|time_embed|label_emb|out)\.",
        rf"{UNET_PREFIX}\1.",
    ),
    (r"^model\.diffusion_model\.(v_pred$|ztsnr$|edm_)", r"\1"),
)
# Tensors that files carry and no picture depends on: the noise schedule, which follows from two
# numbers, losses of training, counters, the numbers of positions, masks that follow from a length,
# and networks of other tasks.
UNUSED = re.compile(
    r"^(model\.)?((log_)?(one_minus_)?alphas_cumprod(_prev)?|sqrt_(recip_|recipm1_|one_minus_)?"
    r"alphas_cumprod|log_one_minus_alphas_cumprod|betas|posterior_\w+|lvlb_weights|logvar|snr"
    r"|((denoiser|model_sampling)\.)?(log_)?sigmas|scale_factor|epoch|(loss|embedding_manager)\..*"
    r"|safety_checker\..*|model_ema\.(decay|num_updates)"
    r"|(.+\.)?(position_ids|logit_scale|attn_mask)"
    r"|(first_stage_model|vae)\.(loss|model_ema)\..*)$"
)


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
    with _open(file) as tensors:
        file_kind = options.reader.recognise(tensors)
        _check_known(tensors, file_kind.sections, replacements)
        if options.ema and not any(name.startswith(EMA_UNET_PREFIX) for name in tensors):
            raise CheckpointError(
                f"{file}: it holds no moving average of the UNet's weights ({EMA_UNET_PREFIX}*);"
                " load it without ema"
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
    for suffix, reason in OTHER_FORMATS.items():
        if file.lower().endswith(suffix):
            raise CheckpointError(f"{file}: only safetensors files are read; {reason}")
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
        CheckpointError: if the file is damaged or cannot be read, if it is of another kind, or as
            `take_section` says.
    """
    with _open(file) as files:
        kind = contents(files) if section.kinds else None
        if kind is not None and kind not in section.kinds:
            expected = " or ".join(section.kinds)
            raise CheckpointError(f"{file}: this is {kind}; expected {expected}{use_of(kind)}")
        return files.selected(take_section(files, section, average))


def _open(file: Path) -> TensorFiles:
    """Open all tensors of a file but those without use, by the usual names.

    Raises:
        CheckpointError: if the file is damaged or cannot be read, or two tensors have one name.
    """
    with open_file(file, UNUSED) as files:
        return files.selected(
            renamed((replaced(name, ALIASES), tensor) for name, tensor in files.items())
        )


def _average_name(name: str, tensors: Mapping[str, Tensor]) -> str:
    average = EMA_UNET_PREFIX + name.replace(".", "")
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
