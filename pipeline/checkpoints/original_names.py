"""Names of tensors in the original layout of Stable Diffusion, as single files have them.

diffusers' layout is named after its classes. The original code numbers the parts of the UNet in the
order in which they run: `input_blocks`, `middle_block`, `output_blocks`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

UNET_ENDS = {
    "conv_in": "input_blocks.0.0",
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
_LAYER = re.compile(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)")


def original_unet_names(names: Iterable[str]) -> dict[str, str]:
    """Return the original name of each tensor of a UNet, by its name in diffusers' layout.

    Args:
        names: the names of all tensors; they give the number of blocks and layers.
    """
    names = list(names)
    modules = UNET_ENDS | dict(_numbered(names))
    return {name: _renamed(name, modules) for name in names}


def _numbered(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the modules of the down and up blocks, with their original names."""
    found = {match[0]: match for name in names if (match := _LAYER.match(name))}
    # Within a layer the resnet runs first, and the sampler after the block's last layer.
    order = sorted(
        found.values(),
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


def _renamed(name: str, modules: Mapping[str, str]) -> str:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = modules.get(".".join(parts[:length]))
        if module is not None:
            inner = parts[length:]
            if inner and inner[0] in UNET_RESNET:
                inner[0] = UNET_RESNET[inner[0]]
            return ".".join([module, *inner])
    return name
