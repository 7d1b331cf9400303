"""The tables of figures in the documents, each made from records in benchmarks/results."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "results"

# The newest record of each measurement.
MINIATURE = "2026-11-26-2-x-cpu-miniature"
CPU_MINIATURE = {
    "AMD EPYC, AVX512_BF16": "2026-11-23-cpu-miniature-avx512",
    "AMD EPYC, AVX2": "2026-11-23-cpu-miniature-avx2",
    "Intel Xeon, AMX": "2026-11-23-cpu-miniature",
}
CPU_MID_SIZE = "2026-11-26-cpu-mid-size"
CPU_256, CPU_512 = "2026-11-23-cpu-256-avx512", "2026-11-23-cpu-512-avx512"
AMX_256, AMX_256_FLOAT32 = "2026-11-22-cpu-256", "2026-11-23-cpu-256-float32"
AMX_512 = "2026-11-22-cpu-512"
START = "2026-11-26-start-1-x-cpu"
TPU = {
    "v5e-4": "2026-11-26-tpu-v5e-2x2",
    "v5e-8": "2026-11-26-tpu-v5e-2x4",
    "v6e-4": "2026-11-26-tpu-v6e-2x2",
}
TPU_PICTURE = "2026-11-26-tpu-v5e-2x2-one-picture"
# The records of the steps of modes: also those of `--only`.
TPU_STEPS = (TPU["v5e-4"], "2026-11-26-tpu-v5e-2x2-step_cached_int8")
# The lower count of this record leaves out the vector unit. Each picture is drawn by one chip.
TPU_INCUMBENT: dict[str, str] = dict.fromkeys(("v5e-4", "v5e-8"), "2026-11-23-tpu-v5e-2x2")
DELIVERY, LIGHTHOUSE, PREVIEWS = (
    "2026-11-26-delivery",
    "2026-11-25-lighthouse",
    "2026-11-22-previews",
)
SLOTS, CLIENTS = "2026-11-25-slots", "2026-11-25-clients"
PICTURES = "2026-11-25-pictures"
LIVE = {images: f"2026-11-25-live-{images}" for images in (1, 2, 4)}
LOAD, CHAOS, SOAK, ATTACK = (
    "2026-11-25-load",
    "2026-11-25-chaos",
    "2026-11-25-soak",
    "2026-11-27-attack",
)
MODES, CLUSTER = "2026-11-26-modes", "2026-11-22-cluster"
DROPIN = "2026-11-21-1-x-cpu-dropin-{}"
DECODERS, TPU_DECODERS = "2026-11-24-decoders", "2026-11-26-tpu-v5e-2x2-decoders"
ADAPTERS, STEPS = "2026-11-25-adapters", "2026-11-25-steps"
ADAPTERS_SDXL = "2026-11-25-adapters-sdxl"
PROMPTS = "2026-11-25-prompts"
LAYERS, OPTIONS = "2026-11-23-cpu-layers", "2026-11-23-tpu-v5e-2x2-options"
TPU_LAYERS = "2026-11-26-tpu-v5e-2x2-layers"
# XLA's own convolutions, and with the options by which it does not cut pictures into strips.
TPU_LAYERS_IN_STRIPS, TPU_LAYERS_WHOLE = f"{TPU_LAYERS}-in-strips", f"{TPU_LAYERS}-with-options"
TPU_INT8_LAYERS = f"{TPU_LAYERS}-int8"
JUDGED = "../../pipeline/miniature/report"
PARITY = ("full_size_parity", "full_size_parity_sd_1", "full_size_parity_sd_2")

LIBRARIES = {
    "ours float32": "here, float32",
    "ours bfloat16": "here, bfloat16",
    "flax float32": "diffusers 0.39, Flax, float32",
    "torch float32": "torch's diffusers, float32",
    "torch bfloat16": "torch's diffusers, bfloat16",
}
CHECKOUTS = ("here", "beside")
BEFORE_STEPS = ("encode", "condition", "noise", "enter")  # programs that a request runs once
BOUNDS = ("least", "compiler")  # the two counts of the time of a compiled program


@cache
def record(name: str) -> dict[str, Any]:
    """Return a record by its path from the folder of records, without the suffix."""
    return json.loads((RECORDS / f"{name}.json").read_text("utf-8"))


def value(name: str, path: str) -> Any:
    """Return the figure of a record at a path such as "miniature/ours float32/request_seconds".

    Raises:
        KeyError: the record has no such figure.
    """
    found: Any = record(name)
    for key in path.split("/"):
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


def figure(name: str, path: str, form: str = ".2f", divisor: float = 1) -> str:
    """Return a figure of a record as text, or nothing if it was not measured."""
    try:
        return format(value(name, path) / divisor, form)
    except KeyError:
        return ""


def span(name: str, path: str, unit: str, divisor: float, digits: int) -> str:
    """Return the range of a TPU's time, from the lower to the higher count, or nothing."""
    ends = [figure(name, f"{path}/{bound}", f".{digits}f", divisor) for bound in BOUNDS]
    return f"{' to '.join(ends)} {unit}" if all(ends) else ""


