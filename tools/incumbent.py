"""The Flax pipelines of diffusers 0.39, run in an environment of their own.

    .venv-incumbent/bin/python -m tools.incumbent CHECKPOINT OUT.npz

draws `tools.flax_calls.pictures` from a checkpoint, on each number of `--devices`. Without torch
those classes read Flax's own format alone, so a copy is made that has the weights in it.

Two constants of theirs are not those of the networks as they were trained, in torch, which this
project follows: the epsilon of the GroupNorm before a transformer (1e-5 for 1e-6) and the gate of
GEGLU (GELU's tanh approximation for the exact one). `--torch-constants` gives them torch's and
leaves everything else as it is, so that what remains is a difference for which there is no excuse.
"""

import argparse
import shutil
import tempfile
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

from tools import flax_calls

TEXT_ENCODERS = {
    "text_encoder": FlaxCLIPTextModel,
    "text_encoder_2": FlaxCLIPTextModelWithProjection,
}
MODELS = {
    "unet": diffusers.FlaxUNet2DConditionModel,
    "vae": diffusers.FlaxAutoencoderKL,
}


class _Tensor(np.ndarray):
    """A NumPy array to code that expects torch's tensors."""

    def numpy(self) -> np.ndarray:
        return np.asarray(self, np.float32)


def convert(checkpoint: Path, folder: Path) -> None:
    """Copies a checkpoint to a folder that is not there yet, with Flax's weights beside it."""
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


def load(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A checkpoint's pipeline, without a safety checker, and its parameters."""
    xl = (folder / "text_encoder_2").is_dir()
    absent = {} if xl else {"safety_checker": None, "feature_extractor": None}
    return diffusers.FlaxDiffusionPipeline.from_pretrained(folder, **absent)


def use_torch_constants() -> None:
    """Gives the classes the two constants that torch's have."""
    attention_flax.nn = _Patched()


class _Patched:
    """`flax.linen` as diffusers' attention_flax.py uses it, but for two constants."""

    gelu = staticmethod(partial(nn.gelu, approximate=False))
    GroupNorm = staticmethod(lambda num_groups, epsilon: nn.GroupNorm(num_groups, epsilon=1e-6))

    def __getattr__(self, name: str) -> Any:
        return getattr(nn, name)


def main() -> None:
    """Draws the pictures and writes them as one file."""
    parser = argparse.ArgumentParser(prog="python -m tools.incumbent")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
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
        drawn = flax_calls.pictures(*load(folder), options.devices)
    np.savez_compressed(options.out, **drawn)


if __name__ == "__main__":
    main()
