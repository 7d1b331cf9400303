"""Golden files: the outputs of torch's diffusers for the tiny checkpoints.

    .venv-reference/bin/python -m tests.reference.make_goldens tests/golden

Builds every checkpoint of `tests.reference.tiny_checkpoints`, and writes
`tests/golden/<name>/golden.npz` beside those of `TINY`, `from_pictures.npz` beside that of
`FROM_PICTURES`, `safety.npz` beside that of `SAFE`, `refiner.npz` beside that of `REFINER`,
`tests/golden/schedulers.npz`, and `tests/golden/tiny_vae` with a tiny VAE and its `tiny_vae.npz`.
The bytes are the same each time on a processor with the same versions of torch, diffusers and
transformers; on another processor the last bits of some files differ.
`tests/pipeline/test_golden.py`, `tests/pipeline/models/test_safety_checker.py` and
`tests/pipeline/schedulers/test_steps.py` compare the project's own networks and schedules with
them, without torch. All pictures and latents are channels last; all numbers are float32, except the
int32 ids.
"""

import argparse
import json
from collections.abc import Collection
from pathlib import Path

import diffusers
import numpy as np
from diffusers import AutoencoderTiny, StableDiffusionPipeline
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
from PIL import Image

from pipeline.schedulers.config import SCHEDULERS
from tests.reference import torch_reference
from tests.reference.tiny_checkpoints import (
    FLAX,
    REFINER,
    SAFE,
    TINY,
    Pipeline,
    Tiny,
    load,
    write,
    write_tiny_vae,
)
from tests.scheduler_cases import cases

PROMPTS = (
    "",
    " \n\t ",
    "a red star on a blue background",
    "A night; a knight! 1,024 circles & 'the' finest outline...",
    "a very long prompt, " * 40,
    "\U0001f31f star \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",
    "\u0646\u062c\u0645\u0629 \u062d\u0645\u0631\u0627\u0621 \u05db\u05d5\u05db\u05d1",
    "red\x00star\x07 \x1b[31m\u202eblue\u200b\ufeff",
)
SAMPLED_PROMPTS = ("a red star on a blue background", "night, light and a soft outline!")
NEGATIVE_PROMPTS = ("circle, green", "square above a star")
STEP_COUNTS = (1, 2, 3, 25, 50)
STEPS = 25
GUIDANCE_SCALE = 5.0
# Sizes of pictures for the safety checker: its own, one to enlarge, one to reduce.
CHECKED_SIZES = ((28, 28), (20, 33), (90, 64))
CHECKED_EACH = 4
THRESHOLD_SETS = 8
# Schedulers that draw whole pictures; the others are compared step by step.
# Checkpoint that draws from pictures, in so many steps and with these strengths.
FROM_PICTURES, PICTURE_STEPS = "plain", 6
STRENGTHS = {"image": 0.5, "mask": 0.7}
REFINED_FROM = 0.6  # share of the denoising that the base model does before the refiner
DRAWN_BY = ("euler", "euler-ancestral", "ddim", "pndm", "dpmsolver++")
EVALUATIONS = 9  # the most in the cases of `scheduler_cases`


def golden(pipe: Pipeline, tiny: Tiny) -> dict[str, np.ndarray]:
    """Return every array of one golden file."""
    rng = np.random.default_rng([tiny.seed, 100])
    text = torch_reference.encode_text(pipe, PROMPTS)
    return {
        "prompts": np.array(json.dumps(PROMPTS)),
        **text,
        **_unet(pipe, text, rng),
        **_vae(pipe, rng),
        **_schedules(pipe),
        **_samples(pipe, rng, DRAWN_BY if tiny.every_scheduler else ()),
    }