def estimate(
    steps: int = 25, program: str = "step", decoder: str = "decode"
) -> tuple[float, float]:
    """Return the lower and the higher count of the seconds of a request on a v5e-4.

    Args:
        steps: the number of steps.
        program: `step` for steps with guidance, `step, unguided` for steps without.
        decoder: `decode` for SDXL's VAE, `tiny_decode` for the tiny VAE.
    """
    name = TPU["v5e-4"]
    of_decoder = value(TPU_DECODERS if decoder.startswith("tiny") else name, "microseconds")
    parts = value(name, "microseconds") | of_decoder
    return seconds(parts, dict.fromkeys((*BEFORE_STEPS, decoder), 1) | {program: steps})


def seconds(
    parts: Mapping[str, Mapping[str, float]], times: Mapping[str, float]
) -> tuple[float, float]:
    """Return the lower and the higher count of the seconds of parts that run so many times.

    Args:
        parts: the counts of each part, in microseconds.
        times: how often each runs, by its name.
    """
    low, high = (
        sum(count * parts[part][bound] for part, count in times.items()) / 1e6 for bound in BOUNDS
    )
    return low, high


def memory_gb(name: str) -> float:
    """Return what a chip holds: all weights, all code and the largest temporaries."""
    every = value(name, "programs")
    programs = {each: every[each] for each in every if not each.startswith("step_")}  # of modes
    with_weights = programs.keys() & {"encode", "condition", "encode_image", "step", "decode"}
    weights = sum(programs[each]["arguments_mb"] for each in with_weights)
    code = sum(each["code_mb"] for each in programs.values())
    return (weights + code + max(each["temporaries_mb"] for each in programs.values())) / 1000


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join("|" + "|".join(f" {cell} " for cell in line) + "|\n" for line in lines)


def source(name: str) -> str:
    """Return the date of a record as a link, which begins with RECORDS."""
    return f"[{value(name, 'date')}](RECORDS/{name}.json)"


def _cpu_miniature() -> str:
    libraries = [each for each in LIBRARIES if not each.startswith("flax")]
    return table(
        ["two cores of", *(LIBRARIES[each] for each in libraries), "record"],
        [
            [
                processor,
                *(figure(name, f"miniature/{each}/request_seconds") for each in libraries),
                source(name),
            ]
            for processor, name in CPU_MINIATURE.items()
        ],
    )


def _cpu_mid_size() -> str:
    def row(library: str) -> list[str]:
        found = f"mid-size/{library}"
        product = f"{found}/matmul_tflops"
        return [
            LIBRARIES[library],
            figure(CPU_MID_SIZE, f"{found}/request_seconds"),
            figure(CPU_MID_SIZE, f"{found}/times_ours"),
            "" if library.startswith("flax") else figure(CPU_MID_SIZE, product),
        ]

    libraries = [each for each in LIBRARIES if each.endswith("float32")]
    head = ["", "a request, s", "times this project's", "a product alone, TFLOP/s"]
    return table(head, [*map(row, libraries), ["record", source(CPU_MID_SIZE), "", ""]])


def _full_size(small: dict[str, str], large: dict[str, str]) -> str:
    """Return a table of SDXL base on a CPU; each size has a record for each library."""

    def row(library: str) -> Iterable[str]:
        yield LIBRARIES[library]
        for size, records in (("256x256", small), ("512x512", large)):
            for what in ("request", "step"):
                name = records.get(library)
                yield figure(name, f"sdxl {size}/{library}/{what}_seconds", ".1f") if name else ""

    def sources(records: dict[str, str]) -> list[str]:
        return [", ".join(map(source, sorted(set(records.values())))), ""]

    head = ["", "256x256: request", "step", "512x512: request", "step"]
    return table(head, [*map(row, LIBRARIES), ["record", *sources(small), *sources(large)]])


def _full_size_epyc() -> str:
    return _full_size(dict.fromkeys(LIBRARIES, CPU_256), dict.fromkeys(LIBRARIES, CPU_512))


