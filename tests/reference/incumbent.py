"""The Flax pipelines of diffusers 0.39, run in their own environment.

    .venv-incumbent/bin/python -m tests.reference.incumbent CHECKPOINT OUT.npz

Draws `tests.flax_calls.pictures` from a checkpoint, on each number of `--devices`. Without torch
those classes read only Flax's own format, so the checkpoint is copied and converted first.

Two of their constants differ from those with which torch trained the networks, and which this
project follows: the epsilon of the GroupNorm before a transformer (1e-5 instead of 1e-6) and the
gate of GEGLU (GELU's tanh approximation instead of the exact one). `--torch-constants` sets both to
torch's and leaves everything else as it is, so that any other difference is an error.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import diffusers.utils.logging
import flax.linen as nn
import jax
import numpy as np
import transformers.utils.logging
from diffusers.models import attention_flax
from diffusers.models.modeling_flax_pytorch_utils import convert_pytorch_state_dict_to_flax
from flax.serialization import to_bytes
from safetensors.numpy import load_file
from transformers import FlaxCLIPTextModel, FlaxCLIPTextModelWithProjection

from tests import flax_calls

TEXT_ENCODERS = {
    "text_encoder": FlaxCLIPTextModel,
    "text_encoder_2": FlaxCLIPTextModelWithProjection,
}
MODELS = {
    "unet": diffusers.FlaxUNet2DConditionModel,
    "vae": diffusers.FlaxAutoencoderKL,
}


# The functions that draw by each class.
DRAWN: dict[str, Callable[..., dict[str, np.ndarray]]] = {
    "FlaxDiffusionPipeline": flax_calls.pictures,
    "FlaxStableDiffusionImg2ImgPipeline": flax_calls.from_picture,
    "FlaxStableDiffusionInpaintPipeline": flax_calls.inpainted,
}


class _Tensor(np.ndarray):
    """A NumPy array for code that expects torch's tensors."""

    def numpy(self) -> np.ndarray:
        return np.asarray(self, np.float32)


def convert(checkpoint: Path, folder: Path) -> None:
    """Copy a checkpoint to `folder`, which must not exist, and add Flax's weights to it."""
    shutil.copytree(checkpoint, folder)
    for name, kind in TEXT_ENCODERS.items():
        if (folder / name).is_dir():
            model = kind.from_pretrained(folder / name)
            model.save_pretrained(folder / name, params=model.to_fp32(model.params))
    for name, kind in MODELS.items():
        model = kind.from_config(kind.load_config(folder / name))
        tensors = {
            key: tensor.view(_Tensor)
            for file in (folder / name).glob("*.safetensors")
            for key, tensor in load_file(file).items()
        }
        params = convert_pytorch_state_dict_to_flax(tensors, model)
        (folder / name / "diffusion_flax_model.msgpack").write_bytes(to_bytes(params))


def load(folder: Path, kind: str) -> tuple[Any, dict[str, Any]]:
    """Load a checkpoint by a class, without a safety checker; return it and its parameters."""
    xl = (folder / "text_encoder_2").is_dir()
    options = {} if xl else {"safety_checker": None, "feature_extractor": None}
    return getattr(diffusers, kind).from_pretrained(folder, **options)


def use_torch_constants() -> None:
    """Set the two constants of diffusers' classes to torch's."""
    attention_flax.nn = _Patched()


class _Patched:
    """`flax.linen` for diffusers' attention_flax.py, with two constants changed."""

    gelu = staticmethod(partial(nn.gelu, approximate=False))
    GroupNorm = staticmethod(lambda num_groups, epsilon: nn.GroupNorm(num_groups, epsilon=1e-6))

    def __getattr__(self, name: str) -> Any:
        return getattr(nn, name)


def main() -> None:
    """Draw the pictures and write them to one file."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference.incumbent")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=DRAWN, default="FlaxDiffusionPipeline")
    parser.add_argument("--torch-constants", action="store_true")
    parser.add_argument("--devices", type=int, nargs="*", default=flax_calls.DEVICES)
    options = parser.parse_args()
    for logging in (diffusers.utils.logging, transformers.utils.logging):
        logging.set_verbosity_error()
    jax.config.update("jax_num_cpu_devices", 8)
    if options.torch_constants:
        use_torch_constants()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "checkpoint")
        convert(options.checkpoint, folder)
        pictures = DRAWN[options.kind](*load(folder, options.kind), options.devices)
    np.savez_compressed(options.out, **pictures)


if __name__ == "__main__":
    main()