def _noise(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _latents(pipe: Pipeline, rng: np.random.Generator) -> np.ndarray:
    size = pipe.unet.config.sample_size
    height, width = (size, size) if isinstance(size, int) else size
    return _noise(rng, 2, height, width, pipe.unet.config.in_channels)


def _unet(
    pipe: Pipeline, text: dict[str, np.ndarray], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Run the UNet on two rows that differ in everything.

    The second row's time is between two training timesteps.
    """
    inputs = {"latents": _latents(pipe, rng), "timesteps": np.array([961, 20.75], np.float32)}
    if "pooled" in text:
        sizes = [[1024, 1024, 0, 0, 1024, 1024], [768, 512, 16, 3, 256, 640]]
        inputs["add_time_ids"] = np.array(sizes, np.float32)
    if pipe.unet.config.time_cond_proj_dim is not None:
        inputs["guidance_scale"] = np.array([8.5, 1.25], np.float32)
    text_inputs = {key: text[key][2:4] for key in ("prompt_embeds", "pooled") if key in text}
    output = torch_reference.unet_forward(pipe.unet, **inputs, **text_inputs)
    return {**{f"unet_{key}": value for key, value in inputs.items()}, "unet_output": output}


def _vae(pipe: Pipeline, rng: np.random.Generator) -> dict[str, np.ndarray]:
    z = 3 * _latents(pipe, rng)
    height, width = (side * pipe.vae_scale_factor for side in z.shape[1:3])
    images = rng.uniform(-1, 1, (1, height, width, 3)).astype(np.float32)
    mean, logvar = torch_reference.vae_encode(pipe.vae, images)
    return {
        "vae_images": images,
        "vae_mean": mean,
        "vae_logvar": logvar,
        "vae_z": z,
        "vae_decoded": torch_reference.vae_decode(pipe.vae, z),
    }


def _schedules(pipe: Pipeline) -> dict[str, np.ndarray]:
    return {
        f"schedule_{steps}_{key}": value
        for steps in STEP_COUNTS
        for key, value in torch_reference.schedule(pipe, steps).items()
    }


def _samples(
    pipe: Pipeline, rng: np.random.Generator, schedulers: Collection[str]
) -> dict[str, np.ndarray]:
    """Draw two pictures from two prompts, in several cases.

    The cases are: no negative prompts, one for each picture, and no guidance; then negative prompts
    with each of `schedulers` in place of the checkpoint's own.
    """
    latents = _latents(pipe, rng)
    result = {
        "sample_prompts": np.array(json.dumps(SAMPLED_PROMPTS)),
        "sample_negative_prompts": np.array(json.dumps(NEGATIVE_PROMPTS)),
        "sample_latents": latents,
    }
    for case, negative_prompts, guidance_scale in (
        ("none", None, GUIDANCE_SCALE),
        ("negative", NEGATIVE_PROMPTS, GUIDANCE_SCALE),
        ("unguided", None, 1.0),
    ):
        sample = torch_reference.sample(
            pipe, SAMPLED_PROMPTS, negative_prompts, latents, guidance_scale, STEPS
        )
        result[f"sample_{case}_latents"] = sample.latents
        result[f"sample_{case}_images"] = sample.images
    original_scheduler = pipe.scheduler
    for name in schedulers:
        pipe.scheduler = getattr(diffusers, SCHEDULERS[name].name).from_config(
            original_scheduler.config
        )
        sample = torch_reference.sample(
            pipe, SAMPLED_PROMPTS, NEGATIVE_PROMPTS, latents, GUIDANCE_SCALE, STEPS
        )
        result[f"sample_{name}_latents"] = sample.latents
        result[f"sample_{name}_images"] = sample.images
    return result


def from_pictures(pipe: Pipeline, tiny: Tiny) -> dict[str, np.ndarray]:
    """Draw two pictures from two others, and again with masks."""
    rng = np.random.default_rng([tiny.seed, 101])
    noise = _latents(pipe, rng)
    height, width = (side * pipe.vae_scale_factor for side in noise.shape[1:3])
    images = rng.uniform(size=(2, height, width, 3)).astype(np.float32)
    mask = np.zeros((2, height, width), np.float32)
    mask[0, 3:, : width // 2] = mask[1, :5] = 1
    result = {"noise": noise, "image": images, "mask": mask}
    for case, strength in STRENGTHS.items():
        sample = torch_reference.sample_from_picture(
            pipe,
            SAMPLED_PROMPTS,
            NEGATIVE_PROMPTS,
            noise,
            GUIDANCE_SCALE,
            PICTURE_STEPS,
            images,
            mask if case == "mask" else None,
            strength=strength,
        )
        result[f"{case}_latents"] = sample.latents
        result[f"{case}_images"] = sample.images
    return result


def refined(base: Pipeline, checkpoint: Path, tiny: Tiny) -> dict[str, np.ndarray]:
    """Draw two pictures by a base model and its refiner, and two others by the refiner alone.

    Beside the base model the refiner has its text encoder and its VAE.
    """
    rng = np.random.default_rng([tiny.seed, 100])
    noise = _latents(base, rng)
    height, width = (side * base.vae_scale_factor for side in noise.shape[1:3])
    images = rng.uniform(size=(2, height, width, 3)).astype(np.float32)
    prompts = SAMPLED_PROMPTS, NEGATIVE_PROMPTS
    base_sample = torch_reference.sample(
        base, *prompts, noise, GUIDANCE_SCALE, PICTURE_STEPS, denoising_end=REFINED_FROM
    )
    run_settings = noise, GUIDANCE_SCALE, PICTURE_STEPS
    refiner = load(checkpoint, text_encoder_2=base.text_encoder_2, vae=base.vae)
    refined_sample = torch_reference.sample_from_picture(
        refiner, *prompts, *run_settings, base_sample.latents, denoising_start=REFINED_FROM
    )
    alone_sample = torch_reference.sample_from_picture(
        load(checkpoint), *prompts, *run_settings, images, strength=STRENGTHS["image"]
    )
    return {
        "noise": noise,
        "image": images,
        "base_latents": base_sample.latents,
        "refined_latents": refined_sample.latents,
        "refined_images": refined_sample.images,
        "alone_latents": alone_sample.latents,
        "alone_images": alone_sample.images,
    }


def schedulers() -> dict[str, np.ndarray]:
    """Return the latents after every evaluation, and the predictions that gave them.

    The keys of the latents are cases of `scheduler_cases`, as JSON. Parts of a run begin with the
    latents `x0` of a picture.
    """
    rng = np.random.default_rng(5891)
    latents, predictions = _noise(rng, 2, 3, 2, 1), _noise(rng, EVALUATIONS, 2, 3, 2, 1)
    x0 = _noise(rng, 2, 3, 2, 1)
    result = {"latents": latents, "predictions": predictions, "x0": x0}
    for case in cases():
        scheduler = torch_reference.make_scheduler(case)
        options = {"eta": case["eta"]} if "eta" in case else {}
        key = json.dumps(case)
        timesteps = torch_reference.part_timesteps(scheduler, case)
        start_latents = x0 if "strength" in case or "denoising_start" in case else None
        steps = torch_reference.scheduler_steps(
            scheduler, timesteps, latents, predictions, start_latents, **options
        )
        result[key] = steps.latents
        if start_latents is not None:
            result[f"{key} noised"] = steps.noised
        result[f"{key} timesteps"] = timesteps.numpy().astype(np.float32)
    zero_snr = {"name": "ddim", "prediction_type": "v_prediction", "rescale_betas_zero_snr": True}
    scheduler = torch_reference.make_scheduler({**zero_snr, "steps": 1})
    result["zero_snr_alphas_cumprod"] = scheduler.alphas_cumprod.numpy()
    return result


def safety(pipe: StableDiffusionPipeline, tiny: Tiny) -> dict[str, np.ndarray]:
    """Return pictures of several sizes, their embeddings, and verdicts for several thresholds."""
    rng = np.random.default_rng([tiny.seed, 100])
    pictures = [draw_pictures(rng, CHECKED_EACH, *size) for size in CHECKED_SIZES]
    parts = pipe.safety_checker, pipe.feature_extractor
    embeds = [torch_reference.safety_embeds(*parts, images) for images in pictures]
    result = {f"images_{i}": images for i, images in enumerate(pictures)}
    result |= {f"embeds_{i}": values for i, values in enumerate(embeds)}
    thresholds, verdicts = [], []
    for _ in range(THRESHOLD_SETS):
        thresholds.append(draw_thresholds(pipe.safety_checker, np.concatenate(embeds), rng))
        torch_reference.set_thresholds(pipe.safety_checker, *thresholds[-1])
        picture_verdicts = [torch_reference.safety_verdicts(*parts, images) for images in pictures]
        verdicts.append(np.concatenate(picture_verdicts))
    concepts, special_care = map(np.stack, zip(*thresholds, strict=True))
    return {
        **result,
        "concept_embeds_weights": concepts,
        "special_care_embeds_weights": special_care,
        "verdicts": np.stack(verdicts),
    }


def draw_pictures(rng: np.random.Generator, count: int, height: int, width: int) -> np.ndarray:
    """Draw soft blots with some noise, `[count, height, width, 3]` uint8."""
    blots = rng.integers(0, 256, (count, 4, 4, 3), np.uint8)
    pictures = [Image.fromarray(blot).resize((width, height)) for blot in blots]
    noise = rng.normal(0, 20, (count, height, width, 3))
    return np.clip(np.stack(pictures) + noise, 0, 255).astype(np.uint8)


def draw_thresholds(
    checker: StableDiffusionSafetyChecker, embeds: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw thresholds for the 17 concepts and for the 3 concepts of special care.

    Most are out of reach. The others are so close to the score of a picture with one of the
    embeddings `embeds` `[B, P]` that special care decides its verdict.

    Returns:
        Both sets of thresholds, `[17]` and `[3]` float32.
    """

    def draw(concepts: np.ndarray, close_share: float) -> np.ndarray:
        unit_embeds, unit_concepts = (
            x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (embeds, concepts)
        )
        count = len(concepts)
        scores = (unit_embeds @ unit_concepts.T)[
            rng.integers(len(embeds), size=count), np.arange(count)
        ]
        near_scores = scores + rng.uniform(-0.005, 0.012, count)
        return np.where(rng.random(count) < close_share, near_scores, 1).astype(np.float32)

    concepts, special_care = (
        getattr(checker, name).detach().numpy()
        for name in ("concept_embeds", "special_care_embeds")
    )
    return draw(concepts, 0.1), draw(special_care, 0.3)


def tiny_vae(vae: AutoencoderTiny, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return latents, of which some are outliers, and the pictures that they decode to."""
    z = 3 * _noise(rng, 2, 3, 5, vae.config.latent_channels)
    return {"z": z, "decoded": torch_reference.vae_decode(vae, z)}


def main() -> None:
    """Write checkpoints and golden files, and print their sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--schedulers", action="store_true", help="write schedulers.npz alone")
    options = parser.parse_args()
    folder: Path = options.folder
    torch_reference.prepare_for_tiny()
    np.savez_compressed(folder / "schedulers.npz", **schedulers())
    if options.schedulers:
        return
    rng = np.random.default_rng([12, 100])
    arrays = tiny_vae(write_tiny_vae(folder / "tiny_vae", rng), rng)
    np.savez_compressed(folder / "tiny_vae/tiny_vae.npz", **arrays)
    for name, tiny in FLAX.items():
        write(tiny, folder / name / "checkpoint")
    for name, tiny in SAFE.items():
        write(tiny, folder / name / "checkpoint")
        arrays = safety(load(folder / name / "checkpoint"), tiny)
        np.savez_compressed(folder / name / "safety.npz", **arrays)
    for name, tiny in TINY.items():
        checkpoint = folder / name / "checkpoint"
        write(tiny, checkpoint)
        arrays = golden(load(checkpoint, tiny.files.variant), tiny)
        np.savez_compressed(folder / name / "golden.npz", **arrays)
        if name == FROM_PICTURES:
            arrays = from_pictures(load(checkpoint, tiny.files.variant), tiny)
            np.savez_compressed(folder / name / "from_pictures.npz", **arrays)
        files = [path for path in (folder / name).rglob("*") if path.is_file()]
        print(f"{name}: {sum(path.stat().st_size for path in files) / 1e6:.2f} MB")
    for name, tiny in REFINER.items():
        write(tiny, folder / name / "checkpoint")
        base = load(folder / FROM_PICTURES / "checkpoint")
        arrays = refined(base, folder / name / "checkpoint", tiny)
        np.savez_compressed(folder / name / "refiner.npz", **arrays)


if __name__ == "__main__":
    main()
