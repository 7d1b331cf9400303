"""Live agreement with torch's `from_single_file` on random single files.

Recognition needs the published depth of prompts in Stable Diffusion 2, and heads of the published
width or number; all other sizes are drawn, as small as normalisation permits. torch gets the
configuration from a folder, this project finds it out from the tensors.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    SchedulerMixin,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
)
from safetensors.numpy import load_file, save_file
from transformers import CLIPTextConfig

from pipeline import SDXLPipeline
from pipeline.checkpoints.source import fetch
from pipeline.families.reader import FamilyReader
from pipeline.text.tokenizer import MERGES, Tokenizers
from tests.original_layout import export
from tests.reference import torch_reference
from tests.reference.drawing import NASTY_PROMPTS, draw_text
from tests.reference.full_size_checkpoint import make_network, write_checkpoint
from tests.reference.samples import check_sample
from tests.reference.tiny_checkpoints import SDXL_SCHEDULE, Pipeline, unet, vae
from tools.published_configs import SD_1, SD_2, SDXL_BASE, Files
from tools.vocabulary import END, START, WORD_END, byte_symbols, write_tokenizer

SIDE = 128  # pixels; at the UNet's deepest level, a group of two channels has eight values
IMAGES = 2
NOT_DRAWN = {"safety_checker", "feature_extractor", "requires_safety_checker"}
LAST_NORM = "up_blocks.3.attentions.2.transformer_blocks.0.norm1.bias"
PNDM = PNDMScheduler(**SDXL_SCHEDULE, skip_prk_steps=True, steps_offset=1)


@dataclass(frozen=True)
class Kind:
    """A kind of single file.

    Attributes:
        make: makes its networks' configuration with drawn sizes.
        dtype: the dtype of the file.
        extra_keys: see `export`.
        spread: standard deviation of the tensor that tells what a Stable Diffusion 2 predicts.
        has_ema: whether the file holds an EMA of the UNet.
        wants_ema: whether to draw with it.
    """

    make: Any
    dtype: str
    extra_keys: tuple[str, ...] = ()
    spread: float | None = None
    has_ema: bool = False
    wants_ema: bool = False


def text(rng: np.random.Generator, width: int, act: str, projection_dim: int) -> dict[str, Any]:
    config = CLIPTextConfig(
        hidden_size=width,
        intermediate_size=width * int(rng.integers(2, 5)),
        num_hidden_layers=int(rng.integers(2, 5)),
        num_attention_heads=width // 64,
        hidden_act=act,
        projection_dim=projection_dim,
        eos_token_id=2,
    )
    return config.to_dict()


def channels(rng: np.random.Generator, count: int) -> list[int]:
    return [64 * int(rng.integers(1, 3)) for _ in range(count)]


def draw_vae(rng: np.random.Generator, scaling_factor: float) -> dict[str, Any]:
    wide = [32 * int(rng.integers(1, 3)) for _ in range(4)]
    layers = int(rng.integers(1, 3))
    return vae(wide, layers_per_block=layers, sample_size=SIDE, scaling_factor=scaling_factor)


def files_of(
    published: Files, scheduler: SchedulerMixin, networks: dict[str, dict[str, Any]]
) -> Files:
    """Return the files of a published checkpoint with other networks and another scheduler."""
    files = {name: values for name, values in published.items() if name.startswith("tokenizer")}
    index = published["model_index.json"] | {"scheduler": ["diffusers", type(scheduler).__name__]}
    files["model_index.json"] = {name: index[name] for name in index.keys() - NOT_DRAWN}
    files["scheduler/scheduler_config.json"] = json.loads(scheduler.to_json_string())
    for name, config in networks.items():
        if not name.startswith("text_encoder"):
            config = json.loads(make_network(name, config).to_json_string())
        files[f"{name}/config.json"] = config
    return files


def draw_sd_1(rng: np.random.Generator) -> Files:
    width = 64 * int(rng.integers(1, 4))
    networks = {
        "text_encoder": text(rng, width, "quick_gelu", width),
        "unet": unet(
            channels(rng, 4),
            "xxx-",
            addition_embed_type=None,
            use_linear_projection=False,
            layers_per_block=int(rng.integers(1, 3)),
            cross_attention_dim=width,
            attention_head_dim=8,
            sample_size=64,
        ),
        "vae": draw_vae(rng, 0.18215),
    }
    return files_of(SD_1, PNDM, networks)


def draw_sd_2(rng: np.random.Generator, prediction_type: str) -> Files:
    wide = channels(rng, 4)
    networks = {
        "text_encoder": text(rng, 1024, "gelu", 512),
        "unet": unet(
            wide,
            "xxx-",
            addition_embed_type=None,
            layers_per_block=2,
            cross_attention_dim=1024,
            attention_head_dim=[width // 64 for width in wide],
            sample_size=96,
        ),
        "vae": draw_vae(rng, 0.18215),
    }
    scheduler = DDIMScheduler(
        **SDXL_SCHEDULE,
        prediction_type=prediction_type,
        set_alpha_to_one=False,
        clip_sample=False,
        steps_offset=1,
    )
    return files_of(SD_2, scheduler, networks)


def draw_sdxl(rng: np.random.Generator, unet_options: dict[str, Any], **schedule: Any) -> Files:
    wide, widths, projected = channels(rng, 3), [128, 192], 64 * int(rng.integers(1, 4))
    networks = {
        "text_encoder": text(rng, widths[0], "quick_gelu", widths[0]),
        "text_encoder_2": text(rng, widths[1], "gelu", projected),
        "unet": unet(
            wide,
            "-xx",
            attention_head_dim=[width // 64 for width in wide],
            cross_attention_dim=sum(widths),
            addition_time_embed_dim=256,
            projection_class_embeddings_input_dim=projected + 6 * 256,
            sample_size=128,
            **unet_options,
        ),
        "vae": draw_vae(rng, 0.13025),
    }
    scheduler = EulerDiscreteScheduler(
        **SDXL_SCHEDULE, timestep_spacing="leading", steps_offset=1, **schedule
    )
    return files_of(SDXL_BASE, scheduler, networks)


# Fewer transformer layers than SDXL base, and other numbers of them in one block.
DISTILLED = {
    "layers_per_block": 2,
    "mid_block_type": "UNetMidBlock2D",
    "transformer_layers_per_block": [0, [1, 2], [2, 1]],
    "reverse_transformer_layers_per_block": [[2, 1, 2], [2, 1, 1], 0],
}
# As in KOALA-700M.
NO_MIDDLE = {
    "layers_per_block": 1,
    "mid_block_type": None,
    "transformer_layers_per_block": [1, 2, 3],
}
KINDS = {
    "sd_1": Kind(draw_sd_1, "float16", ("position_ids", "alphas_cumprod"), has_ema=True),
    "sd_1_float8": Kind(draw_sd_1, "float8_e4m3fn"),
    "sd_2": Kind(
        lambda rng: draw_sd_2(rng, "v_prediction"), "float16", ("logit_scale",), spread=0.2
    ),
    "sd_2_base": Kind(lambda rng: draw_sd_2(rng, "epsilon"), "bfloat16", spread=0.05),
    "sdxl": Kind(
        lambda rng: draw_sdxl(rng, {"transformer_layers_per_block": [1, 1, 3]}),
        "float16",
        ("position_ids", "logit_scale"),
    ),
    "sdxl_v_prediction": Kind(
        lambda rng: draw_sdxl(
            rng,
            {"transformer_layers_per_block": [1, 2, 1]},
            prediction_type="v_prediction",
            rescale_betas_zero_snr=True,
        ),
        "bfloat16",
        ("v_pred", "ztsnr"),
        has_ema=True,
        wants_ema=True,
    ),
    "sdxl_distilled": Kind(lambda rng: draw_sdxl(rng, DISTILLED), "float32"),
    "sdxl_no_middle": Kind(lambda rng: draw_sdxl(rng, NO_MIDDLE), "float16"),
}


def write_clip_tokenizer(folder: Path, pad_token: str) -> None:
    """Write a tokenizer with CLIP's whole vocabulary."""
    write_tokenizer(folder, [], pad_token)
    pairs = gzip.decompress(MERGES.read_bytes()).decode().strip().split("\n")
    symbols = byte_symbols()
    tokens = [*symbols, *(symbol + WORD_END for symbol in symbols)]
    tokens += [pair.replace(" ", "") for pair in pairs]
    vocabulary = {token: number for number, token in enumerate([*tokens, START, END])}
    assert len(vocabulary) == 49408
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs]) + "\n")


