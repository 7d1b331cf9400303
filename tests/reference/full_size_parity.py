"""A full-size model against torch, and one end-to-end run, within 24 GiB of memory.

    .venv-reference/bin/python -m tests.reference.full_size_parity runs/full_size
    .venv-reference/bin/python -m tests.reference.full_size_parity runs/full_size_sd_1 --family sd_1
    .venv-reference/bin/python -m tests.reference.full_size_parity runs/full_size --single-file

Writes the checkpoint of `tests.reference.full_size_checkpoint` if it is missing. Compares every
network in float32 with torch's, each side in its own process, one network at a time. Runs `python
-m pipeline` on the checkpoint, and records everything as JSON in benchmarks/.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tests.original_layout import export

BOUND = 1e-4
COMPONENTS = ("text_encoder", "text_encoder_2", "unet", "vae", "safety_checker")
FAMILIES = ("sdxl", "ssd_1b", "vega", "koala_700m", "sd_1", "sd_2")
PYTHON = ".venv-reference/bin/python"
VARIANT = "fp16"  # the checkpoint's variant on disk; both sides compute in float32
END_TO_END = ("--height", "256", "--width", "256", "--steps", "3", "--images", "1")
VERSIONS = ("jax", "flax", "torch", "diffusers", "transformers")

Arrays = dict[str, np.ndarray]


def is_xl(folder: Path) -> bool:
    """Return whether a checkpoint is an SDXL."""
    return (folder / "text_encoder_2").is_dir()


def make_inputs(component: str, folder: Path) -> Arrays:
    """Make a component's inputs.

    The UNet gets latents of 32x32 with batch 2, the VAE latents of 32x32.
    """
    rng = np.random.default_rng(3)

    def noise(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    if component.startswith("text_encoder"):
        ids = rng.integers(0, 49406, (2, 77)).astype(np.int32)
        ids[:, 0], ids[0, 20:], ids[1, 76] = 49406, 49407, 49407
        return {"input_ids": ids}
    if component == "unet":
        width = json.loads((folder / "unet/config.json").read_text())["cross_attention_dim"]
        inputs = {
            "latents": noise(2, 32, 32, 4),
            "timesteps": np.array([961, 1], np.float32),
            "prompt_embeds": noise(2, 77, width),
        }
        if is_xl(folder):
            inputs["pooled"] = noise(2, 1280)
            inputs["add_time_ids"] = np.array([[256, 256, 0, 0, 256, 256]] * 2, np.float32)
        return inputs
    if component == "safety_checker":
        return {"images": rng.integers(0, 256, (2, 300, 280, 3), np.uint8)}
    return {"z": noise(1, 32, 32, 4), "images": rng.uniform(-1, 1, (1, 256, 256, 3))}


def theirs(component: str, folder: Path, file: Path | None) -> tuple[Arrays, float]:
    """Return torch's outputs for `make_inputs`, and the seconds that loading took.

    Args:
        component: the network's name.
        folder: the checkpoint, of which only the configuration is read if there is a file.
        file: the checkpoint as a single file, or None.
    """
    import torch
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
    from transformers import CLIPImageProcessorPil, CLIPTextModel, CLIPTextModelWithProjection

    from tests.reference import torch_reference

    kinds: dict[str, Any] = {
        "text_encoder": CLIPTextModel,
        "text_encoder_2": CLIPTextModelWithProjection,
        "unet": UNet2DConditionModel,
        "vae": AutoencoderKL,
        "safety_checker": StableDiffusionSafetyChecker,
    }
    torch_reference.quiet()
    start = time.perf_counter()
    if file is None:
        network = kinds[component].from_pretrained(
            folder / component, variant=VARIANT, dtype=torch.float32, local_files_only=True
        )
    else:
        network = _from_single_file(kinds[component], component, folder, file)
    seconds = time.perf_counter() - start
    inputs = make_inputs(component, folder)
    if component.startswith("text_encoder"):
        ids, xl = inputs["input_ids"], is_xl(folder)
        hidden, pooled = torch_reference.text_states(network, ids, penultimate=xl)
        outputs = {"hidden": hidden, "pooled": pooled}
    elif component == "safety_checker":
        processor = CLIPImageProcessorPil.from_pretrained(folder / "feature_extractor")
        embeds = torch_reference.safety_embeds(network, processor, inputs["images"])
        outputs = {"embeds": embeds}
    elif component == "unet":
        outputs = {"prediction": torch_reference.unet_forward(network, **inputs)}
    else:
        images = inputs["images"].astype(np.float32)
        mean, logvar = torch_reference.vae_encode(network, images)
        decoded = torch_reference.vae_decode(network, inputs["z"])
        outputs = {"mean": mean, "logvar": logvar, "decoded": decoded}
    if component == "text_encoder":
        del outputs["pooled"]  # not projected, and not used
    return outputs, seconds


def _from_single_file(kind: Any, component: str, folder: Path, file: Path) -> Any:
    """Load one network as `from_single_file` of diffusers' pipelines does."""
    import torch
    from diffusers.loaders import single_file_utils

    if not component.startswith("text_encoder"):
        return kind.from_single_file(
            str(file),
            config=str(folder),
            subfolder=component,
            dtype=torch.float32,
            local_files_only=True,
        )
    return single_file_utils.create_diffusers_clip_model_from_ldm(
        kind,
        single_file_utils.load_single_file_checkpoint(str(file)),
        subfolder=component,
        config=str(folder),
        torch_dtype=torch.float32,
        local_files_only=True,
    )


