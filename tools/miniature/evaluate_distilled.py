"""Judge the distilled miniature: `python -m tools.miniature.evaluate_distilled`.

Draws the prompts of `tools.miniature.evaluate` in few steps without guidance, with the LoRA and
without it, by Euler's method with trailing timesteps. Then times requests for four pictures.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

from PIL import Image

from pipeline import BUNDLED, SDXLPipeline
from tools.miniature.distill import NAME
from tools.miniature.evaluate import draw_pictures, draw_scenes, score
from tools.miniature.evaluate_lora import LORAS, SHOWN, SHOWN_SEED
from tools.miniature.scenes import prompt
from tools.miniature.training import sheet
from tools.miniature.trajectories import GUIDANCE, STEPS

LORA = {NAME: 1.0}
UNGUIDED = 1.0
SPACING = "trailing"
SHOWN_ROWS, COLUMNS = 4, 8  # of the sheet of samples
# Judged cases: steps, and LoRAs with their weights.
CASES = {
    "4 steps": (STEPS, LORA),
    "2 steps": (STEPS // 2, LORA),
    "4 steps without the LoRA": (STEPS, {}),
}


def main() -> None:
    """Measure, print, and write the report, a sheet of samples and the LoRA's picture."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.miniature.evaluate_distilled", description=__doc__
    )
    parser.add_argument("--file", type=Path, default=LORAS / f"{NAME}.safetensors")
    parser.add_argument("--prompts", type=int, default=512, help="a multiple of 4")
    parser.add_argument("--compared", type=int, default=128, help="prompts of the other cases")
    parser.add_argument("--rounds", type=int, default=5, help="timed requests of each kind")
    parser.add_argument("--out", type=Path, default=Path("report.json"))
    options = parser.parse_args()
    scenes = draw_scenes(options.prompts)
    prompts = [prompt(scene) for scene in scenes]
    pipe = SDXLPipeline.from_pretrained(BUNDLED, images_per_request=4)
    pipe.load_lora(options.file, name=NAME)
    report: dict[str, object] = {}
    for label, (steps, loras) in CASES.items():
        is_main = steps == STEPS and bool(loras)
        count = options.prompts if is_main else min(options.compared, options.prompts)
        pictures = draw_pictures(pipe, prompts[:count], "", loras, steps, UNGUIDED, SPACING)
        report[label] = {"prompts": count, **score(scenes[:count], pictures)}
        print(label, report[label], flush=True)
        if is_main:
            shown = pictures[: SHOWN_ROWS * COLUMNS] / 255
            rows = shown.reshape(SHOWN_ROWS, COLUMNS, *pictures.shape[1:])
            sheet(rows, options.out.with_name("samples.png"))
    report["seconds"] = seconds(pipe, options.rounds)
    print(report["seconds"])
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    drawn = pipe.generate(
        SHOWN,
        "",
        UNGUIDED,
        SHOWN_SEED,
        num_inference_steps=STEPS,
        loras=LORA,
        timestep_spacing=SPACING,
    )
    small = drawn.images[0].resize((128, 128), Image.Resampling.LANCZOS)
    small.save(options.file.with_suffix(".png"))


def seconds(pipe: SDXLPipeline, rounds: int) -> dict[str, float]:
    """Return the median seconds of requests for four pictures, which take turns."""
    kinds = {
        "25 steps, guided": (25, GUIDANCE, {}, None),
        "4 steps, LoRA put on": (STEPS, UNGUIDED, LORA, SPACING),
        "4 steps": (STEPS, UNGUIDED, LORA, SPACING),
    }
    taken: dict[str, list[float]] = {label: [] for label in kinds}
    for seed in range(rounds):
        for label, (steps, guidance, loras, spacing) in kinds.items():
            start = time.perf_counter()
            pipe.generate(
                SHOWN,
                "",
                guidance,
                seed,
                num_inference_steps=steps,
                loras=loras,
                timestep_spacing=spacing,
            )
            taken[label].append(time.perf_counter() - start)
    return {label: round(median(values), 3) for label, values in taken.items()}


if __name__ == "__main__":
    main()