def _full_size_xeon() -> str:
    halves = dict.fromkeys(LIBRARIES, AMX_256)
    wholes = {each: AMX_256_FLOAT32 for each in LIBRARIES if each.endswith("float32")}
    return _full_size(halves | wholes, dict.fromkeys(LIBRARIES, AMX_512))


def _start() -> str:
    one = "start_seconds", "start_seconds_cached"
    page = "page_ready_seconds", "page_ready_seconds_cached"
    return table(
        ["", "first start", "compiled programs kept", "record"],
        [
            [
                "miniature: the pipeline is ready",
                *(figure(MINIATURE, each, ".1f") + " s" for each in one),
                source(MINIATURE),
            ],
            [
                "miniature: the page answers",
                *(figure(MINIATURE, each, ".1f") + " s" for each in page),
                source(MINIATURE),
            ],
            [
                "miniature: most memory of the pipeline",
                figure(MINIATURE, "peak_memory_mb", ".0f") + " MB",
                "",
                source(MINIATURE),
            ],
            [
                "SDXL base, four 1024x1024, float32, without reading its weights",
                *(figure(START, f"{each}/seconds", ".1f") + " s" for each in ("cold", "warm")),
                source(START),
            ],
        ],
    )


def _tpu() -> str:
    def row(chips: str, name: str) -> Iterable[str]:
        incumbent = TPU_INCUMBENT.get(chips)
        yield chips
        yield span(name, "request_seconds", "s", 1, 1)
        yield span(incumbent, "incumbent/request_seconds", "s", 1, 1) if incumbent else ""
        yield f"{memory_gb(name):.1f} GB"
        yield ", ".join(map(source, filter(None, (name, incumbent))))

    head = ["", "here", "diffusers 0.39, Flax", "memory of a chip", "records"]
    return table(head, (row(*each) for each in TPU.items()))


def _tpu_programs() -> str:
    name = TPU["v5e-4"]
    rows = {
        "encode the prompt": ("encode", "encode"),
        "make the UNet's context": ("condition", "condition"),
        "a step with guidance": ("step", "step"),
        "a step without guidance": ("step", "step, unguided"),
        "a step with guidance and cached features": ("step_cached", "step, shallow"),
        "decode the picture": ("decode", "decode"),
    }
    sizes = "arguments_mb", "temporaries_mb", "code_mb"

    def row(label: str, program: str, part: str) -> Iterable[str]:
        yield label
        for size in sizes:
            yield figure(name, f"programs/{program}/{size}", ".2f", 1000) + " GB"
        yield span(name, f"microseconds/{part}", "ms", 1000, 0)

    head = ["program", "weights and inputs", "temporaries", "code", "time"]
    return table(head, (row(label, *each) for label, each in rows.items()))


def _decoders() -> str:
    on_cpu = "512x512, float32"

    def row(label: str, program: str, of_tpu: str) -> Iterable[str]:
        yield label
        yield figure(DECODERS, f"sizes/{on_cpu}/{program}/seconds", ".1f") + " s"
        yield figure(DECODERS, f"sizes/{on_cpu}/{program}/temporaries_mb", ".0f") + " MB"
        yield span(of_tpu, f"microseconds/{program}", "ms", 1000, 0)
        yield figure(of_tpu, f"programs/{program}/temporaries_mb", ".2f", 1000) + " GB"
        yield ", ".join(map(source, (DECODERS, of_tpu)))

    return table(
        [
            "",
            f"CPU, {on_cpu}",
            "temporaries",
            "v5e-4",
            "temporaries",
            "records",
        ],
        [
            row("SDXL's VAE", "decode", TPU["v5e-4"]),
            row("tiny VAE", "tiny_decode", TPU_DECODERS),
        ],
    )


def _tpu_few_steps() -> str:
    decoders = {"decode": "SDXL's VAE", "tiny_decode": "tiny VAE"}

    def row(steps: int, program: str) -> Iterable[str]:
        yield f"{steps}, {'with' if program == 'step' else 'without'} guidance"
        for decoder in decoders:
            low, high = estimate(steps, program, decoder)
            digits = 1 if low >= 1 else 2
            yield f"{low:.{digits}f} to {high:.{digits}f} s"

    rows = [*((steps, "step, unguided") for steps in (1, 2, 4, 8)), (25, "step")]
    return table(["steps", *decoders.values()], (row(*each) for each in rows))


def picture_seconds(chips: int) -> tuple[float, float]:
    """Return the lower and the higher count of the seconds of one picture that chips share.

    Two chips have half of guidance each, and one of them decodes.
    """
    parts = dict(value(TPU["v5e-4"], "microseconds"))
    if chips == 2:
        parts["step"] = parts["step, unguided"]
    if chips == 4:
        parts |= value(TPU_PICTURE, "microseconds")
    return seconds(parts, dict.fromkeys((*BEFORE_STEPS, "decode"), 1) | {"step": 25})


