"""An SDXL with random weights for `benchmarks.dropin` on a machine without an accelerator.

    .venv-reference/bin/python -m tools.dropin_checkpoint runs/dropin

256x256 pixels, 35 M parameters; limited to what diffusers' Flax classes can read too.
"""

import argparse
from pathlib import Path

from tools.tiny_checkpoints import SDXL_SCHEDULE, Files, Tiny, text_encoder, unet, vae, write

MODEL = Tiny(
    seed=12,
    words=("llama", "dolphin", "hat"),
    text_encoder=text_encoder(256, 4, 4, "quick_gelu"),
    text_encoder_2=text_encoder(256, 4, 4, "gelu"),
    unet=unet(
        (64, 128, 256),
        "-xx",
        layers_per_block=2,
        attention_head_dim=[1, 2, 4],
        transformer_layers_per_block=[1, 1, 2],
        norm_num_groups=32,
        addition_time_embed_dim=64,
        sample_size=32,
    ),
    vae=vae((32, 64, 128, 128), layers_per_block=2, norm_num_groups=32, scaling_factor=0.13025),
    scheduler={**SDXL_SCHEDULE, "timestep_spacing": "leading", "steps_offset": 1},
    real_eos=False,
    files=Files(published_text_encoders=True),
)


def main() -> None:
    """Write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    write(MODEL, parser.parse_args().folder)


if __name__ == "__main__":
    main()
