"""Small pictures of the page's styles, all from the same prompt and seed.

    .venv/bin/python -m tools.style_pictures

ui/style-pictures/ has the bundled miniature's. The styles for SDXL have no pictures yet, because
they need its weights:

    .venv/bin/python -m tools.style_pictures --kind sdxl --model a-folder-or-hub-id
"""

import argparse

from PIL import Image

from pipeline import BUNDLED, SDXLPipeline
from ui.examples import examples_for
from ui.model_kind import Kind
from ui.style_pictures import file_of
from ui.styles import styles_for

SIDE = 96


def main() -> None:
    """Draw the pictures and write them."""
    parser = argparse.ArgumentParser(prog="python -m tools.style_pictures")
    parser.add_argument("--kind", type=Kind, default=Kind.MINIATURE, choices=tuple(Kind))
    parser.add_argument("--model", default=str(BUNDLED), help="folder or Hub id")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    kind = options.kind
    subject = "a red star" if kind is Kind.MINIATURE else examples_for(kind)[0]
    pipe = SDXLPipeline.from_pretrained(options.model, images_per_request=1)
    for name, style in styles_for(kind).items():
        prompt, negative = style.apply(subject, "")
        [image] = pipe.generate(prompt, negative, seed=options.seed).images
        file = file_of(kind, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        image.resize((SIDE, SIDE), Image.Resampling.LANCZOS).save(file, quality=80)


if __name__ == "__main__":
    main()