def _tpu_picture() -> str:
    def row(chips: int) -> Iterable[str]:
        low, high = picture_seconds(chips)
        digits = 1 if low >= 1 else 2
        yield str(chips)
        yield f"{low:.{digits}f} to {high:.{digits}f} s"
        yield ", ".join(map(source, (TPU["v5e-4"], *[TPU_PICTURE] * (chips > 2))))

    return table(["chips for the picture", "a picture", "records"], map(row, (1, 2, 4)))


def _steps() -> str:
    runs = value(STEPS, "requests")

    def row(full: dict[str, Any], tiny: dict[str, Any]) -> Iterable[str]:
        guided = "recipe" not in full and full.get("guidance_scale") != 1
        yield f"{full['num_inference_steps']}, {'with' if guided else 'without'} guidance"
        for run in (full, tiny):
            yield f"{run['request_seconds']:.2f} s"
            yield f"{run['first_picture_seconds'] - run['first_event_seconds']:.2f} s"
            yield f"{run['decode_share']:.0%}".replace("%", " %")

    counts = "a request", "first event to first picture", "after the last step"
    head = ["steps", *(f"{which}: {each}" for which in ("full", "tiny") for each in counts)]
    return table(head, map(row, runs[::2], runs[1::2]))


def _prompts() -> str:
    cases = value(PROMPTS, "cases")
    plain = cases["plain"]["request_seconds"]

    def row(name: str, case: dict[str, float]) -> Iterable[str]:
        yield name
        yield f"{1000 * case['step_seconds']:.1f} ms"
        yield f"{case['request_seconds']:.3f} s"
        yield f"{case['request_seconds'] / plain:.2f}"

    return table(["prompt", "a step", "a request", "to plain"], map(row, cases, cases.values()))


def _prompts_memory() -> str:
    plans = value(PROMPTS, "planned_v5e_4_mb")

    def row(chunks: str, plan: dict[str, int]) -> Iterable[str]:
        yield chunks
        yield f"{plan['arrays']} MB"
        yield f"{plan['sum'] / 1000:.2f} GB"

    head = ["chunks", "prompts, latents and pictures", "everything"]
    return table(head, map(row, plans, plans.values()))


def _adapters() -> str:
    changes = {
        "none": "to none",
        "another": "to another LoRA that was in use before",
        "two_at_once": "to two that were in use before",
        "new_weight": "to a weight that was not in use before",
        "two_at_new_weights": "from none to two at such weights",
    }
    head = "milliseconds for a change", "shortest of nine", "median"
    return _changes_of_loras(ADAPTERS, head, changes, ".0f", 1e-3)


def _adapters_sdxl() -> str:
    changes = {
        "none": "to none",
        "another": "to another LoRA",
        "two_at_once": "from one to two",
        "new_weight": "to another weight",
        "one_after_none": "from none to one",
        "two_at_new_weights": "from none to two",
    }
    head = "seconds for a change", "shortest of three", "median"
    return _changes_of_loras(ADAPTERS_SDXL, head, changes, ".2f", 1)


def _changes_of_loras(
    name: str, head: Iterable[str], changes: Mapping[str, str], form: str, divisor: float
) -> str:
    """Return the table of the times of changes; `changes` has their labels."""
    times = "seconds", "seconds_median"
    return table(
        head,
        [
            [label, *(figure(name, f"change_to/{key}/{each}", form, divisor) for each in times)]
            for key, label in changes.items()
        ],
    )


def _tpu_step() -> str:
    path = "microseconds/step/classes"
    classes = value(TPU["v5e-4"], path)
    units = {"matrix": "matrix", "vector": "vector", "memory": "HBM"}

    def row(name: str) -> Iterable[str]:
        yield name
        yield span(TPU["v5e-4"], f"{path}/{name}", "ms", 1000, 1)
        longest = max(units, key=lambda unit: classes[name][unit])
        yield units[longest] if classes[name]["least"] else ""
        yield figure(TPU["v5e-4"], f"{path}/{name}/unsure", ".1f", 1000) + " ms"

    names = sorted(classes, key=lambda each: -classes[each]["compiler"])
    shown = [name for name in names if classes[name]["compiler"] >= 100]
    head = ["part of a step", "time", "bounded mostly by", "of the higher count, without a model"]
    return table(head, map(row, shown))


