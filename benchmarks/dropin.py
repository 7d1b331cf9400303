"""One program before and after the change of its import: diffusers 0.39, then this project.

    make .venv-incumbent/.installed
    .venv/bin/python -m benchmarks.dropin --model stabilityai/stable-diffusion-xl-base-1.0

Run it by hand. Both providers run on the same devices, in turns. With an accelerator,
.venv-incumbent needs its plugin of JAX too:
`.venv-incumbent/bin/python -m pip install "jax[cuda13]==0.10.2"`. On a CPU use a smaller model;
`tools/dropin_checkpoint.py` makes one. Writes
benchmarks/results/<date>-<device>-dropin-<dtype>.json.
"""

import argparse
import json
import sys
from statistics import median

from benchmarks import apart, record
from benchmarks.processes import ROOT

PROGRAM = "benchmarks.dropin_program"
PROVIDERS = {
    "diffusers": str(ROOT / ".venv-incumbent/bin/python"),
    "pipeline.compat": sys.executable,
}


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dropin")
    parser.add_argument("--model", required=True, help="folder or Hub id of an SDXL")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each, in turns")
    parser.add_argument("--repeats", type=int, default=5, help="calls, after one that compiles")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    arguments = ["--model", options.model, "--repeats", str(options.repeats)]
    arguments += ["--dtype", options.dtype]
    rounds = [
        {
            provider: apart.run(PROGRAM, ["--provider", provider, *arguments], python)
            for provider, python in PROVIDERS.items()
        }
        for _ in range(options.rounds)
    ]
    before, after = ([result[provider] for result in rounds] for provider in PROVIDERS)
    report = {
        **record.head("benchmarks.dropin"),
        "before": before,
        "after": after,
        "speed_up": {
            name: round(median(b[name] / a[name] for b, a in zip(before, after, strict=True)), 2)
            for name in ("first_call_seconds", "call_seconds_median")
        },
    }
    file = record.save(f"{after[0]['device']}-dropin-{options.dtype}", report)
    print(json.dumps(report, indent=2), file, sep="\n")


if __name__ == "__main__":
    main()
