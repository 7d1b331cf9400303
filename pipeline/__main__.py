"""Draw pictures from the command line: `python -m pipeline "a prompt" --out folder`.

`python -m pipeline --prompts file.txt --out folder` draws a picture for each line of a file.
`python -m pipeline --plan` prints the memory that a model needs.
Options of the server have the same names here, as flags and as variables of the environment.
"""

import argparse
import logging
import os
import re
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from pipeline.errors import CheckpointError, DeviceError, InputError, NotFiniteError
from pipeline.request import (
    MAX_IMAGES,
    SETTINGS,
    TINY,
    GenerateRequest,
    check_count,
    check_request,
)
from pipeline.setting_kinds import Number, Setting, listed, parse_size
from pipeline.text.controls import parse_controls

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None, prog: str | None = None) -> int:
    """Run one request and return the exit status; `prog` is the command's name in messages."""
    options = _options(arguments, prog)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger(__package__).setLevel(logging.INFO if options.verbose else logging.WARNING)
    try:
        if options.plan:
            from pipeline.plan import print_plan

            print_plan(options)
            return 0
        files, failed = _draw_batch(options) if options.prompts else (_draw(options), 0)
        for file in files:
            print(file)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (CheckpointError, DeviceError, InputError, NotFiniteError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, InputError) else EXIT_FAILED
    return EXIT_FAILED if failed else 0


def _options(arguments: list[str] | None, prog: str | None) -> argparse.Namespace:
    parser = _parser(prog)
    options = parser.parse_args(arguments)
    faults = {
        "a prompt is needed, or --plan, or --prompts": not (
            options.plan or options.prompt or options.prompts
        ),
        "--prompts takes the prompts from its file; give no other, and no --plan": (
            options.prompts and (options.prompt or options.plan)
        ),
        "--sizes needs --plan; --width and --height set the size to draw": (
            options.sizes and not options.plan
        ),
        f"--decoder {TINY} needs --tiny-vae": (
            options.decoder == TINY and not (options.tiny_vae or options.plan)
        ),
        f"--cache-interval {options.cache_interval} needs --step-cache": (
            options.cache_interval > 1 and not (options.step_cache or options.plan)
        ),
    }
    for message, is_wrong in faults.items():
        if is_wrong:
            parser.error(message)
    return options


def _parser(prog: str | None = None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog or f"python -m {__package__}",
        description="Draws pictures from a prompt with Stable Diffusion and writes them as PNG "
        "files, each with its settings inside, and a grid of all of them.",
        epilog="Exit status: 0 success, 1 failure, 2 invalid option or request, 130 interrupted.",
    )
    parser.add_argument(
        "prompt", nargs="*", help="one prompt for all pictures, or one for each picture"
    )
    for setting in SETTINGS.values():
        if setting.name != "prompt":
            parser.add_argument(
                f"--{setting.flag}",
                dest=setting.name,
                type=setting.kind,
                default=_variable(setting.flag) or setting.default,
                metavar=setting.noun.split()[-1].upper(),
                help=_help(setting),
            )
    for flag, option in _OPTIONS.items():
        if (default := _variable(flag.removeprefix("--"))) is not None:
            option = {**option, "default": default}
        parser.add_argument(flag, **option)
    # It would be an abbreviation of several others.
    parser.add_argument(
        "--model", dest="model_id", default=_variable("model-id"), help=argparse.SUPPRESS
    )
    return parser


def _variable(flag: str) -> str | None:
    """Return the variable of the environment of an option that the server has too."""
    return os.environ.get(flag.replace("-", "_").upper()) or None if flag in _OF_SERVER else None


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"{text!r} is not possible; expected yes or no")
    return text == "yes"


def _sizes(text: str) -> list[tuple[int, int]]:
    """Return the (height, width) of each size in a list."""
    sizes = [re.fullmatch(r"(\d{1,4})x(\d{1,4})", size.strip()) for size in text.split(",")]
    if None in sizes:
        raise argparse.ArgumentTypeError(f"{text!r}; expected sizes such as 1024x1024,1152x896")
    return [(int(size[2]), int(size[1])) for size in sizes if size]