def _modes() -> str:
    modes = value(MODES, "modes")

    def row(name: str) -> Iterable[str]:
        at = f"modes/{name}"
        own = modes[name]
        until, interval = own["guidance_until"], own["cache_interval"]
        numbers = own.get("quantization") or ""  # older records have no other mode
        yield format(until, "g")
        yield str(interval)
        yield numbers
        yield _mode_seconds(until, interval, numbers)
        yield figure(MODES, f"{at}/request_seconds_median") + " s"
        psnr = [figure(MODES, f"{at}/psnr_db_{each}", ".1f") for each in ("median", "10th")]
        yield ", ".join(filter(None, psnr)) or "exact"
        for pair in (("object_colour", "object_shape"), ("both_colours", "both_shapes")):
            yield ", ".join(figure(MODES, f"{at}/{each}", ".0f") + " %" for each in pair)

    return table(
        [
            "`guidance_until`",
            "`cache_interval`",
            "`quantization`",
            "four pictures on a v5e-4, estimated",
            "a request on a CPU, median",
            "PSNR in dB: median, 10th percentile",
            "one thing: colour, shape",
            "two things: both colours, both shapes",
        ],
        map(row, modes),
    )


def _mode_seconds(guidance_until: float, interval: int, quantization: str, steps: int = 25) -> str:
    """Return the range of the seconds of four pictures in a mode on a v5e-4.

    An evaluation without guidance takes half the time of one with it.
    """
    parts: dict[str, Any] = {}
    for name in TPU_STEPS:
        parts |= value(name, "microseconds")
    times: dict[str, float] = dict.fromkeys((*BEFORE_STEPS, "decode"), 1)
    for step in range(steps):
        shallow = ", shallow" if step % interval else ""
        part = ", ".join(filter(None, [f"step{shallow}", quantization]))
        share = 1 if step < round(guidance_until * steps) else 1 / 2
        times[part] = times.get(part, 0) + share
    return f"{' to '.join(f'{count:.1f}' for count in seconds(parts, times))} s"


def _int8_layers() -> str:
    exact, ours = (value(name, "microseconds") for name in (TPU_LAYERS, TPU_INT8_LAYERS))

    def row(name: str) -> Iterable[str]:
        yield name
        for record_name in (TPU_LAYERS, TPU_INT8_LAYERS):
            yield span(record_name, f"microseconds/{name}", "µs", 1, 0)

    return table(["layer", "bfloat16", "int8"], [row(name) for name in exact if name in ours])


def _delivery() -> str:
    steps = {
        "all four are PNG files": "encoded",
        "the browser asks for the first": "asked_for",
        "the browser has the last byte of the last": "last_byte",
    }
    return table(
        ["milliseconds after the last step", "median of 15 requests"],
        [[label, figure(DELIVERY, f"median_ms/{key}", ".0f")] for label, key in steps.items()],
    )


def _live() -> str:
    header = ["drawn at once", "asked for", "answered", "in view", ""]
    keys = "asked_for", "answered", "shown"
    return table(
        header,
        [
            [
                f"{images} picture{'s' * (images > 1)}",
                *(figure(name, f"median_ms/{key}", ".0f") for key in keys),
                source(name),
            ]
            for images, name in LIVE.items()
        ],
    )


def _pictures() -> str:
    labels = {
        "encode": "encode a picture",
        "decode": "decode a picture",
        "from noise": "a request from noise",
        "strength 0.25": "a request from a picture, strength 0.25",
        "strength 0.5": "a request from a picture, strength 0.5",
        "strength 0.8": "a request from a picture, strength 0.8",
        "with a mask, strength 1": "a request with a mask, strength 1",
    }
    return table(
        ["one picture in 25 steps", "shortest of five"],
        [[label, figure(PICTURES, f"seconds/{key}") + " s"] for key, label in labels.items()],
    )


def _page() -> str:
    scores = "accessibility", "best-practices", "performance"
    return table(
        ["", ""],
        [
            *([each, figure(LIGHTHOUSE, f"scores/{each}", ".0f")] for each in scores),
            ["requests", figure(LIGHTHOUSE, "requests", ".0f")],
            ["bytes sent", figure(LIGHTHOUSE, "bytes_sent", ".0f", 1000) + " kB"],
            [
                "time to interactive",
                figure(LIGHTHOUSE, "time_to_interactive_ms", ".2f", 1000) + " s",
            ],
        ],
    )


