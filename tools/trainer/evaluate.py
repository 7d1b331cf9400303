"""Judge a miniature by the network of `tools.trainer.judge`: `python -m tools.trainer.evaluate`.

The pipeline draws every picture from a prompt that states everything, with seeds and prompts that
training never saw. Beside the report is a sheet of the first pictures.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline import SDXLPipeline
from tools.trainer.captions import prompt
from tools.trainer.composition import make_scene
from tools.trainer.judge import load_judge, look, score
from tools.trainer.training import sheet

BATCH = 8
SHOWN = 64  # pictures of the sheet
SEED = 100_000  # of the scenes, far from the seeds of training
FIRST_SEED = 1000  # of the pictures


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tools.trainer.evaluate", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("runs/trainer/checkpoint"))
    parser.add_argument("--prompts", type=int, default=1000, help="a multiple of 8")
    parser.add_argument("--names", type=int, default=20, help="the first of all")
    parser.add_argument("--plain", action="store_true", help="one thing on a plain background")
    parser.add_argument("--out", type=Path, default=Path("runs/trainer/report.json"))
    options = parser.parse_args()
    rng = np.random.default_rng(SEED)
    scenes = [make_scene(options.names, options.plain, rng) for _ in range(options.prompts)]
    pipe = SDXLPipeline.from_pretrained(options.model, images_per_request=BATCH)
    pictures = draw_pictures(pipe, [prompt(scene) for scene in scenes])
    rows = pictures[:SHOWN].reshape(-1, BATCH, *pictures.shape[1:])
    sheet(rows / 255, options.out.with_name("samples.png"))
    answers = look(load_judge(), pictures)
    results: dict[str, list[bool]] = defaultdict(list)
    for scene, answer in zip(scenes, answers, strict=True):
        if len(scene.items) == 1:
            results[scene.items[0].thing.words[0]].append(scene.items[0].thing.icon in answer.names)
    report = {
        "prompts": len(scenes),
        **score(scenes, answers),
        "by name": {name: round(float(np.mean(values)), 2) for name, values in results.items()},
    }
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


def draw_pictures(pipe: SDXLPipeline, prompts: Sequence[str]) -> np.ndarray:
    """Draw one picture for each prompt in 25 steps; return uint8 [n, H, W, 3].

    The number of prompts is a multiple of `pipe.facts.images_per_request`.
    """
    batch = pipe.facts.images_per_request
    pictures = []
    for start in range(0, len(prompts), batch):
        part = list(prompts[start : start + batch])
        result = pipe.generate(
            part, guidance_scale=5.0, seed=FIRST_SEED + start, num_inference_steps=25
        )
        pictures += [np.asarray(image) for image in result.images]
    return np.stack(pictures)


if __name__ == "__main__":
    main()
