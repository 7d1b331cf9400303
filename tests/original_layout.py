"""Single files in the original layout of Stable Diffusion, from folders in diffusers' layout.

    .venv/bin/python -m tests.original_layout runs/full_size model.safetensors --dtype float16

The names are those of CompVis' and Stability AI's code, as model sites offer them. They are written
down here apart from the names that the reader knows, so that the two check each other. Tensors are
read, cast and written one at a time.
"""

import argparse
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from pipeline.checkpoints.original_names import original_unet_names
from pipeline.checkpoints.tensors import Tensor, TensorFiles, open_tensors
from pipeline.checkpoints.weights import IGNORED, modern_name

DTYPES = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(np.int64): "I64",
}
UNET, VAE = "model.diffusion_model.", "first_stage_model."
CLIP, OPEN_CLIP = "cond_stage_model.transformer.text_model.", "cond_stage_model.model."
SDXL_CLIP = "conditioner.embedders.0.transformer.text_model."
SDXL_OPEN_CLIP = "conditioner.embedders.1.model."
REFINER_OPEN_CLIP = "conditioner.embedders.0.model."
EMA_FACTOR = 0.5  # an EMA that is told from the weights, and exact in every dtype

VAE_ENDS = {
    "mid_block.resnets.0": "mid.block_1",
    "mid_block.resnets.1": "mid.block_2",
    "mid_block.attentions.0.group_norm": "mid.attn_1.norm",
    "mid_block.attentions.0.to_q": "mid.attn_1.q",
    "mid_block.attentions.0.to_k": "mid.attn_1.k",
    "mid_block.attentions.0.to_v": "mid.attn_1.v",
    "mid_block.attentions.0.to_out.0": "mid.attn_1.proj_out",
    "conv_norm_out": "norm_out",
}
_VAE_LAYER = re.compile(r"^(encoder|decoder)\.(down|up)_blocks\.(\d+)\.(\w+)\.(\d+)\.")
OPEN_CLIP_ENDS = {
    "embeddings.position_embedding.weight": "positional_embedding",
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
    "text_projection.weight": "text_projection",
}
OPEN_CLIP_INNER = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}