def _load() -> str:
    def row(each: str) -> Iterable[str]:
        at = f"loads/{each}"
        yield each.replace(".0x", "x")
        yield figure(LOAD, f"{at}/arrivals", ".0f")
        outcomes = value(LOAD, f"{at}/outcomes")
        yield str(outcomes["done"])
        yield str(outcomes.get("refused: full", 0))
        yield ", ".join(figure(LOAD, f"{at}/first_event_ms/{p}", ".0f") for p in ("p50", "p99"))
        yield ", ".join(
            figure(LOAD, f"{at}/overhead_ms/{p}", ".2f", 1000) for p in ("p50", "p95", "p99")
        )
        yield figure(LOAD, f"{at}/useful_work", ".0%").replace("%", " %")

    return table(
        [
            "arrivals",
            "requests",
            "done",
            "refused",
            "first event, ms: p50, p99",
            "overhead, s: p50, p95, p99",
            "of the possible work",
        ],
        map(row, value(LOAD, "loads")),
    )


def _mixed() -> str:
    def row(name: str, path: str, form: str = ".0f", divisor: float = 1) -> list[str]:
        return [name, figure(LOAD, f"mixed/{path}", form, divisor).replace("%", " %")]

    return table(
        ["requests of different work", "three times the capacity"],
        [
            row("requests", "arrivals"),
            row("done", "outcomes/done"),
            row("refused", "outcomes/refused: full"),
            row("slots in use, of the time", "slots_in_use", ".1%"),
            row("finished pictures, of the possible work", "useful_work", ".1%"),
        ],
    )


def _slots() -> str:
    names = {"miniature": "miniature, this CPU", "stand_in": "stand-in, a TPU's times"}

    def row(name: str) -> Iterable[str]:
        yield names[name]
        for path, unit in (
            ("pictures_per_second", ""),
            ("short_wait_seconds", " s"),
            ("four_pictures_seconds", " s"),
        ):
            here, before = (float(value(SLOTS, f"{name}/{each}/{path}")) for each in CHECKOUTS)
            yield f"{before:.2f}{unit} to {here:.2f}{unit}"

    return table(
        ["", "pictures per second", "wait of a short request", "request for four, alone"],
        map(row, names),
    )


def _failures() -> str:
    mishaps = {each: value(each, "mishaps") for each in (CHAOS, SOAK)}
    faults = ("delayed", "reset", "truncated")

    def row(label: str, get: Callable[[str], Any]) -> list[str]:
        return [label, *(str(get(each)) for each in (CHAOS, SOAK))]

    return table(
        ["", f"`make chaos`, {source(CHAOS)}", f"`make soak`, an hour, {source(SOAK)}"],
        [
            row("requests", lambda each: value(each, "requests")),
            row("instances killed", lambda each: mishaps[each]["killed"]),
            row(
                "instances stopped for up to a minute", lambda each: mishaps[each].get("stopped", 0)
            ),
            row(
                "connections held back, reset or cut short",
                lambda each: sum(mishaps[each].get(fault, 0) for fault in faults),
            ),
            row("requests that began again", lambda each: value(each, "begun_again")),
            row("requests lost", lambda each: value(each, "lost")),
            row("pictures sent twice", lambda each: value(each, "duplicated")),
        ],
    )


def _growth() -> str:
    quarters = value(SOAK, "from_second_to_last_quarter")
    return table(
        ["process", "memory", "threads", "open files"],
        [
            [
                process,
                " to ".join(format(each, ".0f") for each in quarters[process]["memory_mb"]) + " MB",
                *(
                    " to ".join(map(str, quarters[process][what]))
                    for what in ("threads", "open_files")
                ),
            ]
            for process in ("front-end", "instance-0")
        ],
    )


def _attack() -> str:
    labels = {
        "large_bodies": "bodies of 15 MB",
        "small_chunks": "bodies in chunks of one byte",
        "many_headers": "15,000 headers",
        "bracketed_texts": "settings with 240 kB of brackets",
        "bracketed_files": "pictures whose settings have 1 MB of brackets",
        "bracketed_pictures": "the same to AUTOMATIC1111's API",
        "bracketed_lengths": "prompts of brackets to be measured",
        "bracketed_prompts": "prompts of brackets to be drawn",
        "lists": "prompts that name a list of 1 MB 199 times",
        "repeated_names": "a LoRA with 200,001 names, one of them twice",
        "large_pictures": "pictures of 31 megapixels to start from",
        "made_up_ports": "forwarded addresses with a new port each",
        "large_sessions": "session names of 900 kB",
        "made_up_sessions": "calls, each in a new session",
        "unread_answers": "generations whose answers it never fetches",
        "followers": "followers of one request, which fetch nothing",
        "uploads": "uploads of 1 MB",
        "held_heartbeats": "open pages of made-up sessions",
        "idle_connections": "connections without a request",
    }
    return table(
        [
            *("one address sends", "another visitor waits", "`/v1/model` takes", "SIGTERM takes"),
            "memory afterwards",
        ],
        [
            ["nothing", "", "", "", figure(ATTACK, "memory_before_mb", ".0f") + " MB"],
            *(
                [
                    label,
                    figure(ATTACK, f"{key}/visitor_waited_s") + " s",
                    figure(ATTACK, f"{key}/model_took_s") + " s",
                    figure(ATTACK, f"{key}/stopped_s") + " s",
                    figure(ATTACK, f"{key}/memory_mb", ".0f") + " MB",
                ]
                for key, label in labels.items()
            ),
        ],
    )


