"""Tell what a file holds from the names of its tensors.

The names are those that the programs and the converters of each model write: diffusers'
`loaders/single_file_utils.py` and ComfyUI's `model_detection.py` list most of them.
"""

import re
from collections.abc import Iterable

WHOLE = "a whole checkpoint"
UNET = "a UNet without text encoders"
VAE = "a VAE"
TINY_VAE = "a tiny VAE"
LORA = "a LoRA"
INVERSION = "a textual inversion"
CONTROLNET = "a ControlNet"
MAX_TEXT = 2**20  # characters of names that are looked at; those of published files have 300,000
# Where the files of each kind that can be used belong.
USES = {
    WHOLE: "MODEL_ID names it, or copy it into MODEL_DIR",
    UNET: "UNET_ID names it, and MODEL_ID a checkpoint with the other networks; MODEL_DIR takes"
    " whole checkpoints only",
    VAE: "VAE_ID names it, and MODEL_ID a whole checkpoint",
    TINY_VAE: "TINY_VAE names it, and MODEL_ID a whole checkpoint",
    LORA: "copy it into LORA_DIR",
    INVERSION: "copy it into EMBEDDING_DIR",
    CONTROLNET: "copy it into CONTROL_DIR",
}
# The tables have patterns of tensors' names, with underscores in place of dots, and the kind of
# file that has such a name. The first pattern that fits decides.
#
# Parts that other programs use beside a Stable Diffusion, and networks that draw nothing.
PARTS = (
    (r"^lora_controlnet$", "a Control-LoRA"),
    (r"lllite_", "a ControlNet-LLLite"),
    (r"^difference$", "the differences of a ControlNet from a UNet"),
    (r"motion_modules_\d", "AnimateDiff's motion modules or its SparseCtrl"),
    (
        r"^control_model_|controlnet_|input_hint_block|(^|_)zero_convs_\d|control_add_embedding"
        r"|control_(all_x_embedder|layers_\d)",
        CONTROLNET,
    ),
    (r"^(adapter_)?body_\d+_(resnets|block\d|in_conv)|^transformer_layes_", "a T2I-Adapter"),
    (
        r"^(image_proj|ip_adapter|pulid_|id_encoder|id_adapter)|_to_[kv]_ip_",
        "an IP-Adapter or another adapter for image prompts",
    ),
    (r"^(stylegan_decoder|idx_pred_layer|quantize_embedding)", "a restorer of faces"),
    (
        r"_RDB\d_conv|_rdb\d_conv|^(params_(ema_)?)?(body_\d+_weight$|conv_first_|RRDB_trunk|HRconv)"
        r"|_residual_group_|_channe?l?_mixer_|_c1_r_|^upconv1_|^before_RG|^model_0_weight$",
        "an upscaler",
    ),
)
# Other models, whose LoRAs have the same names. Some names of one are parts of names of the next.
MODELS = (
    (r"edm_mean$", "Playground 2.5"),
    (r"edm_vpred_sigma_max$", "CosXL"),
    (r"individual_token_refiner|token_refiner_blocks_\d", "HunyuanVideo"),
    (r"double_stream_blocks_\d", "HiDream"),
    (r"distilled_guidance_layer", "Chroma"),
    (r"joint_transformer_blocks_\d|double_layers_\d|cond_seq_linear", "AuraFlow"),
    (
        r"double_blocks_\d|single_blocks_\d|single_transformer_blocks_\d|_stream_modulation",
        "FLUX",
    ),
    (r"transformer_blocks_\d+_(img|txt)_(mod|mlp)|txt_in_text_norm", "Qwen-Image"),
    (r"joint_blocks_\d|transformer_blocks_\d+_attn_add_[qkv]_proj", "Stable Diffusion 3"),
    (r"lora_te3_|^text_encoders?_(3_|t5xxl)", "Stable Diffusion 3 or FLUX"),
    (r"patchify_proj|audio_vae_", "LTX-Video"),
    (r"_t5_yproj|^t5_yproj|_attn_qkv_x_", "Mochi"),
    (r"mlp_t5_\d", "Hunyuan-DiT"),
    (r"mlp_(inverted|depth|point)_conv|ff_conv_(inverted|depth|point)", "Sana"),
    (r"y_embedder_y_embedding|caption_projection|cross_attn_(q|kv)_linear", "PixArt"),
    (r"x_embedder_proj_1_|blocks_block\d+_blocks|blocks_\d+_(self|cross)_attn_q_proj", "Cosmos"),
    (r"(^|_)head_modulation|(^|_)blocks_\d+_(self|cross)_attn_(norm_)?[qkvo](_|$)", "Wan"),
    (r"patch_embed_text_proj", "CogVideoX"),
    (
        r"(noise|context)_refiner_\d|cap_embedder_\d|(^|_)layers_\d+_(attention_|adaLN)",
        "Lumina 2 or Z-Image",
    ),
    (r"channelwise_\d|clip_(txt_)?mapper|effnet_mapper|lora_prior_", "Stable Cascade"),
    (
        r"time_stack_|time_mix|temporal_transformer_blocks|spatial_res_block",
        "Stable Video Diffusion",
    ),
    (r"rotary_pos_emb_inv_freq|genre_embedder|lyric_", "a model of sound"),
    (r"^cc_projection", "Zero123"),
    (r"noise_augmentor|^embedder_model_visual", "Stable unCLIP"),
    (r"add_embedding_(image|text)_(norm|proj)|encoder_hid_proj_image|movq_", "Kandinsky"),
    (r"encoder_hid_proj_", "Kolors or DeepFloyd IF"),
    (r"^decoder_(middle|upsamples)_\d", "the VAE of a model of videos"),
    (
        r"^(lora_)?transformer_(transformer_)?(blocks|layers|x_embedder)",
        "Stable Diffusion 3 or another transformer",
    ),
    (
        r"SelfAttention|^(model_)?layers_\d+_(self_attn|mlp)_|^shared_weight$",
        "a text encoder of another model (T5 or a language model)",
    ),
)
_BLOCKS = "(input|output|down|up)_blocks_\\d|(middle|mid)_block_"
KNOWN = (
    (
        r"_lora_(up|down|A|B|mid)(_|$)|_lora(_linear_layer)?_(up|down)_|^lora_(unet|te\d?)_"
        r"|_(hada|lokr)_w1|_oft_(blocks|diag|R)|_boft_",
        LORA,
    ),
    (r"^(emb_params|clip_[lg]|string_to_param.*)$", INVERSION),
    (r"^(cond_stage_model|conditioner_embedders)_", WHOLE),
    (rf"^(unet_|(model_)*diffusion_model_)?({_BLOCKS})|^(model_)*diffusion_model_", UNET),
    (r"^(taesd_)?(decoder|encoder)_layers_\d+_(conv|weight)|^\d+_(conv_\d_)?weight$", TINY_VAE),
    (r"^(first_stage_model_|vae_)?(encoder|decoder)_(conv_|mid|up|down)", VAE),
    (r"^(vision_model|visual)_", "CLIP's image encoder"),
    (r"(text_model|resblocks|token_embedding)_", "a text encoder"),
)


def contents(names: Iterable[str]) -> str | None:
    """Return what a file with tensors of these names holds; None if that is unknown.

    The result is a noun phrase, a key of `USES` if the file can be used.
    """
    text = "\n".join(names)[:MAX_TEXT].replace(".", "_")

    def find(table: Iterable[tuple[str, str]]) -> str | None:
        return next((kind for pattern, kind in table if re.search(pattern, text, re.M)), None)

    part, known, model = find(PARTS), find(KNOWN), find(MODELS)
    if model is not None:
        kind = part or known
        model = f"{kind} for {model}" if kind in (LORA, CONTROLNET) else part or model
    return model or part or known


def use_of(kind: str | None) -> str:
    """Return a clause that says where a file of a kind belongs, or an empty one."""
    return f"; {USES[kind]}" if kind in USES else ""