_OF_SERVER = (
    *("model-id", "revision", "vae-id", "unet-id", "tiny-vae", "refiner-id", "models", "scheduler"),
    *("steps", "images-per-request", "safety-checker", "prompt-chunks", "step-cache", "cache-dir"),
    *("devices-per-picture", "quantization", "wildcard-dir"),
)
# The options beside the settings of a request, as argparse takes them.
_OPTIONS: dict[str, dict[str, Any]] = {
    "--out": {
        "type": Path,
        "default": Path(),
        "metavar": "FOLDER",
        "help": "folder for the files; default: the current one",
    },
    "--model-id": {
        "metavar": "MODEL",
        "help": "folder, Hub id or .safetensors file; default: SDXL base 1.0 on an accelerator,"
        " else the bundled miniature",
    },
    "--vae-id": {
        "metavar": "VAE",
        "help": "folder, Hub id or .safetensors file of a VAE; default: the checkpoint's own",
    },
    "--tiny-vae": {
        "metavar": "VAE",
        "help": "folder, Hub id or .safetensors file of a tiny VAE, such as madebyollin/taesdxl,"
        " for --decoder; default: none",
    },
    "--unet-id": {
        "metavar": "UNET",
        "help": "folder, Hub id or .safetensors file of a UNet, such as that of a distilled model;"
        " default: the checkpoint's own",
    },
    "--refiner-id": {
        "metavar": "MODEL",
        "help": "folder, Hub id or .safetensors file of SDXL's refiner, which draws the last"
        " steps; default: none",
    },
    "--revision": {"help": "branch, tag or commit on the Hub"},
    "--prompts": {
        "type": Path,
        "metavar": "FILE",
        "help": "a .txt file with a prompt in each line, or a .jsonl file with settings in each;"
        " draws a picture for each line, and goes on in the same folder after an interruption",
    },
    "--height": {"type": int, "help": "in pixels; default: the checkpoint's own"},
    "--width": {"type": int, "help": "in pixels; default: the checkpoint's own"},
    "--images-per-request": {
        "type": int,
        "default": 4,
        "metavar": "COUNT",
        "help": "pictures to draw, default 4; with --prompts: pictures to draw at the same time",
    },
    "--safety-checker": {
        "type": _yes_or_no,
        "default": True,
        "metavar": "YES|NO",
        "help": "blur pictures that the checkpoint's safety checker flags, if it has one;"
        " default yes",
    },
    "--dtype": {"choices": ("float32", "bfloat16"), "help": "default: chosen for the device"},
    "--models": {
        "type": listed,
        "default": [],
        "metavar": "MODELS",
        "help": "further models, separated by commas, which --checkpoint can choose by the names of"
        " their folders or files",
    },
    "--lora": {
        "action": "append",
        "default": [],
        "metavar": "FILE",
        "help": "a LoRA for --loras to name by the file's name without its suffix, or"
        " owner/name/file.safetensors on the Hub; may be given several times",
    },
    "--image": {
        "type": Path,
        "metavar": "FILE",
        "help": "a picture to start from; PNG, JPEG or WebP",
    },
    "--mask": {
        "type": Path,
        "metavar": "FILE",
        "help": "a picture of the same size that is white where --image is redrawn; the rest does"
        " not change",
    },
    "--controlnet": {
        "action": "append",
        "default": [],
        "metavar": "FILE",
        "help": "a ControlNet for --controls to name by the name of its file or folder, or one on"
        " the Hub; may be given several times",
    },
    "--control-image": {
        "action": "append",
        "default": [],
        "type": Path,
        "metavar": "FILE",
        "help": "the picture to follow, for each of --controls in order; default: --image",
    },
    "--prompt-chunks": {
        "type": int,
        "default": 1,
        "metavar": "COUNT",
        "help": "chunks of 75 tokens that a prompt may have, 1 to 3; default 1",
    },
    "--step-cache": {
        "type": _yes_or_no,
        "nargs": "?",
        "const": True,
        "default": False,
        "metavar": "YES|NO",
        "help": "compile for --cache-interval above 1; default no",
    },
    "--devices-per-picture": {
        "type": int,
        "default": 1,
        "metavar": "COUNT",
        "help": "devices that draw a picture together, 1 or an even number; default 1",
    },
    "--quantization": {
        "choices": ("int8",),
        "help": "multiply 8-bit integers in most of the UNet, which is quicker on accelerators and"
        " less exact; default: no",
    },
    "--wildcard-dir": {
        "type": Path,
        "metavar": "FOLDER",
        "help": "folder with wildcard lists, as text files; with --prompt-syntax a1111, __colour__"
        " stands for a line of colour.txt",
    },
    "--cache-dir": {
        "type": Path,
        "metavar": "FOLDER",
        "help": "private folder for compiled executables",
    },
    "--plan": {
        "action": "store_true",
        "help": "draw nothing; print the memory that the model needs; with --cache-dir, programs"
        " that are not in the folder are compiled to be counted; downloads no weights but those of"
        " a tiny VAE and of a refiner",
    },
    "--sizes": {
        "type": _sizes,
        "default": (),
        "metavar": "LIST",
        "help": "with --plan: sizes to draw, such as 1024x1024,1152x896; default: only --width and"
        " --height",
    },
    "--verbose": {"action": "store_true", "help": "log the stages of startup"},
}


def _help(setting: Setting) -> str:
    """Return a setting's description in the style of the other options."""
    text = setting.help[0].lower() + setting.help[1:].removesuffix(".")
    default = setting.default
    if isinstance(setting, Number) and default is not None:
        default = f"{default:g}"
    if not default and setting.absent_note:
        return f"{text}; default: {setting.absent_note.split(' if ')[0].lower()}"
    return f"{text}; default {default}" if default else text