def _dropin() -> str:
    def row(dtype: str) -> Iterable[str]:
        name = DROPIN.format(dtype)
        yield dtype
        for when in ("before", "after"):
            runs = (figure(name, f"{when}/{i}/call_seconds_median") for i in range(2))
            yield ", ".join(runs) + " s"
        yield figure(name, "speed_up/call_seconds_median")
        yield source(name)

    head = ["parameters", "diffusers 0.39", "here", "times as fast", "record"]
    return table(head, map(row, ("bfloat16", "float32")))


def _waits() -> str:
    def row(load: str) -> Iterable[str]:
        at = f"waits_at_{load}x"
        yield load
        yield figure(CLUSTER, f"{at}/requests", ".0f")
        for kind in ("wait_ms", "wait_ms_simulated", "wait_ms_model"):
            percentiles = ("p50", "p95", "p99")
            yield ", ".join(figure(CLUSTER, f"{at}/{kind}/{p}", ".2f", 1000) for p in percentiles)

    return table(["load", "requests", "measured", "simulated", "model"], map(row, ("0.5", "0.8")))


def _killed() -> str:
    lost, twice = (value(CLUSTER, f"killed/{each}") for each in ("lost", "duplicated"))
    requests, kills = (value(CLUSTER, f"killed/{each}") for each in ("requests", "mishaps/killed"))
    again = figure(CLUSTER, "killed/recovery_ms/p50", ".1f", 1000)
    back = figure(CLUSTER, "killed/restart_ms/p50", ".1f", 1000)
    done = figure(CLUSTER, "stopped/requests_done_after_s", ".0f")
    replaced = figure(CLUSTER, "stopped/replaced_after_s", ".0f")
    another = figure(CLUSTER, "second_painter_after_s", ".0f")
    return table(
        ["", ""],
        [
            [
                f"{requests} requests while a replica is killed {kills} times",
                f"{lost} lost, {twice} twice",
            ],
            ["a request whose replica was killed begins again", f"after {again} s"],
            ["Ray has another replica, warm", f"{back} s after a kill"],
            [
                "a replica that is stopped in mid-request",
                f"its request is done after {done} s, the replica replaced after {replaced} s",
            ],
            ["one replica with too much to do", f"Ray starts another after {another} s"],
        ],
    )


def _layers() -> str:
    times = value(LAYERS, "milliseconds")
    names = [each.removesuffix(", float32") for each in times if each.endswith(", float32")]
    forms = [(dtype, form) for dtype in ("float32", "bfloat16") for form in ("xla", "here")]
    return table(
        ["layer", "float32: XLA's", "here", "bfloat16: XLA's", "here"],
        [
            [name, *(f"{times[f'{name}, {dtype}'][form]:.0f}" for dtype, form in forms)]
            for name in names
        ],
    )


def _options() -> str:
    times = value(OPTIONS, "microseconds")
    defaults = times["defaults"]
    layers = [each for each in defaults if each != "compile_seconds"]

    def cell(option: str, layer: str) -> str:
        least, compiler = times[option][layer]["least"], times[option][layer]["compiler"]
        absurd = compiler > 100 * defaults[layer]["compiler"]
        return f"{least} / {'no estimate' if absurd else compiler}"

    def row(option: str) -> list[str]:
        label = option if option == "defaults" else f"`{option}`"
        return [label, *(cell(option, layer) for layer in layers)]

    changed = [each for each in times if any(times[each][at] != defaults[at] for at in layers)]
    return table(["option", *layers], map(row, ["defaults", *changed]))


def _convolutions() -> str:
    forms = {
        "in strips": TPU_LAYERS_IN_STRIPS,
        "whole": TPU_LAYERS_WHOLE,
        "down columns": TPU_LAYERS,
    }

    def cells(layer: str) -> Iterable[str]:
        at = f"microseconds/{layer}"
        yield layer
        for name in forms.values():
            yield span(name, at, "µs", 1, 0)
        for name in forms.values():
            yield figure(name, f"{at}/compile_cpu_seconds", ".0f")

    layers = [layer for layer in value(TPU_LAYERS, "microseconds") if "transformer" not in layer]
    return table(["layer", *forms, *(f"to compile: {form}" for form in forms)], map(cells, layers))


