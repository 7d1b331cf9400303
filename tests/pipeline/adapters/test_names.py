"""Names of modules in files, at the size of published models."""

from functools import partial
from pathlib import Path

import jax.numpy as jnp
import pytest
from flax import nnx

from pipeline.adapters.adapter import Shape
from pipeline.adapters.names import ModuleNames
from pipeline.checkpoints.original_names import original_unet_names
from pipeline.checkpoints.weights import checkpoint_names, checkpoint_shape, shape_rngs
from pipeline.families import read_config
from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.unet import UNet
from tools.published_configs import SD_1, SDXL_BASE, Files, write

CLASSES = {"unet": UNet, "text_encoder": CLIPTextEncoder, "text_encoder_2": CLIPTextEncoder}
Inventory = dict[str, dict[str, Shape]]


def inventory(files: Files, folder: Path) -> Inventory:
    """Return the tensors of a published model."""
    write(folder, files)
    found: Inventory = {}
    for network, config in read_config(folder).networks.items():
        if network in CLASSES:
            make = partial(CLASSES[network], config, dtype=jnp.float32, rngs=shape_rngs())
            module = nnx.eval_shape(make)
            found[network] = {
                name: checkpoint_shape(path, param.shape)
                for path, param in nnx.to_flat_state(nnx.state(module, nnx.Param))
                for name in checkpoint_names(path)
            }
    return found


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    return inventory(SDXL_BASE, tmp_path_factory.mktemp("sdxl"))


@pytest.fixture(scope="module")
def sd_1(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    return inventory(SD_1, tmp_path_factory.mktemp("sd_1"))


BLOCK = "transformer_blocks.1.attn2"
# As in published files.
NAMES = {
    "lora_unet_input_blocks_4_1_transformer_blocks_1_attn2_to_q": (
        f"down_blocks.1.attentions.0.{BLOCK}.to_q"
    ),
    "lora_unet_output_blocks_0_1_transformer_blocks_1_attn2_to_out_0": (
        f"up_blocks.0.attentions.0.{BLOCK}.to_out.0"
    ),
    "lora_unet_middle_block_1_transformer_blocks_9_ff_net_0_proj": (
        "mid_block.attentions.0.transformer_blocks.9.ff.net.0.proj"
    ),
    "lora_unet_output_blocks_2_2_conv": "up_blocks.0.upsamplers.0.conv",
    "lora_unet_input_blocks_3_0_op": "down_blocks.0.downsamplers.0.conv",
    "lora_unet_input_blocks_0_0": "conv_in",
    "lora_unet_out_2": "conv_out",
    "lora_unet_time_embed_2": "time_embedding.linear_2",
    "lora_unet_label_emb_0_2": "add_embedding.linear_2",
    "lora_unet_down_blocks_2_attentions_1_proj_in": "down_blocks.2.attentions.1.proj_in",
    "lycoris_up_blocks_1_resnets_2_conv_shortcut": "up_blocks.1.resnets.2.conv_shortcut",
    "unet.down_blocks.1.attentions.0.transformer_blocks.1.attn2.processor.to_out_lora": (
        f"down_blocks.1.attentions.0.{BLOCK}.to_out.0"
    ),
    "lora_te1_text_model_encoder_layers_11_mlp_fc1": "encoder.layers.11.mlp.fc1",
    "lora_te2_text_model_encoder_layers_31_self_attn_out_proj": (
        "encoder.layers.31.self_attn.out_proj"
    ),
    "lora_te2_text_projection": "text_projection",
    "text_encoder_2.text_model.encoder.layers.0.self_attn.to_out_lora": (
        "encoder.layers.0.self_attn.out_proj"
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_in_published_files_of_sdxl(sdxl: Inventory, name: str) -> None:
    network = {"te1": "text_encoder", "te2": "text_encoder_2"}.get(name.split("_")[1], "unet")
    network = name.partition(".")[0] if "." in name else network
    assert ModuleNames(sdxl).find(name) == (network, NAMES[name])


def test_names_of_stable_diffusion_1(sd_1: Inventory) -> None:
    find = ModuleNames(sd_1).find
    assert find("lora_te_text_model_encoder_layers_0_mlp_fc2") == (
        "text_encoder",
        "encoder.layers.0.mlp.fc2",
    )
    assert find("lora_unet_up_blocks_3_attentions_2_proj_out") == (
        "unet",
        "up_blocks.3.attentions.2.proj_out",
    )
    module = find("base_model.model.text_model.encoder.layers.0.mlp.fc2")
    assert module == ("text_encoder", "encoder.layers.0.mlp.fc2")


@pytest.mark.parametrize(
    ("network", "prefixes"),
    [
        ("unet", ("lora_unet_", "unet.", "diffusion_model.", "lycoris_", "base_model.model.")),
        ("text_encoder", ("lora_te1_", "lora_te_", "text_encoder.", "clip_l.")),
        ("text_encoder_2", ("lora_te2_", "text_encoder_2.", "clip_g.")),
    ],
)
def test_every_module_has_a_name_of_its_own_in_every_format(
    sdxl: Inventory, network: str, prefixes: tuple[str, ...]
) -> None:
    """Underscores in place of dots make no two modules alike."""
    names = ModuleNames(sdxl)
    modules = {name.rpartition(".")[0] for name in sdxl[network]}
    layouts = [{module: module for module in modules}]
    layouts += [original_unet_names(modules)] if network == "unet" else []
    for prefix in prefixes:
        for layout in layouts:
            for module, name in layout.items():
                for spelling in (name, name.replace(".", "_")):
                    assert names.find(prefix + spelling) == (network, module), spelling


def test_names_that_fit_both_text_encoders_are_left_out(sdxl: Inventory) -> None:
    name = "base_model.model.text_model.encoder.layers.0.mlp.fc2"
    assert ModuleNames(sdxl).find(name) is None
