"""Judge a trained miniature: `python -m tools.miniature.evaluate --out report.json`.

The pipeline itself draws every picture, at 25 steps and guidance 5, from prompts that state
everything. A quarter of the prompts has a colour and shape that training never showed together.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline import BUNDLED, SDXLPipeline
from pipeline.families import read_config
from pipeline.models.vae import VAE
from tools.agreement import load_module
from tools.miniature.judge import has_colour, judge_scene
from tools.miniature.scenes import COLOURS, SHAPES, Scene, prompt, random_scene
from tools.miniature.train_vae import draw_pool, psnr
from tools.miniature.training import sheet

HELD_OUT_EVERY = 4  # one scene in this many
SEED = 1000  # far from the seeds that training uses


def main() -> None:
    """Measure, print, and write the report and a sheet of samples."""
    parser = argparse.ArgumentParser(prog="python -m tools.miniature.evaluate", description=__doc__)
    parser.add_argument("--model", type=Path, default=BUNDLED)
    parser.add_argument("--prompts", type=int, default=512, help="a multiple of --batch")
    parser.add_argument("--negatives", type=int, default=32, help="pictures per negated colour")
    parser.add_argument("--batch", type=int, default=8, help="pictures drawn at once")
    parser.add_argument("--out", type=Path, default=Path("report.json"))
    options = parser.parse_args()
    pipe = SDXLPipeline.from_pretrained(options.model, images_per_request=options.batch)
    scenes = draw_scenes(options.prompts)
    pictures = draw_pictures(pipe, [prompt(scene) for scene in scenes])
    report = {
        "prompts": len(scenes),
        **score(scenes, pictures),
        **negative_prompts(pipe, options.negatives),
        "vae_psnr_db": round(_vae_psnr(options.model), 2),
    }
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    side = 8
    sheet(pictures[: side * 4].reshape(4, side, *pictures.shape[1:]) / 255, _sheet(options.out))
    print(json.dumps(report, indent=2))


def draw_scenes(count: int) -> list[Scene]:
    """Draw scenes that training did not see, every fourth with a held-out pair."""
    rng = np.random.default_rng(SEED)
    return [random_scene(rng, held_out=i % HELD_OUT_EVERY == 0) for i in range(count)]


def score(scenes: Sequence[Scene], pictures: np.ndarray) -> dict[str, float]:
    """Return the percentages of pictures `[n, H, W, 3]` uint8 that show what was asked for."""
    pairs = zip(pictures, scenes, strict=True)
    both = [(scene, judge_scene(picture, scene)) for picture, scene in pairs]
    single = [(scene, verdict) for scene, verdict in both if len(scene.things) == 1]
    double = [(scene, verdict) for scene, verdict in both if len(scene.things) == 2]
    unseen = [(scene, verdict) for scene, verdict in single if scene.is_held_out]
    return {
        "background": _percent([v.background for _, v in both]),
        "object_colour": _percent([v.colour for _, v in single]),
        "object_shape": _percent([v.shape for _, v in single]),
        "both_colours": _percent([v.colour for _, v in double]),
        "both_shapes": _percent([v.shape for _, v in double]),
        "held_out_colour": _percent([v.colour for _, v in unseen]),
        "held_out_shape": _percent([v.shape for _, v in unseen]),
    }


def negative_prompts(pipe: SDXLPipeline, count: int) -> dict[str, float]:
    """Return how often a colour appears when the prompt leaves it open.

    Compares no negative prompt with one that names the colour; `count` pictures for every colour.
    """
    without, named = [], []
    for i, colour in enumerate(COLOURS):
        others = [name for name in ("white", "black", "gray") if name != colour]
        prompts = [
            f"a {SHAPES[(i + k) % len(SHAPES)]} on a {others[k % len(others)]} background"
            for k in range(count)
        ]
        for negative, found in (("", without), (colour, named)):
            drawn = draw_pictures(pipe, prompts, negative)
            found += [has_colour(picture, colour) for picture in drawn]
    return {
        "open_colour": _percent(without),
        "open_colour_negated": _percent(named),
        "rarer_times": round(sum(without) / max(sum(named), 1), 2),
    }


def draw_pictures(
    pipe: SDXLPipeline,
    prompts: Sequence[str],
    negative: str = "",
    loras: Mapping[str, float] | None = None,
    steps: int = 25,
    guidance_scale: float = 5.0,
    timestep_spacing: str | None = None,
) -> np.ndarray:
    """Draw one picture for each prompt; return uint8 [n, H, W, 3].

    The number of prompts is a multiple of `pipe.images_per_request`.
    """
    batch = pipe.facts.images_per_request
    parts = []
    for start in range(0, len(prompts), batch):
        part = list(prompts[start : start + batch])
        result = pipe.generate(
            part,
            negative,
            guidance_scale=guidance_scale,
            seed=SEED + start,
            num_inference_steps=steps,
            loras=loras,
            timestep_spacing=timestep_spacing,
        )
        parts += [np.asarray(image) for image in result.images]
    return np.stack(parts)


def _vae_psnr(folder: Path) -> float:
    vae = load_module(VAE, read_config(folder).networks["vae"], folder / "vae")
    return psnr(vae, draw_pool(64, SEED))[0]


def _percent(outcomes: list[bool]) -> float:
    return round(100 * float(np.mean(outcomes)), 1)


def _sheet(report: Path) -> Path:
    return report.with_name("samples.png")


if __name__ == "__main__":
    main()