def _summary() -> str:
    """Return the table of the README."""
    epyc, tpu = CPU_MINIATURE["AMD EPYC, AVX512_BF16"], TPU["v5e-4"]

    def of(name: str, path: str, keys: Iterable[str], form: str) -> str:
        return " / ".join(figure(name, path.format(key), form) for key in keys) + " s"

    libraries = "ours float32", "torch float32", "torch bfloat16"
    halves = "ours bfloat16", "torch bfloat16", "flax float32"
    cached = "", "_cached"
    judged = "background", "object_colour", "object_shape"
    return table(
        ["", "", "record"],
        [
            [
                "miniature: four pictures, each core draws two",
                figure(MINIATURE, "request_seconds_median") + " s",
                source(MINIATURE),
            ],
            [
                "first start / compiled programs kept, until the page answers",
                of(MINIATURE, "page_ready_seconds{}", cached, ".1f"),
                source(MINIATURE),
            ],
            [
                "the miniature's shapes: here / torch's diffusers in float32 / in bfloat16",
                of(epyc, "miniature/{}/request_seconds", libraries, ".2f"),
                source(epyc),
            ],
            [
                "SDXL base, one 512x512, 3 steps: here / torch's diffusers, both bfloat16 / "
                "diffusers 0.39 with Flax",
                of(CPU_512, "sdxl 512x512/{}/request_seconds", halves, ".0f"),
                source(CPU_512),
            ],
            [
                "SDXL base on a TPU v5e-4, four 1024x1024, 25 steps, **estimated**",
                "{:.1f} to {:.1f} s".format(*estimate()),
                source(tpu),
            ],
            [
                "the same: memory of a chip, which has 16 GB, **estimated**",
                f"{memory_gb(tpu):.1f} GB",
                source(tpu),
            ],
            [
                "largest difference from torch's diffusers of any network of SDXL base, 1.5 and "
                "2.1, random weights, float32",
                f"{max(map(_largest_error, PARITY))[0]:.1e}",
                "[three](docs/benchmarks.md#agreement-with-diffusers)",
            ],
            [
                "miniature, over 512 prompts: background / colour / shape right",
                " / ".join(figure(JUDGED, key, ".1f") + " %" for key in judged),
                "[its card](pipeline/miniature/README.md)",
            ],
        ],
    )


def _largest_error(name: str) -> tuple[float, str]:
    """Return the largest relative error of a comparison with torch, and the output that has it."""
    return max(
        (error, f"{network}, {output}")
        for network, each in value(f"../{name}", "components").items()
        for output, error in each["relative_error"].items()
    )


def _parity() -> str:
    models = "SDXL base", "Stable Diffusion 1.5", "Stable Diffusion 2.1"

    def row(model: str, name: str) -> list[str]:
        error, where = _largest_error(name)
        date = record(f"../{name}")["date"]
        return [model, f"{error:.1e}", where, f"[{date}](RECORDS/../{name}.md)"]

    head = ["", "largest relative error", "where", "record"]
    return table(head, map(row, models, PARITY))


TABLES: dict[str, Callable[[], str]] = {
    "adapters": _adapters,
    "adapters-sdxl": _adapters_sdxl,
    "attack": _attack,
    "cpu-full-size": _full_size_epyc,
    "cpu-full-size-xeon": _full_size_xeon,
    "cpu-layers": _layers,
    "cpu-mid-size": _cpu_mid_size,
    "cpu-miniature": _cpu_miniature,
    "decoders": _decoders,
    "delivery": _delivery,
    "live": _live,
    "dropin": _dropin,
    "failures": _failures,
    "growth": _growth,
    "killed": _killed,
    "load": _load,
    "mixed": _mixed,
    "modes": _modes,
    "int8-layers": _int8_layers,
    "page": _page,
    "parity": _parity,
    "pictures": _pictures,
    "prompts": _prompts,
    "prompts-memory": _prompts_memory,
    "slots": _slots,
    "start": _start,
    "steps": _steps,
    "summary": _summary,
    "tpu": _tpu,
    "tpu-few-steps": _tpu_few_steps,
    "tpu-options": _options,
    "tpu-picture": _tpu_picture,
    "tpu-programs": _tpu_programs,
    "tpu-convolutions": _convolutions,
    "tpu-step": _tpu_step,
    "waits": _waits,
}
