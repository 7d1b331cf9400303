"""Fill in the tables of figures in the documents, from the records in benchmarks/results.

    python -m tools.figures

Between `<!-- figures: NAME -->` and `<!-- end of figures -->` the README has that table of TABLES.
The page docs/benchmarks.md also has the records of its figures, and commands to measure them again.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
BLOCK = re.compile(r"<!-- figures: ([\w-]+) -->\n.*?(?=<!-- end of figures -->)", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """Figures of the same kind.

    Attributes:
        rows: the part of a record with a row's figures, by the row's label. `RECORD:KEY/KEY` has
            the file's name and the part's keys. `*` makes a row of every key, for `{}` in labels.
        columns: the format of a column's figures, by its heading. `x` is the part of the record.
        machine: where the figures were measured.
    """

    rows: Mapping[str, str]
    columns: Mapping[str, str]
    machine: str = "Two cores of a rented machine"


ANALYSED = "Compiled for this kind of chip and analysed, without one"
PAIR = "{{x[{0}][p50]:.0f}}, {{x[{0}][p99]:.0f}} ms"
V5E, MEASURED = "2026-11-28-tpu-v5e-2x2", "2026-11-29-measure-cpu"
TABLES = {
    "cpu": Table(
        rows={
            "miniature, EPYC": "2026-11-29-cpu:miniature",
            "mid-size, EPYC": "2026-11-29-cpu:mid-size",
            "SDXL, 256x256, EPYC": "2026-11-29-cpu-sdxl:sdxl 256x256",
        },
        columns={
            "here, float32": "{x[ours float32][request_seconds]:.3g} s",
            "diffusers 0.39 with Flax": "{x[flax float32][request_seconds]:.3g} s",
            "torch's diffusers": "{x[torch float32][request_seconds]:.3g} s",
            "torch.compile": "{x[torch.compile float32][request_seconds]:.3g} s",
            "OpenVINO": "{x[torch.openvino float32][request_seconds]:.3g} s",
            "here, bfloat16": "{x[ours bfloat16][request_seconds]:.3g} s",
            "torch's diffusers, bfloat16": "{x[torch bfloat16][request_seconds]:.3g} s",
            "torch.compile, bfloat16": "{x[torch.compile bfloat16][request_seconds]:.3g} s",
        },
    ),
    "tpu": Table(
        rows={"v5e-4": f"{V5E}:"},
        columns={
            "lower bound of a request": "{x[request][bound]:.1f} s",
            "expected": "{x[request][estimate]:.1f} s",
            "memory of a chip": "{x[chip_gb]:.1f} GB",
        },
        machine=ANALYSED,
    ),
    "tpu-parts": Table(
        rows={
            "encode the prompt": f"{V5E}:programs/encode",
            "keys and values of the prompt": f"{V5E}:programs/condition",
            "a step with guidance": f"{V5E}:programs/step",
            "decode the picture": f"{V5E}:programs/decode",
            "decode it by the tiny VAE": f"{V5E}:programs/tiny_decode",
        },
        columns={
            "lower bound": "{x[bound_ms]:.1f} ms",
            "TFLOP of a run": "{x[tflop]:.2f}",
            "read and written by its operations": "{x[accessed_gb]:.1f} GB",
            "temporaries": "{x[temporaries_mb]:.0f} MB",
        },
        machine=ANALYSED,
    ),
    "start": Table(
        rows={"miniature": f"{MEASURED}:the bundled miniature"},
        columns={
            "first start": "{x[first start][start_seconds]:.1f} s",
            "programs kept": "{x[warm start][start_seconds]:.1f} s",
            "most memory": "{x[first start][peak_memory_mb]:.0f} MB",
        },
    ),
    "requests": Table(
        rows={"{}": f"{MEASURED}:the bundled miniature/first start/requests/*"},
        columns={
            "median": "{x[median]:.2f} s",
            "least": "{x[minimum]:.2f} s",
            "most": "{x[maximum]:.2f} s",
        },
    ),
    "swaps": Table(
        rows={
            "another model, {}": "2026-11-28-swaps:models/*",
            "a LoRA's attention layers, {}": "2026-11-28-swaps:loras/attention/*",
            "its transformers' layers, {}": "2026-11-28-swaps:loras/all layers of transformers/*",
        },
        columns={
            "time": "{x[seconds]:.2f} s",
            "of all cores together": "{x[processor_seconds]:.2f} s",
            "most memory": "{x[peak_gb]:.1f} GB",
        },
    ),
    "clients": Table(
        rows={
            "miniature": "2026-11-25-clients:miniature/*",
            "stand-in for SDXL on a v5e-4": "2026-11-25-clients:stand_in/*",
        },
        columns={
            "clients": "{x[clients]}",
            "pictures per second": "{x[pictures_per_second]:.2f}",
            "wait for a picture, median": "{x[median_seconds]:.1f} s",
        },
    ),
    "short": Table(
        rows={"stand-in for SDXL on a v5e-4": "2026-11-27-clients:stand_in"},
        columns={
            "4 steps, alone": "{x[short_alone_seconds]:.2f} s",
            "beside four clients of 50 steps": "{x[short_beside_long_seconds]:.2f} s",
        },
    ),
    "load": Table(
        rows={
            "{} the capacity": "2026-11-25-load:loads/*",
            "3.0x, requests of different sizes": "2026-11-25-load:mixed",
        },
        columns={
            "requests": "{x[arrivals]}",
            "done": "{x[outcomes][done]}",
            "refused": "{x[outcomes][refused: full]}",
            "first event: p50, p99": PAIR.format("first_event_ms"),
            "overhead: p50, p99": PAIR.format("overhead_ms"),
            "of the possible work": "{x[useful_work]:.0%}",
        },
    ),
    "failures": Table(
        rows={"`make chaos`": "2026-11-28-chaos:", "`make soak`, an hour": "2026-11-25-soak:"},
        columns={
            "requests": "{x[requests]}",
            "instances killed": "{x[mishaps][killed]}",
            "stopped for a time": "{x[mishaps][stopped]}",
            "requests begun again": "{x[begun_again]}",
            "requests lost": "{x[lost]}",
            "pictures sent twice": "{x[duplicated]}",
        },
    ),
    "attack": Table(
        rows={"{}": "2026-11-27-attack:*"},
        columns={
            "another visitor waits": "{x[visitor_waited_s]:.2f} s",
            "`/v1/model` takes": "{x[model_took_s]:.2f} s",
            "SIGTERM takes": "{x[stopped_s]:.2f} s",
            "memory afterwards": "{x[memory_mb]:.0f} MB",
        },
    ),
    "modes": Table(
        rows={"{}": "2026-11-26-modes:modes/*"},
        columns={
            "a request, median": "{x[request_seconds_median]:.2f} s",
            "PSNR: median, 10th percentile": "{x[psnr_db_median]:.0f}, {x[psnr_db_10th]:.0f} dB",
            "one thing: colour, shape": "{x[object_colour]:.0f} %, {x[object_shape]:.0f} %",
            "two things: colours, shapes": "{x[both_colours]:.0f} %, {x[both_shapes]:.0f} %",
        },
    ),
    "parity": Table(
        rows={
            "SDXL base": "../full_size_parity:components",
            "Stable Diffusion 1.5": "../full_size_parity_sd_1:components",
            "Stable Diffusion 2.1": "../full_size_parity_sd_2:components",
        },
        columns={
            "text encoder": "{x[text_encoder][relative_error][hidden]:.1e}",
            "UNet": "{x[unet][relative_error][prediction]:.1e}",
            "VAE": "{x[vae][relative_error][decoded]:.1e}",
        },
    ),
    "page": Table(
        rows={"a first visit": "2026-11-28-lighthouse:"},
        columns={
            "accessibility": "{x[scores][accessibility]}",
            "performance": "{x[scores][performance]}",
            "requests": "{x[requests]}",
            "bytes": "{x[bytes_sent]:,}",
            "interactive after": "{x[time_to_interactive_ms]} ms",
        },
    ),
}


@cache
def read(name: str) -> Any:
    """Read a record, by its path from the folder of records without the suffix."""
    return json.loads((RECORDS / f"{name}.json").read_text("utf-8"))


def parts(label: str, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the label of each row that a place stands for, and its part of the record."""
    name, _, path = place.partition(":")
    part = read(name)
    for key in filter(None, path.split("/")):
        if key == "*":
            items = part.items() if isinstance(part, dict) else enumerate(part)
            yield from ((label.format(str(name).replace("_", " ")), child) for name, child in items)
            return
        part = part[int(key) if isinstance(part, list) else key]
    yield label, part


