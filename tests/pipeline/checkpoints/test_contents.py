"""What files hold, told by names of tensors as other programs write them."""

import pytest

from pipeline.checkpoints.contents import (
    INVERSION,
    LORA,
    TINY_VAE,
    UNET,
    USES,
    VAE,
    WHOLE,
    contents,
)

UNET_LAYER = "input_blocks.0.0.weight"
# A name that files of each kind have.
NAMES = {
    "FLUX": [
        "model.diffusion_model.double_blocks.0.img_attn.norm.key_norm.scale",
        "double_blocks.0.img_attn.proj.weight",
        "single_transformer_blocks.0.attn.to_q.weight",
        "double_stream_modulation_img.lin.weight",
    ],
    "Chroma": ["distilled_guidance_layer.in_proj.bias"],
    "Stable Diffusion 3": [
        "model.diffusion_model.joint_blocks.0.context_block.adaLN_modulation.1.bias",
        "transformer_blocks.0.attn.add_q_proj.weight",
    ],
    "Qwen-Image": ["transformer_blocks.0.img_mlp.net.0.proj.weight"],
    "AuraFlow": ["double_layers.0.attn.w1q.weight"],
    "HunyuanVideo": ["txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1.bias"],
    "HiDream": ["double_stream_blocks.0.block.adaLN_modulation.1.bias"],
    "PixArt": ["y_embedder.y_embedding", "caption_projection.linear_1.weight"],
    "Sana": ["blocks.0.mlp.inverted_conv.conv.weight"],
    "LTX-Video": ["model.diffusion_model.patchify_proj.weight"],
    "Mochi": ["model.diffusion_model.blocks.0.attn.qkv_x.weight"],
    "Hunyuan-DiT": ["mlp_t5.0.weight"],
    "Cosmos": ["net.x_embedder.proj.1.weight", "net.blocks.0.self_attn.q_proj.weight"],
    "Wan": ["model.diffusion_model.head.modulation", "blocks.0.cross_attn.k.weight"],
    "CogVideoX": ["patch_embed.text_proj.weight"],
    "Lumina 2 or Z-Image": [
        "model.diffusion_model.layers.0.attention.qkv.weight",
        "cap_embedder.0.weight",
        "layers.0.adaLN_modulation.0.weight",
    ],
    "Stable Cascade": ["down_blocks.0.0.channelwise.0.weight", "clip_txt_mapper.weight"],
    "Stable Video Diffusion": [
        "model.diffusion_model.input_blocks.1.1.time_stack.0.attn1.to_q.weight",
        "down_blocks.0.attentions.0.temporal_transformer_blocks.0.attn1.to_q.weight",
    ],
    "Playground 2.5": ["edm_mean", "model.diffusion_model.edm_mean"],
    "CosXL": ["edm_vpred.sigma_max"],
    "Kolors or DeepFloyd IF": ["encoder_hid_proj.weight"],
    "Zero123": ["cc_projection.weight"],
    "a ControlNet": [
        "control_model.input_blocks.0.0.weight",
        "controlnet_cond_embedding.conv_in.weight",
        "input_hint_block.0.weight",
        "controlnet_down_blocks.0.weight",
    ],
    "a ControlNet for FLUX": ["controlnet_blocks.0.weight\nsingle_transformer_blocks.0.a"],
    "a Control-LoRA": ["lora_controlnet"],
    "the differences of a ControlNet from a UNet": ["difference"],
    "a ControlNet-LLLite": ["lllite_unet_input_blocks_4_1.down.0.weight"],
    "a T2I-Adapter": ["body.0.block1.weight", "adapter.body.0.resnets.0.block1.weight"],
    "an IP-Adapter or another adapter for image prompts": [
        "image_proj.proj.weight",
        "ip_adapter.1.to_k_ip.weight",
    ],
    "AnimateDiff's motion modules or its SparseCtrl": [
        "down_blocks.0.motion_modules.0.temporal_transformer.norm.weight"
    ],
    "an upscaler": [
        "model.1.sub.0.RDB1.conv1.0.weight",
        "body.0.rdb1.conv1.weight",
        "params_ema.body.0.weight",
        "layers.0.residual_group.blocks.0.norm1.weight",
        "block_1.c1_r.eval_conv.weight",
    ],
    "a restorer of faces": ["stylegan_decoder.style_mlp.1.weight"],
    "a text encoder of another model (T5 or a language model)": [
        "encoder.block.0.layer.0.SelfAttention.q.weight",
        "model.layers.0.self_attn.q_proj.weight",
    ],
    "the VAE of a model of videos": ["decoder.middle.0.residual.0.gamma"],
    "CLIP's image encoder": ["vision_model.encoder.layers.0.layer_norm1.weight"],
    "a text encoder": [
        "text_model.encoder.layers.0.layer_norm1.weight",
        "transformer.resblocks.0.ln_1.weight",
        "embeddings.token_embedding.weight",
    ],
    WHOLE: ["cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"],
    UNET: [
        UNET_LAYER,
        f"model.diffusion_model.{UNET_LAYER}",
        f"diffusion_model.{UNET_LAYER}",
        "down_blocks.0.resnets.0.conv1.weight",
        "unet.down_blocks.0.resnets.0.conv1.weight",
    ],
    VAE: [
        "first_stage_model.decoder.conv_in.weight",
        "decoder.up.0.block.0.conv1.weight",
        "encoder.down_blocks.0.resnets.0.conv1.weight",
    ],
    TINY_VAE: ["1.weight", "3.conv.0.weight", "decoder.layers.0.weight"],
    LORA: [
        "lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight",
        "unet.down_blocks.0.attentions.0.proj_in.lora_A.weight",
        "unet.down_blocks.0.attn1.processor.to_q_lora.down.weight",
        "lycoris_down_blocks_0_attentions_0_proj_in.hada_w1_a",
        "text_encoders.clip_g.transformer.text_model.encoder.layers.0.mlp.fc1.lora_B.weight",
    ],
    "a LoRA for FLUX": [
        "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight",
        "transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight",
    ],
    "a LoRA for Stable Diffusion 3": ["lora_unet_joint_blocks_0_x_block_attn_qkv.lora_down.weight"],
    "a LoRA for Wan": ["diffusion_model.blocks.0.self_attn.q.lora_A.weight"],
    "a LoRA for Lumina 2 or Z-Image": ["diffusion_model.layers.0.attention.to_q.lora_A.weight"],
    "a LoRA for Stable Diffusion 3 or another transformer": [
        "transformer.transformer_blocks.0.attn.to_q.lora_A.weight"
    ],
    INVERSION: ["emb_params", "clip_g", "string_to_param.*"],
}


@pytest.mark.parametrize(("kind", "name"), [(x, name) for x in NAMES for name in NAMES[x]])
def test_a_name_tells_the_kind(kind: str, name: str) -> None:
    assert contents([name, "other.weight"]) == kind


def test_every_kind_that_can_be_used_says_where() -> None:
    assert USES.keys() <= NAMES.keys()


def test_names_that_say_nothing() -> None:
    assert contents([]) is None
    assert contents(["weight", "<cat-toy>"]) is None


def test_parts_of_other_models_are_no_models() -> None:
    names = ["controlnet_cond_embedding.conv_in.weight", "down_blocks.0.resnets.0.conv1.weight"]
    assert contents(names) == "a ControlNet"
    names = ["first_stage_model.decoder.conv_in.weight", "cond_stage_model.model.ln_final.bias"]
    assert contents([*names, f"model.diffusion_model.{UNET_LAYER}"]) == WHOLE
