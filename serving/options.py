"""What an operator can set: by flag, by environment variable, or not at all."""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn


@dataclass(frozen=True)
class Options:
    """What one process runs with, checked."""

    model: str | None
    revision: str | None
    host: str
    port: int
    height: int | None
    width: int | None
    images: int
    steps: int
    max_waiting: int
    scheduler: str | None
    cache_dir: Path | None


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage is for `--help`."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Reads the options; a flag wins over its environment variable.

    Anything wrong ends the program with one line that says what, and exit status 2.
    """
    parser = _Parser(
        prog="app.py",
        description="A page that draws pictures from words, with Stable Diffusion XL on JAX.",
        epilog="Each flag can also be given by the environment variable in brackets.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30, width=100),
    )

    def option(
        flag: str, variable: str, text: str, default: str | None = None, **others: Any
    ) -> None:
        # A default that is text is checked like a flag's value.
        default = environment.get(variable) or default
        others.setdefault("metavar", variable.rpartition("_")[2])
        parser.add_argument(flag, default=default, help=f"{text} [{variable}]", **others)

    option(
        "--model",
        "MODEL_ID",
        "folder or Hugging Face Hub id of a Stable Diffusion checkpoint (XL, 1 or 2) in diffusers' "
        "layout; by default "
        "SDXL base 1.0 on an accelerator and the bundled miniature without one",
    )
    option("--revision", "REVISION", "branch, tag or commit of a checkpoint on the Hub")
    option(
        "--host",
        "HOST",
        "address to listen on; by default this machine's own only, and all on a Hugging Face Space",
        default="0.0.0.0" if "SPACE_ID" in environment else "127.0.0.1",
    )
    option("--port", "PORT", "port to listen on", type=_whole(1, 65535), default="7860")
    pixels = _whole(8, 8192)
    option("--height", "HEIGHT", "pixels; by default the checkpoint's own", type=pixels)
    option("--width", "WIDTH", "pixels; by default the checkpoint's own", type=pixels)
    option(
        "--images",
        "IMAGES_PER_REQUEST",
        "pictures drawn for each request",
        type=_whole(1, 64),
        default="4",
        metavar="COUNT",
    )
    option(
        "--steps",
        "STEPS",
        "steps unless a visitor says otherwise",
        type=_whole(1, 50),
        default="25",
    )
    option(
        "--max-waiting",
        "MAX_WAITING",
        "requests that may wait for their turn; more are turned away",
        type=_whole(1, 10_000),
        default="32",
        metavar="COUNT",
    )
    option(
        "--scheduler",
        "SCHEDULER",
        "euler, euler-ancestral, ddim, pndm or dpmsolver++; by default the checkpoint's own",
        metavar="NAME",
    )
    option(
        "--cache-dir",
        "CACHE_DIR",
        "private folder to keep compiled programs in, for quicker restarts",
        type=Path,
    )
    return Options(**vars(parser.parse_args(arguments)))


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = float(text) if text.strip().isdecimal() else math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not possible; a whole number from {low} to {high} is needed"
            )
        return int(text)

    return parse