def scale_last_norm(folder: Path, spread: float) -> None:
    [file] = (folder / "unet").glob("*.safetensors")
    tensors = load_file(file)
    values = tensors[LAST_NORM].astype(np.float32)
    tensors[LAST_NORM] = (values * spread / values.std()).astype(np.float16)
    save_file(tensors, file, metadata={"format": "pt"})


@dataclass(frozen=True)
class Drawn:
    """A random single file, and torch's pipeline from it."""

    kind: Kind
    file: Path
    theirs: Pipeline
    rng: np.random.Generator

    def noise(self) -> np.ndarray:
        side = SIDE // 8
        return self.rng.standard_normal((IMAGES, side, side, 4), dtype=np.float32)


@pytest.fixture(scope="module", params=KINDS)
def drawn(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Drawn]:
    kind = KINDS[request.param]
    seed = request.config.getoption("--seed")
    rng = np.random.default_rng([seed, 21, list(KINDS).index(request.param)])
    made = kind.make(rng)
    print(f"--seed {seed}: {made}")
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(made, folder, int(rng.integers(2**31)))
    is_open_clip = made["text_encoder/config.json"]["hidden_act"] == "gelu"
    is_xl = "text_encoder_2/config.json" in made
    write_clip_tokenizer(folder / "tokenizer", "!" if is_open_clip else END)
    if is_xl:
        write_clip_tokenizer(folder / "tokenizer_2", "!")
    if kind.spread is not None:
        scale_last_norm(folder, kind.spread)
    file = folder / "model.safetensors"
    export(folder, file, dtype=kind.dtype, extra_keys=kind.extra_keys, ema=kind.has_ema)
    yield Drawn(kind, file, load(folder, file, kind, is_xl=is_xl), rng)
    jax.clear_caches()


