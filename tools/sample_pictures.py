"""Small pictures for the page: of its styles, with the same prompt and seed, and of its examples.

    .venv/bin/python -m tools.sample_pictures

ui/style-pictures/ and ui/example-pictures/ have the bundled miniature's. SDXL has no pictures yet,
because they need its weights:

    .venv/bin/python -m tools.sample_pictures --kind sdxl --model a-folder-or-hub-id
"""

import argparse
from pathlib import Path

from PIL import Image

from pipeline import BUNDLED, SDXLPipeline
from ui.samples.examples import examples_for
from ui.samples.model_kind import Kind
from ui.samples.sample_pictures import EXAMPLES, STYLES
from ui.samples.styles import styles_for

STYLE_SIDE, EXAMPLE_SIDE = 96, 256
# Seeds with which the miniature draws these examples best.
_SEEDS = {
    "a small white circle inside a large red heart": 2,
    "a yellow moon above a green triangle": 3,
    "an outlined orange hexagon on a cyan background": 0,
}


def main() -> None:
    """Draw the pictures and write them."""
    parser = argparse.ArgumentParser(prog="python -m tools.sample_pictures")
    parser.add_argument("--kind", type=Kind, default=Kind.MINIATURE, choices=tuple(Kind))
    parser.add_argument("--model", default=str(BUNDLED), help="folder or Hub id")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    kind: Kind = options.kind
    seed: int = options.seed
    pipe = SDXLPipeline.from_pretrained(options.model, images_per_request=1)
    subject = "a red star" if kind is Kind.MINIATURE else examples_for(kind)[0]
    for name, style in styles_for(kind).items():
        image = _drawn(pipe, *style.apply(subject, ""), seed)
        _save(image, STYLE_SIDE, STYLES.file_of(kind, name))
    for prompt in examples_for(kind):
        image = _drawn(pipe, prompt, "", _SEEDS.get(prompt, seed))
        _save(image, EXAMPLE_SIDE, EXAMPLES.file_of(kind, prompt))


def _drawn(pipe: SDXLPipeline, prompt: str, negative_prompt: str, seed: int) -> Image.Image:
    [image] = pipe.generate(prompt, negative_prompt, seed=seed).images
    return image


def _save(image: Image.Image, side: int, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image.resize((side, side), Image.Resampling.LANCZOS).save(file, quality=80)


if __name__ == "__main__":
    main()