@dataclass(frozen=True)
class Entry:
    """One tensor of the file to write; `read` returns its values."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


def _held(values: np.ndarray) -> Entry:
    return Entry(values.shape, values.dtype, lambda: values)


def _copied(tensor: Tensor) -> Entry:
    return Entry(tensor.shape, tensor.dtype, tensor.read)


def _v_pred(_: bool) -> Iterator[tuple[str, Entry]]:
    yield "v_pred", _held(np.zeros(0, np.float32))


def _ztsnr(_: bool) -> Iterator[tuple[str, Entry]]:
    yield "ztsnr", _held(np.zeros(0, np.float32))


def _position_ids(is_xl: bool) -> Iterator[tuple[str, Entry]]:
    name = f"{SDXL_CLIP if is_xl else CLIP}embeddings.position_ids"
    yield name, _held(np.arange(77, dtype=np.int64)[None])


def _schedule(_: bool) -> Iterator[tuple[str, Entry]]:
    """Yield the schedule that training saved; drawing makes its own."""
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=np.float64) ** 2
    products = np.cumprod(1 - betas)
    yield "betas", _held(betas.astype(np.float32))
    yield "alphas_cumprod", _held(products.astype(np.float32))
    yield "sqrt_alphas_cumprod", _held(np.sqrt(products).astype(np.float32))


def _logit_scale(is_xl: bool) -> Iterator[tuple[str, Entry]]:
    prefix = SDXL_OPEN_CLIP if is_xl else OPEN_CLIP
    yield f"{prefix}logit_scale", _held(np.array(4.6, np.float32))


# Tensors that published files have beside the weights, by the name of the extra.
EXTRAS: Mapping[str, Callable[[bool], Iterator[tuple[str, Entry]]]] = {
    "v_pred": _v_pred,
    "ztsnr": _ztsnr,
    "position_ids": _position_ids,
    "alphas_cumprod": _schedule,
    "logit_scale": _logit_scale,
}


def export(
    folder: Path,
    file: Path,
    *,
    dtype: str | None = None,
    ema: bool = False,
    extra_keys: Collection[str] = (),
) -> None:
    """Write a checkpoint in diffusers' layout as one file in the original layout.

    Args:
        folder: a Stable Diffusion 1 or 2, an SDXL or its refiner. A single text encoder with the
            activation `gelu` is OpenCLIP's, as in Stable Diffusion 2.
        file: the `.safetensors` file to write.
        dtype: `float32`, `float16`, `bfloat16` or `float8_e4m3fn`; None keeps each tensor's own.
        ema: whether to add an EMA of the UNet, which is the weights times `EMA_FACTOR`.
        extra_keys: names of `EXTRAS` to add.
    """
    is_xl, has_clip = ((folder / name).is_dir() for name in ("text_encoder_2", "text_encoder"))
    with ExitStack() as files:

        def opened(component: str) -> TensorFiles:
            return files.enter_context(open_tensors(folder / component))

        entries = _unet(opened("unet"), ema)
        entries |= _prefixed(VAE, _vae(opened("vae")))
        if not has_clip:
            entries |= _prefixed(REFINER_OPEN_CLIP, _open_clip(opened("text_encoder_2")))
        elif is_xl:
            entries |= _prefixed(SDXL_CLIP, _clip(opened("text_encoder")))
            entries |= _prefixed(SDXL_OPEN_CLIP, _open_clip(opened("text_encoder_2")))
        elif _activation(folder / "text_encoder") == "gelu":
            entries |= _prefixed(OPEN_CLIP, _open_clip(opened("text_encoder")))
        else:
            entries |= _prefixed(CLIP, _clip(opened("text_encoder")))
        if dtype is not None:
            entries = {name: _cast(entry, np.dtype(dtype)) for name, entry in entries.items()}
        for extra in extra_keys:
            entries |= dict(EXTRAS[extra](is_xl))
        write_safetensors(file, entries)


def write_safetensors(file: Path, entries: Mapping[str, Entry]) -> None:
    """Write a safetensors file tensor by tensor."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, entry in entries.items():
        start, end = end, end + math.prod(entry.shape) * entry.dtype.itemsize
        header[name] = {
            "dtype": DTYPES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as output:
        output.write(len(text).to_bytes(8, "little") + text)
        for entry in entries.values():
            output.write(np.ascontiguousarray(entry.read()).tobytes())


def _activation(folder: Path) -> str:
    return json.loads((folder / "config.json").read_text())["hidden_act"]


def _prefixed(prefix: str, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    return {prefix + name: entry for name, entry in entries.items()}


def _cast(entry: Entry, dtype: np.dtype) -> Entry:
    return Entry(entry.shape, dtype, lambda: entry.read().astype(np.float32).astype(dtype))


def _modern(tensors: TensorFiles) -> dict[str, Tensor]:
    return {
        modern_name(name): tensor for name, tensor in tensors.items() if not IGNORED.match(name)
    }


def _unet(tensors: TensorFiles, ema: bool) -> dict[str, Entry]:
    names = original_unet_names(tensors)
    entries = {UNET + names[name]: _copied(tensor) for name, tensor in tensors.items()}
    if ema:
        entries |= {_ema_name(name): _halved(entry) for name, entry in entries.items()}
    return entries


def _ema_name(name: str) -> str:
    return "model_ema." + name.removeprefix("model.").replace(".", "")


def _halved(entry: Entry) -> Entry:
    def read() -> np.ndarray:
        return (entry.read().astype(np.float32) * EMA_FACTOR).astype(entry.dtype)

    return Entry(entry.shape, entry.dtype, read)


def _vae(tensors: TensorFiles) -> dict[str, Entry]:
    modern_tensors = _modern(tensors)
    matches = [match for name in modern_tensors if (match := _VAE_LAYER.match(name))]
    levels = 1 + max(int(match[3]) for match in matches)
    return {
        _vae_name(name, levels): _pointwise(tensor) if ".attentions." in name else _copied(tensor)
        for name, tensor in modern_tensors.items()
    }


def _vae_name(name: str, levels: int) -> str:
    match = _VAE_LAYER.match(name)
    if match is None:
        half, _, tail = name.partition(".")
        for module, original in VAE_ENDS.items():
            if tail.startswith(module + "."):
                return f"{half}.{original}{tail.removeprefix(module)}"
        return name
    half, side, level, kind, layer = match.groups()
    number = int(level) if side == "down" else levels - 1 - int(level)
    part = f"block.{layer}" if kind == "resnets" else f"{side}sample"
    inner = name[match.end() :].replace("conv_shortcut", "nin_shortcut")
    return f"{half}.{side}.{number}.{part}.{inner}"


def _pointwise(tensor: Tensor) -> Entry:
    """Return a linear layer's weights as those of a 1x1 convolution; others as they are."""
    shape = (*tensor.shape, 1, 1) if len(tensor.shape) == 2 else tensor.shape
    return Entry(shape, tensor.dtype, lambda: tensor.read().reshape(shape))


def _clip(tensors: TensorFiles) -> dict[str, Entry]:
    return {name: _copied(tensor) for name, tensor in _modern(tensors).items()}


def _open_clip(tensors: TensorFiles) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in _modern(tensors).items():
        projection = re.fullmatch(r"encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(\w+)", name)
        if projection is None:
            entries[_open_clip_name(name)] = (
                _transposed(tensor) if name == "text_projection.weight" else _copied(tensor)
            )
        else:
            layer, part, leaf = projection.groups()
            parts[f"transformer.resblocks.{layer}.attn.in_proj_{leaf}"][part] = tensor
    return entries | {
        name: _joined([projections[part] for part in "qkv"]) for name, projections in parts.items()
    }


def _open_clip_name(name: str) -> str:
    if name in OPEN_CLIP_ENDS:
        return OPEN_CLIP_ENDS[name]
    _, _, number, inner = name.split(".", 3)
    module, leaf = inner.rsplit(".", 1)
    return f"transformer.resblocks.{number}.{OPEN_CLIP_INNER[module]}.{leaf}"


def _transposed(tensor: Tensor) -> Entry:
    return Entry(tensor.shape[::-1], tensor.dtype, lambda: tensor.read().T)


def _joined(tensors: list[Tensor]) -> Entry:
    shape = (sum(tensor.shape[0] for tensor in tensors), *tensors[0].shape[1:])
    return Entry(
        shape, tensors[0].dtype, lambda: np.concatenate([tensor.read() for tensor in tensors])
    )


def main() -> None:
    """Export one checkpoint."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a checkpoint in diffusers' layout")
    parser.add_argument("file", type=Path, help="the .safetensors file to write")
    parser.add_argument("--dtype", choices=[dtype.name for dtype in DTYPES if dtype.kind != "i"])
    parser.add_argument("--ema", action="store_true", help="add an EMA of the UNet")
    parser.add_argument("--extra", nargs="*", default=(), choices=EXTRAS, dest="extra_keys")
    options = parser.parse_args()
    export(**vars(options))


if __name__ == "__main__":
    main()
