"""Tests of the names of tensors in the original layout."""

import pytest

from pipeline.checkpoints.original_names import original_unet_names

# As in stabilityai/stable-diffusion-xl-base-1.0, in diffusers' layout and in its single file.
SDXL = {
    "conv_in.weight": "input_blocks.0.0.weight",
    "time_embedding.linear_2.bias": "time_embed.2.bias",
    "add_embedding.linear_1.weight": "label_emb.0.0.weight",
    "down_blocks.0.resnets.0.conv1.weight": "input_blocks.1.0.in_layers.2.weight",
    "down_blocks.0.resnets.1.norm2.bias": "input_blocks.2.0.out_layers.0.bias",
    "down_blocks.0.downsamplers.0.conv.weight": "input_blocks.3.0.op.weight",
    "down_blocks.1.resnets.0.conv_shortcut.weight": "input_blocks.4.0.skip_connection.weight",
    "down_blocks.1.resnets.1.conv2.weight": "input_blocks.5.0.out_layers.3.weight",
    "down_blocks.1.attentions.0.proj_in.weight": "input_blocks.4.1.proj_in.weight",
    "down_blocks.1.attentions.1.transformer_blocks.1.attn2.to_out.0.bias": (
        "input_blocks.5.1.transformer_blocks.1.attn2.to_out.0.bias"
    ),
    "down_blocks.1.downsamplers.0.conv.bias": "input_blocks.6.0.op.bias",
    "down_blocks.2.resnets.0.time_emb_proj.weight": "input_blocks.7.0.emb_layers.1.weight",
    "down_blocks.2.resnets.1.norm1.weight": "input_blocks.8.0.in_layers.0.weight",
    "mid_block.resnets.0.conv1.weight": "middle_block.0.in_layers.2.weight",
    "mid_block.attentions.0.norm.weight": "middle_block.1.norm.weight",
    "mid_block.resnets.1.conv2.weight": "middle_block.2.out_layers.3.weight",
    "up_blocks.0.resnets.0.conv1.weight": "output_blocks.0.0.in_layers.2.weight",
    "up_blocks.0.attentions.0.proj_out.bias": "output_blocks.0.1.proj_out.bias",
    "up_blocks.0.resnets.1.conv1.weight": "output_blocks.1.0.in_layers.2.weight",
    "up_blocks.0.resnets.2.conv1.weight": "output_blocks.2.0.in_layers.2.weight",
    "up_blocks.0.attentions.2.proj_out.bias": "output_blocks.2.1.proj_out.bias",
    "up_blocks.0.upsamplers.0.conv.weight": "output_blocks.2.2.conv.weight",
    "up_blocks.1.resnets.0.conv1.weight": "output_blocks.3.0.in_layers.2.weight",
    "conv_norm_out.weight": "out.0.weight",
    "conv_out.bias": "out.2.bias",
}


@pytest.mark.parametrize("name", SDXL)
def test_names_of_sdxl(name: str) -> None:
    assert original_unet_names(SDXL)[name] == SDXL[name]


def test_an_upsampler_follows_a_block_without_attention() -> None:
    names = original_unet_names(
        ["up_blocks.0.resnets.0.conv1.weight", "up_blocks.0.upsamplers.0.conv.weight"]
    )
    assert names["up_blocks.0.upsamplers.0.conv.weight"] == "output_blocks.0.1.conv.weight"
