"""Names of tensors in the original layout of Stable Diffusion, as single files have them.

diffusers' layout is named after its classes. The original code numbers the parts of the UNet in the
order in which they run: `input_blocks`, `middle_block`, `output_blocks`. OpenCLIP's text encoders
have names of their own, and hold the projections of queries, keys and values in one tensor.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from pipeline.checkpoints.tensors import Tensor
from pipeline.errors import CheckpointError

UNET_ENDS = {
    "conv_in": "input_blocks.0.0",
    # The original code has no such layer; converters of UNets that have it chose this name.
    "time_embedding.cond_proj": "time_embed.cond_proj",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "mid_block.resnets.0": "middle_block.0",
    "mid_block.attentions.0": "middle_block.1",
    "mid_block.resnets.1": "middle_block.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
UNET_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
# Patterns in the original names of a VAE's tensors, and their replacements in diffusers' layout.
VAE_NAMES = (
    (r"^encoder\.down\.(\d+)\.block\.(\d+)\.", r"encoder.down_blocks.\1.resnets.\2."),
    (r"^encoder\.down\.(\d+)\.downsample\.", r"encoder.down_blocks.\1.downsamplers.0."),
    (r"\.mid\.block_1\.", ".mid_block.resnets.0."),
    (r"\.mid\.block_2\.", ".mid_block.resnets.1."),
    (r"\.mid\.attn_1\.norm\.", ".mid_block.attentions.0.group_norm."),
    (r"\.mid\.attn_1\.([qkv])\.", r".mid_block.attentions.0.to_\1."),
    (r"\.mid\.attn_1\.proj_out\.", ".mid_block.attentions.0.to_out.0."),
    # Converters leave diffusers' names in the attention: `to_q`, `to_out.0`, `group_norm`.
    (r"\.mid\.attn_1\.", ".mid_block.attentions.0."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"\.norm_out\.", ".conv_norm_out."),
)
VAE_UP = re.compile(r"^decoder\.up\.(\d{1,4})\.(?:block\.(\d+)|(upsample))\.")
OPEN_CLIP_NAMES = (
    (r"^positional_embedding$", "embeddings.position_embedding.weight"),
    (r"^token_embedding\.", "embeddings.token_embedding."),
    (r"^text_projection$", "text_projection.weight"),
    (r"^ln_final\.", "final_layer_norm."),
    (r"^transformer\.resblocks\.", "encoder.layers."),
    (r"\.ln_([12])\.", r".layer_norm\1."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
    (r"\.attn\.", ".self_attn."),
)
CONTROLNET_NAMES = (
    (r"^zero_convs\.(\d+)\.0\.", r"controlnet_down_blocks.\1."),
    (r"^middle_block_out\.0\.", "controlnet_mid_block."),
)
HINT_LAYER = re.compile(r"^input_hint_block\.(\d{1,4})\.")
_LAYER = re.compile(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)")


def original_unet_names(names: Iterable[str]) -> dict[str, str]:
    """Return the original name of each tensor of a UNet, by its name in diffusers' layout.

    Args:
        names: the names of all tensors; they give the number of blocks and layers.
    """
    names = list(names)
    modules = UNET_ENDS | dict(_numbered(names))
    return {name: _module_renamed(name, modules, UNET_RESNET) for name in names}


def _numbered(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the modules of the down and up blocks, with their original names."""
    matches = {match[0]: match for name in names if (match := _LAYER.match(name))}
    # Within a layer the resnet runs first, and the sampler after the block's last layer.
    order = sorted(
        matches.values(),
        key=lambda match: (
            int(match[2]),
            "samplers" in match[3],
            int(match[4]),
            match[3][0] == "a",
        ),
    )
    for side, number in (("down", 0), ("up", -1)):
        inner = 0
        for module, _, _, kind, _ in (
            (match[0], *match.groups()) for match in order if match[1] == side
        ):
            inner = inner + 1 if kind in ("attentions", "upsamplers") else 0
            number += kind in ("resnets", "downsamplers")
            end = {"downsamplers": ".op", "upsamplers": ".conv"}.get(kind, "")
            module += ".conv" if end else ""
            yield module, f"{'input' if side == 'down' else 'output'}_blocks.{number}.{inner}{end}"


def _module_renamed(name: str, modules: Mapping[str, str], inner: Mapping[str, str]) -> str:
    """Return a name with its module renamed, and by `inner` what is in it; else the name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = modules.get(".".join(parts[:length]))
        if module is not None:
            rest = _module_renamed(".".join(parts[length:]), inner, {})
            return f"{module}.{rest}".rstrip(".")
    return name


def to_diffusers_unet(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a UNet's tensors by their names in diffusers' layout, from their original names.

    An unknown name stays as it is.

    Raises:
        CheckpointError: if two tensors have the same name there.
    """
    modules = {original: module for module, original in UNET_ENDS.items()} | _unet_modules(tensors)
    inner = {original: name for name, original in UNET_RESNET.items()}
    return renamed((_module_renamed(name, modules, inner), tensors[name]) for name in tensors)