def load(folder: Path, file: Path, kind: Kind, *, is_xl: bool) -> Pipeline:
    """Load a single file with torch, in float32; the folder's weights are not used."""
    for weights in folder.glob("*/*.safetensors"):
        weights.unlink()
    pipe = (StableDiffusionXLPipeline if is_xl else StableDiffusionPipeline).from_single_file(
        str(file),
        config=str(folder),
        local_files_only=True,
        dtype=torch.float32,
        extract_ema=kind.wants_ema,
        **({"add_watermarker": False} if is_xl else {}),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def pipe(drawn: Drawn) -> SDXLPipeline:
    return SDXLPipeline.from_pretrained(
        drawn.file,
        height=SIDE,
        width=SIDE,
        images_per_request=IMAGES,
        devices=jax.devices()[:1],
        ema=drawn.kind.wants_ema,
    )


def test_tokenizers(drawn: Drawn) -> None:
    prompts = ["a photo of a cat", *NASTY_PROMPTS, *(draw_text(drawn.rng) for _ in range(200))]
    checkpoint = fetch(str(drawn.file), None, FamilyReader())
    tokenizers = Tokenizers.load(checkpoint.folder, checkpoint.config.tokenizers)
    ids, _ = tokenizers.tokenize(prompts)
    # As in the first example of https://github.com/openai/CLIP.
    assert ids[0, 0, :7].tolist() == [49406, 320, 1125, 539, 320, 2368, 49407]
    theirs = torch_reference.tokenize(drawn.theirs, prompts)
    np.testing.assert_array_equal(ids, np.stack(theirs, axis=1))


def test_pictures(drawn: Drawn, pipe: SDXLPipeline) -> None:
    prompts = ["a photo of a cat", f"a {draw_text(drawn.rng)}"]
    scale = float(drawn.rng.uniform(1.5, 9))
    check_sample(drawn.theirs, pipe, drawn.noise(), prompts, ["blurry", ""], scale)
