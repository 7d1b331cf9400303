"""Judge the LoRAs of styles: `python -m tools.miniature.evaluate_lora --out report.json`.

Draws the same prompts with and without them, at 25 steps and guidance 5, and measures their styles,
and whether backgrounds, colours and shapes are still what the prompts say. The rows "drawings" are
true drawings in each style: what the judge misses there is the judge's fault.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline import BUNDLED, SDXLPipeline
from tools.miniature.drawing import PLAIN, Decoration, draw
from tools.miniature.evaluate import SEED, draw_pictures, draw_scenes, score
from tools.miniature.lora import STYLES
from tools.miniature.scenes import Scene, prompt
from tools.miniature.style_judge import MEASURES
from tools.miniature.training import sheet

LORAS = BUNDLED / "loras"
COLUMNS = 8  # of the sheet of samples
# The prompt and the seed of the picture beside each file.
SHOWN, SHOWN_SEED = "a large red heart on a blue background", 3


def bundled() -> list[str]:
    """Return the styles whose LoRAs come with the miniature."""
    return sorted(name for name in STYLES if (LORAS / f"{name}.safetensors").exists())


def weights(names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the weights to measure, by what the report calls them."""
    each = {name: {name: 1.0} for name in names}
    half = {f"{name}, half": {name: 0.5} for name in names}
    together = {"all": dict.fromkeys(names, 1.0)} if len(names) > 1 else {}
    return {"without": {}, **each, **half, **together}


def main() -> None:
    """Measure, print, and write the report, a sheet of samples and a picture for each LoRA."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.miniature.evaluate_lora", description=__doc__
    )
    parser.add_argument("styles", nargs="*", help="which to judge", default=bundled())
    parser.add_argument("--prompts", type=int, default=128, help="a multiple of 8")
    parser.add_argument("--out", type=Path, default=LORAS / "report.json")
    options = parser.parse_args()
    if unknown := set(options.styles) - set(bundled()):
        parser.error(f"unknown LoRAs {sorted(unknown)}; known: {', '.join(bundled())}")
    pipe = SDXLPipeline.from_pretrained(BUNDLED, images_per_request=8)
    names = options.styles
    for name in names:
        pipe.load_lora(LORAS / f"{name}.safetensors")
    scenes = draw_scenes(options.prompts)
    prompts = [prompt(scene) for scene in scenes]
    report: dict[str, dict[str, float]] = {}
    rows = []

    def judge(label: str, pictures: np.ndarray) -> None:
        report[label] = score(scenes, pictures) | style_scores(scenes, pictures)
        rows.append(pictures[:COLUMNS])
        print(label, report[label], flush=True)

    judge("drawings", drawings(scenes, PLAIN))
    for name in names:
        judge(f"{name}, drawings", drawings(scenes, STYLES[name].decoration))
    for label, loras in weights(names).items():
        judge(label, draw_pictures(pipe, prompts, loras=loras))
    for name in names:
        words = [f"{text}, {STYLES[name].trigger}" for text in prompts]
        judge(f"{name}, with its word", draw_pictures(pipe, words, loras={name: 1.0}))
    options.out.write_text(json.dumps({"prompts": len(scenes), **report}, indent=2) + "\n")
    sheet(np.stack(rows) / 255, options.out.with_name("samples.png"))
    for name in names:
        shown = pipe.generate(SHOWN, seed=SHOWN_SEED, num_inference_steps=25, loras={name: 1.0})
        shown.images[0].resize((128, 128), Image.Resampling.LANCZOS).save(LORAS / f"{name}.png")


def drawings(scenes: Sequence[Scene], decoration: Decoration) -> np.ndarray:
    """Return a true drawing of each scene: uint8 [n, H, W, 3]."""
    rngs = (np.random.default_rng((SEED, i)) for i in range(len(scenes)))
    pairs = zip(scenes, rngs, strict=True)
    return np.stack([draw(scene, rng, decoration=decoration) for scene, rng in pairs])


def style_scores(scenes: Sequence[Scene], pictures: np.ndarray) -> dict[str, float]:
    """Return the median measure of each style in pictures `[n, H, W, 3]` uint8, in percent.

    They are measured where no prompt names white, on which no light is seen.
    """
    pairs = zip(scenes, pictures, strict=True)
    coloured = [picture for scene, picture in pairs if not names_white(scene)]
    return {
        name: round(100 * float(np.median([measure(picture) for picture in coloured])), 2)
        for name, measure in MEASURES.items()
    }


def names_white(scene: Scene) -> bool:
    """Return whether a scene has anything white."""
    return "white" in (scene.background, *(thing.colour for thing in scene.things))


if __name__ == "__main__":
    main()