def _unet_modules(names: Iterable[str]) -> dict[str, str]:
    """Return the modules of the down and up blocks in diffusers' layout, by their original names.

    A block of diffusers' layout ends with a sampler, the only part that is a lone convolution.
    """
    blocks: dict[tuple[str, int], dict[int, bool]] = defaultdict(dict)
    for name in names:
        match = re.match(r"(input|output)_blocks\.(\d{1,4})\.(\d)\.(op|conv)?", name)
        if match:
            blocks[match[1], int(match[2])][int(match[3])] = bool(match[4])
    modules = {}
    for side, block, sampler in (("input", "down", "op"), ("output", "up", "conv")):
        level = layer = 0
        for number in sorted(number for kind, number in blocks if kind == side):
            if (side, number) == ("input", 0):  # it is in UNET_ENDS
                continue
            sampled = False
            for inner, is_sampler in sorted(blocks[side, number].items()):
                kind = "attentions" if inner else "resnets"
                original = f"{side}_blocks.{number}.{inner}"
                if is_sampler:
                    sampled = True
                    modules[f"{original}.{sampler}"] = (
                        f"{block}_blocks.{level}.{block}samplers.0.conv"
                    )
                else:
                    modules[original] = f"{block}_blocks.{level}.{kind}.{layer}"
            level, layer = (level + 1, 0) if sampled else (level, layer + 1)
    return modules


def to_diffusers_controlnet(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a ControlNet's tensors by their names in diffusers' layout.

    The names may be original or diffusers' own. An unknown name stays as it is.

    Raises:
        CheckpointError: if two tensors have the same name there.
    """
    numbers = sorted({int(match[1]) for name in tensors if (match := HINT_LAYER.match(name))})
    # Convolutions, with activations between them.
    layers = {number: f"blocks.{place}." for place, number in enumerate(numbers, -1)}
    layers |= dict(zip((*numbers[:1], *numbers[-1:]), ("conv_in.", "conv_out."), strict=False))

    def hint_layer(match: re.Match[str]) -> str:
        return f"controlnet_cond_embedding.{layers[int(match[1])]}"

    encoder = to_diffusers_unet(tensors)
    return renamed(
        (HINT_LAYER.sub(hint_layer, replaced(name, CONTROLNET_NAMES)), tensor)
        for name, tensor in encoder.items()
    )


def to_diffusers_vae(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a VAE's tensors by their names in diffusers' layout.

    The names may be original or diffusers' own. The attention's projections may be 1x1
    convolutions, which become matrices. An unknown name stays as it is.

    Raises:
        CheckpointError: if two tensors have the same name there.
    """
    top = max((int(match[1]) for name in tensors if (match := VAE_UP.match(name))), default=0)
    pairs = ((_diffusers_vae_name(name, top), tensor) for name, tensor in tensors.items())
    return renamed(
        (name, tensor.squeezed() if ".attentions." in name else tensor) for name, tensor in pairs
    )


def _diffusers_vae_name(name: str, top: int) -> str:
    """Return one name; `top` is the number of the decoder's last block, the first to run."""
    if match := VAE_UP.match(name):
        layer = "upsamplers.0" if match[3] else f"resnets.{match[2]}"
        name = f"decoder.up_blocks.{top - int(match[1])}.{layer}.{name[match.end() :]}"
    return replaced(name, VAE_NAMES)


def to_diffusers_tiny_vae(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a tiny VAE's tensors by their names in diffusers' layout.

    A file with a decoder alone numbers its layers. The first of them limits the latents, which is
    no layer in diffusers' layout. A name in that layout stays as it is.

    Raises:
        CheckpointError: if two tensors have the same name there.
    """
    return renamed((re.sub(r"^(\d{1,4})\.", _tiny_name, name), tensors[name]) for name in tensors)


def _tiny_name(number: re.Match[str]) -> str:
    return f"decoder.layers.{int(number[1]) - 1}."


def to_diffusers_clip(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of CLIP's text encoder, which have transformers' names in both layouts."""
    return renamed((name.removeprefix("transformer."), tensors[name]) for name in tensors)


def to_diffusers_open_clip(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of OpenCLIP's text encoder by their names in diffusers' layout.

    The projections of queries, keys and values are thirds of one tensor, and the projection of the
    pooled state is transposed. An unknown name stays as it is.

    Raises:
        CheckpointError: if a tensor cannot be divided, or two have the same name there.
    """
    return renamed(
        pair for name, tensor in tensors.items() for pair in _from_open_clip(name, tensor)
    )


def _from_open_clip(original: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    name = replaced(original, OPEN_CLIP_NAMES)
    layer, separator, leaf = name.partition(".self_attn.in_proj_")
    if separator:
        for part, third in zip("qkv", tensor.thirds(), strict=True):
            yield f"{layer}.self_attn.{part}_proj.{leaf}", third
    else:
        yield name, tensor.transposed() if original == "text_projection" else tensor


def renamed(pairs: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return tensors by their new names.

    Raises:
        CheckpointError: if two tensors have the same name.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in pairs:
        if name in tensors:
            duplicates = f"{tensors[name].name} and {tensor.name}"
            raise CheckpointError(f"{tensor.file}: {duplicates} name the same tensor")
        tensors[name] = tensor
    return tensors


def replaced(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    """Return a name in which every pattern is replaced, in order."""
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name
