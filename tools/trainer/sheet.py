"""Draw a sheet of pictures to look at: `python -m tools.trainer.sheet --out sheet.png`."""

import argparse
from functools import partial
from pathlib import Path

import numpy as np

from pipeline import SDXLPipeline
from tools.miniature.evaluate import draw_pictures
from tools.miniature.training import sheet
from tools.trainer.captions import prompt
from tools.trainer.train import make_scene

COLUMNS = 8


def main() -> None:
    """Draw 64 prompts of the kind that the checkpoint was trained on."""
    parser = argparse.ArgumentParser(prog="python -m tools.trainer.sheet", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("runs/trainer/checkpoint"))
    parser.add_argument("--out", type=Path, default=Path("runs/trainer/sheet.png"))
    parser.add_argument("--names", type=int, default=20)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("prompts", nargs="*", help="in place of random ones")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    scenes = map(partial(make_scene, options), [rng] * options.count)
    prompts = options.prompts or [prompt(scene) for scene in scenes]
    prompts += prompts[: -len(prompts) % COLUMNS]
    pipe = SDXLPipeline.from_pretrained(options.model, images_per_request=COLUMNS)
    pictures = draw_pictures(pipe, prompts)
    sheet(pictures.reshape(-1, COLUMNS, *pictures.shape[1:]) / 255, options.out)
    options.out.with_suffix(".txt").write_text("\n".join(prompts) + "\n")


if __name__ == "__main__":
    main()