def cell(form: str, part: Any) -> str:
    """Format a figure, or nothing if it was not measured."""
    try:
        return form.format(x=part)
    except (KeyError, TypeError):
        return ""


def write(name: str, page: Path) -> str:
    """Write a table in Markdown, with its mark; in docs, what its figures come from as well."""
    table, links, commands = TABLES[name], [], []
    lines = [["", *table.columns], ["---"] * (len(table.columns) + 1)]
    for label, part in (row for line in table.rows.items() for row in parts(*line)):
        cells = [cell(form, part) for form in table.columns.values()]
        if any(cells):
            lines.append([label, *cells])
    for record in dict.fromkeys(place.partition(":")[0] for place in table.rows.values()):
        date, command = read(record)["date"], read(record)["command"]
        title = f"{date} {Path(record).name.removeprefix(f'{date}-')}"
        links.append(f"[{title}](../benchmarks/results/{record}.json)")
        python = ".venv-tpu/bin/python" if ".tpu" in command else ".venv/bin/python"
        commands.append(re.sub("^python", python, command))
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    text = f"<!-- figures: {name} -->\n\n{text}\n\n"
    if page.parent != ROOT:
        text += f"{table.machine}: {', '.join(links)}.\n\n"
        text += "\n".join(["```sh", *dict.fromkeys(commands), "```\n\n"])
    return text


def fill(page: Path) -> str:
    """Return the text of a page with all of its tables written anew."""
    return BLOCK.sub(lambda match: write(match[1], page), page.read_text("utf-8"))


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill(page), "utf-8")
