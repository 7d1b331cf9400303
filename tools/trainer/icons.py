"""The icons that scenes are made of: `python -m tools.trainer.icons`.

Downloads three openly licensed icon sets from npm, and renders every thing of `names.txt` in each:
Fluent Emoji, flat and with colour gradients (Microsoft, MIT), and Noto Emoji (Google, Apache 2.0).
"""

import argparse
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tools.trainer.things import all_things

SIDE = 192  # pixels
FILE = Path("runs/icons.npz")

# The npm package in which each hand draws.
PACKAGES = {
    "flat": "@iconify-json/fluent-emoji-flat@1.2.6",
    "glossy": "@iconify-json/fluent-emoji@1.2.7",
    "cartoon": "@iconify-json/noto@1.2.9",
}
HANDS = tuple(PACKAGES)


def main() -> None:
    """Render all icons into one file."""
    parser = argparse.ArgumentParser(prog="python -m tools.trainer.icons", description=__doc__)
    parser.add_argument("--packages", type=Path, default=Path("runs/packages"))
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    sets = {hand: _icon_set(name, options.packages) for hand, name in PACKAGES.items()}
    icons = {
        f"{thing.icon} {hand}": render(icons, thing.icon)
        for thing in all_things()
        for hand, icons in sets.items()
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.out, allow_pickle=False, **icons)
    print(f"{len(icons)} icons, {options.out.stat().st_size / 1e6:.1f} MB")


def render(icons: Mapping[str, Any], name: str) -> np.ndarray:
    """Render one icon of an Iconify set: uint8 [SIDE, SIDE, 4], RGBA, its longer side `SIDE`."""
    import resvg_py

    icon = icons["icons"].get(name) or icons["icons"][icons["aliases"][name]["parent"]]
    width, height = (icon.get(key, icons.get(key, 16)) for key in ("width", "height"))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {height}">{icon["body"]}</svg>'
    )
    png = resvg_py.svg_to_bytes(
        svg_string=svg, skip_system_fonts=True, width=2 * SIDE, height=2 * SIDE
    )
    picture = Image.open(io.BytesIO(bytes(png))).convert("RGBA")
    picture = picture.crop(picture.getchannel("A").point([0] * 9 + [255] * 247).getbbox())
    scale = SIDE / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    canvas = Image.new("RGBA", (SIDE, SIDE))
    canvas.paste(picture, ((SIDE - width) // 2, (SIDE - height) // 2))
    return np.asarray(canvas)


@cache
def load_icons(file: Path = FILE) -> dict[str, np.ndarray]:
    """Return the file that `main` wrote: arrays of `render` by "icon hand"."""
    with np.load(file) as icons:
        return dict(icons)


def _icon_set(package: str, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    name, _, version = package.removeprefix("@").replace("/", "-").rpartition("@")
    archive = folder / f"{name}-{version}.tgz"
    if not archive.exists():
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True)
    with tarfile.open(archive) as files:
        data = files.extractfile("package/icons.json")
        assert data is not None
        return json.load(data)


if __name__ == "__main__":
    main()