def ours(component: str, folder: Path, file: Path | None) -> tuple[Arrays, float]:
    """Return our networks' outputs for `make_inputs`, and the seconds that loading took.

    The arguments are those of `theirs`; a file is read without the folder.
    """
    from pipeline.checkpoints.source import fetch
    from pipeline.families.reader import FamilyReader
    from pipeline.images.moderation import prepare
    from pipeline.models.safety_checker import SafetyChecker
    from tools import agreement

    start = time.perf_counter()
    checkpoint = fetch(str(file or folder), None, FamilyReader(), prefer_fp16=True)
    kinds = {part.name: part.make for part in checkpoint.config.family.all_networks}
    part = checkpoint.config.networks[component]
    open_files = partial(checkpoint.tensors, component)
    network: Any = agreement.load_tensors(kinds[component], part, open_files)
    seconds = time.perf_counter() - start
    inputs: Any = make_inputs(component, folder)
    if component.startswith("text_encoder"):
        hidden, pooled = agreement.text_states(network, inputs["input_ids"])
        outputs = {"hidden": hidden} if pooled is None else {"hidden": hidden, "pooled": pooled}
    elif component == "safety_checker":
        embed = agreement.compiled(SafetyChecker.embed)
        outputs = {"embeds": embed(network, prepare(inputs["images"], network.config))}
    elif component == "unet":
        outputs = {"prediction": agreement.unet_prediction(network, *inputs.values())}
    else:
        images = inputs["images"].astype(np.float32)
        mean, logvar = agreement.vae_moments(network, images)
        decoded = agreement.vae_decoded(network, inputs["z"])
        outputs = {"mean": mean, "logvar": logvar, "decoded": decoded}
    return {key: np.asarray(value) for key, value in outputs.items()}, seconds


def run_side(side: str, component: str, folder: Path, file: Path | None, out: Path) -> None:
    """Run one side of a comparison in this process: outputs to `out`, figures to stdout."""
    outputs, seconds = (theirs if side == "theirs" else ours)(component, folder, file)
    np.savez(out, **outputs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"load_seconds": seconds, "peak_bytes": peak}))


def compare(
    component: str, folder: Path, file: Path | None, pythons: dict[str, str]
) -> dict[str, Any]:
    """Run both sides, each in its own process; return the relative error of every output."""
    record: dict[str, Any] = {}
    arrays: dict[str, Arrays] = {}
    for side, python in pythons.items():
        out = folder / f"{component}.{side}.npz"
        command = [python, "-m", "tests.reference.full_size_parity", str(folder)]
        command += ["--side", side, "--component", component, "--out", str(out)]
        command += [] if file is None else ["--single-file"]
        process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        record[side] = json.loads(process.stdout.splitlines()[-1])
        with np.load(out) as archive:
            arrays[side] = dict(archive)
    expected = arrays["theirs"]
    assert arrays["ours"].keys() == expected.keys()
    record["relative_error"] = {
        key: float(np.abs(value - expected[key]).max() / np.abs(expected[key]).max())
        for key, value in arrays["ours"].items()
    }
    return record


def end_to_end(folder: Path, file: Path | None, python: str, dtype: str) -> dict[str, Any]:
    """Run `python -m pipeline` at 256x256; return its time and its peak memory."""
    command = [python, "-m", "pipeline", "a red star", "--model", str(file or folder), *END_TO_END]
    command += ["--dtype", dtype, "--out", str(folder / f"pictures_{dtype}")]
    start = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the end-to-end run failed with status {status}")
    return {
        "arguments": [*command[3:4], *END_TO_END, "--dtype", dtype],
        "dtype": dtype,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def _machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": os.cpu_count(), "cpu": cpu, "memory_bytes": memory}


def main() -> None:
    """Compare, run and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the checkpoint; made if missing")
    parser.add_argument("--family", choices=FAMILIES, default="sdxl")
    parser.add_argument("--single-file", action="store_true", help="the weights as one file")
    parser.add_argument("--python", default=".venv/bin/python", help="without torch")
    parser.add_argument("--components", nargs="*", choices=COMPONENTS, help="all by default")
    parser.add_argument("--end-to-end", nargs="*", default=["float32"], metavar="DTYPE")
    for flag in ("--side", "--component", "--out"):  # for the processes that this one starts
        parser.add_argument(flag, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder: Path = options.folder
    file = folder / "model.safetensors" if options.single_file else None
    if options.side:
        run_side(options.side, options.component, folder, file, Path(options.out))
        return
    if not (folder / "vae/diffusion_pytorch_model.fp16.safetensors").is_file():
        build = [sys.executable, "-m", "tests.reference.full_size_checkpoint", str(folder)]
        subprocess.run([*build, "--family", options.family], check=True)
    if file is not None and not file.is_file():
        export(folder, file)
    pythons = {"theirs": sys.executable, "ours": options.python}
    names = options.components or [name for name in COMPONENTS if (folder / name).is_dir()]
    if options.single_file and "safety_checker" in names:
        names.remove("safety_checker")  # single files have none
    record = {
        "family": options.family,
        "single_file": options.single_file,
        "command": shlex.join([PYTHON, "-m", "tests.reference.full_size_parity", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "versions": {name: version(name) for name in VERSIONS},
        "machine": _machine(),
        "components": {name: compare(name, folder, file, pythons) for name in names},
        "end_to_end": [
            end_to_end(folder, file, options.python, dtype) for dtype in options.end_to_end
        ],
    }
    suffix = "" if options.family == "sdxl" else f"_{options.family}"
    suffix += "_single_file" if options.single_file else ""
    Path(f"benchmarks/full_size_parity{suffix}.json").write_text(
        json.dumps(record, indent=1) + "\n"
    )
    errors = [
        error
        for figures in record["components"].values()
        for error in figures["relative_error"].values()
    ]
    if max(errors) > BOUND:
        raise SystemExit(f"an error of {max(errors):.1e} is above the bound of {BOUND:g}")


if __name__ == "__main__":
    main()
