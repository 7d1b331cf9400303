"""A sheet of pictures to look at: `python -m tools.trainer.sheet PROMPT ...`."""

import argparse
from pathlib import Path

import numpy as np

from pipeline import SDXLPipeline
from tools.miniature.evaluate import draw_pictures
from tools.miniature.training import sheet
from tools.trainer.captions import prompt
from tools.trainer.composition import make_scene
from tools.trainer.things import all_things

COLUMNS = 8
SHOWN = 64  # pictures, if no prompt is named


def main() -> None:
    """Draw the prompts that the command names, or random ones."""
    parser = argparse.ArgumentParser(prog="python -m tools.trainer.sheet", description=__doc__)
    parser.add_argument("prompts", nargs="*", help="in place of random ones")
    parser.add_argument("--model", type=Path, default=Path("runs/trainer/checkpoint"))
    parser.add_argument("--out", type=Path, default=Path("runs/trainer/sheet.png"))
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    scenes = [make_scene(len(all_things()), False, rng) for _ in range(SHOWN)]
    prompts = options.prompts or list(map(prompt, scenes))
    prompts += prompts[: -len(prompts) % COLUMNS]
    pipe = SDXLPipeline.from_pretrained(options.model, images_per_request=COLUMNS)
    pictures = draw_pictures(pipe, prompts)
    sheet(pictures.reshape(-1, COLUMNS, *pictures.shape[1:]) / 255, options.out)
    options.out.with_suffix(".txt").write_text("\n".join(prompts) + "\n")


if __name__ == "__main__":
    main()