def _make_folder(folder: Path) -> None:
    """Make a folder for the files, in which one can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = "cannot be written to; name another one with --out"
        raise OSError(error.errno, reason, str(folder)) from error


def _load(options: argparse.Namespace, scheduler: str) -> "SDXLPipeline":
    """Load the model and the LoRAs that the options name."""
    from pipeline import SDXLPipeline
    from pipeline.default_model import choose_model
    from pipeline.runtime.mesh import cores_as_devices

    cores_as_devices(options.images_per_request)
    model, revision = choose_model(options.model_id, options.revision)
    pipe = SDXLPipeline.from_pretrained(
        model,
        revision,
        height=options.height,
        width=options.width,
        images_per_request=options.images_per_request,
        num_inference_steps=options.num_inference_steps,
        dtype=options.dtype,
        scheduler=scheduler or None,
        safety_checker=options.safety_checker,
        cache_dir=options.cache_dir,
        vae=options.vae_id,
        tiny_vae=options.tiny_vae,
        unet=options.unet_id,
        refiner=options.refiner_id,
        prompt_chunks=options.prompt_chunks,
        step_cache=options.step_cache,
        devices_per_picture=options.devices_per_picture,
        quantization=options.quantization,
        wildcard_dir=options.wildcard_dir,
        models=options.models,
        controlnets={} if options.controlnet else None,
    )
    for source in options.controlnet:
        pipe.add_control(source)
    if (size := parse_size(options.enlarge)) and not options.prompts:
        pipe.add_size(size[1], size[0])
    for source in options.lora:
        pipe.load_lora(source)
    return pipe


def _draw(options: argparse.Namespace) -> list[Path]:
    from diffusers.utils import make_image_grid

    from pipeline.drawing.origins import Inputs, check_origin
    from pipeline.images import metadata
    from pipeline.images.opening import open_file

    values = {name: getattr(options, name) for name in SETTINGS}
    if len(options.prompt) == 1:
        values["prompt"] = options.prompt[0]
    # Check the request before the slow work, so that a mistake is reported at once.
    settings = {name: value for name, value in values.items() if value is not None}
    request = check_request(GenerateRequest(**settings), options.images_per_request)
    files = {"image": options.image, "mask": options.mask}
    pictures: dict[str, Any] = {
        name: open_file(file, name) for name, file in files.items() if file is not None
    }
    followed = [open_file(file, "control-image") for file in options.control_image]
    controls = parse_controls(request.controls)
    if len(followed) > len(controls):
        raise InputError("--control-image has more pictures than --controls has controls")
    values["controls"] = [
        replace(control, image=followed[i] if i < len(followed) else None)
        for i, control in enumerate(controls)
    ]
    check_origin(request, Inputs(pictures.get("image"), pictures.get("mask")))
    _make_folder(options.out)
    pipe = _load(options, request.scheduler)
    if len(options.prompt) > 1:  # or the quotes around one prompt were forgotten
        print("one picture of each:", *map(repr, options.prompt), file=sys.stderr)
    with tqdm(desc="Drawing", unit="step", disable=None) as bar:

        def on_step(_step: int, total: int, _latents: object) -> None:
            bar.total = total
            bar.update()

        result = pipe.generate(**values, **pictures, on_step=on_step)
    ends = {*result.truncated, *result.negative_truncated}
    for part in sorted({*chain(*result.ignored)}):
        reason = "cut off, too long" if part in ends else "without effect"
        print(f"{reason}: {part}", file=sys.stderr)
    names = [f"{seed}.png" for seed in result.seeds]
    if result.variation_seeds is not None:
        names = [f"{options.seed}-{seed}.png" for seed in result.variation_seeds]
    for name, flagged in zip(names, result.flagged, strict=True):
        if flagged:
            print(f"blurred by the safety checker: {name}", file=sys.stderr)
    images_by_name = dict(zip(names, result.images, strict=True))
    grid = make_image_grid(result.images, *_grid(len(result.images)))
    grid.info.update(result.images[0].info)
    for name, image in {**images_by_name, "grid.png": grid}.items():
        metadata.save_png(image, options.out / name)
    return [options.out / name for name in (*images_by_name, "grid.png")]


def _draw_batch(options: argparse.Namespace) -> tuple[list[Path], int]:
    """Return the files that list and show the pictures, and the number of those that failed."""
    from pipeline.batch.drawing import run
    from pipeline.batch.prompts import read_batch

    check_count("images_per_request", options.images_per_request, 1, MAX_IMAGES)
    values = {name: getattr(options, name) for name in SETTINGS if name != "prompt"}
    settings = {name: value for name, value in values.items() if value is not None}
    batch = read_batch(options.prompts, settings, options.image, options.mask)
    _make_folder(options.out)
    scheduler = check_request(GenerateRequest("", **settings), 1).scheduler
    names = "model_id", "vae_id", "unet_id", "tiny_vae", "refiner_id"
    networks = {name.removesuffix("_id"): getattr(options, name) for name in names}
    return run(batch, options.out, lambda: _load(options, scheduler), networks)


def _grid(count: int) -> tuple[int, int]:
    """Return the rows and columns of a full grid that is as near to a square as possible."""
    rows = max(n for n in range(1, int(count**0.5) + 1) if count % n == 0)
    return rows, count // rows


if __name__ == "__main__":
    sys.exit(main())
