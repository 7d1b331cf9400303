"""Settings of a process, from flags and environment variables."""

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn


@dataclass(frozen=True)
class Options:
    """The checked settings of one process.

    `on_space`: whether it runs as a Hugging Face Space, under the host name `space_host`.
    """

    model: str | None
    revision: str | None
    host: str
    port: int
    sizes: tuple[tuple[int, int], ...]
    images: int
    steps: int
    max_waiting: int
    max_wait: int
    max_run: int
    grace: int
    keep_results: int
    keep_seconds: int
    keep_files: int
    stop_within: int
    rate_per_address: int
    rate_per_session: int
    trusted_proxies: int
    api_keys_file: Path | None
    blocked_words: Path | None
    cors_origins: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    page_api: bool
    log_format: str
    log_prompts: bool
    backend_urls: tuple[str, ...]
    backend_key_file: Path | None
    scheduler: str | None
    safety_checker: bool
    screen: str | None
    reveal: bool
    cache_dir: Path | None
    on_space: bool
    space_host: str


class _Parser(argparse.ArgumentParser):
    """Parser that reports an error in one line; only `--help` prints the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Read the options; a flag wins over its environment variable.

    Raises:
        SystemExit: with status 2 if an option is wrong, after one line that says what is wrong.
    """
    parser = _Parser(
        prog="app.py",
        description="A page that draws pictures from words, with Stable Diffusion on JAX.",
        epilog="Each flag can also be given by the environment variable in brackets.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30, width=100),
    )

    def option(
        flag: str, variable: str, text: str, default: str | None = None, **others: Any
    ) -> None:
        # argparse checks a default that is text like the value of a flag.
        default = environment.get(variable) or default
        others.setdefault("metavar", variable.rpartition("_")[2])
        parser.add_argument(flag, default=default, help=f"{text} [{variable}]", **others)

    def number(flag: str, variable: str, text: str, low: int, high: int, default: int) -> None:
        unit = "SECONDS" if "seconds" in text else "COUNT"
        option(flag, variable, text, str(default), type=_whole(low, high), metavar=unit)

    on_space = "SPACE_ID" in environment
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
        default="0.0.0.0" if on_space else "127.0.0.1",
    )
    option("--port", "PORT", "port to listen on", type=_whole(1, 65535), default="7860")
    option(
        "--sizes",
        "SIZES",
        "width and height of the pictures in pixels, such as 1024x1024,1152x896; the first is "
        "compiled before the page opens and the others after that; by default the checkpoint's own",
        type=_sizes,
        default="",
    )
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
        "requests that may wait for their turn; one visitor gets half of these places at most, and "
        "one address three quarters",
        type=_whole(1, 10_000),
        default="32",
        metavar="COUNT",
    )
    number("--max-wait", "MAX_WAIT", "seconds a request may wait for its turn", 1, 86_400, 600)
    number("--max-run", "MAX_RUN", "seconds a request may be drawn for", 1, 86_400, 300)
    number("--grace", "GRACE", "seconds a page that is reloaded has to come back", 0, 3600, 30)
    number("--keep-results", "KEEP_RESULTS", "results that can be found again", 0, 10_000, 32)
    number("--keep-seconds", "KEEP_SECONDS", "and for how many seconds", 0, 86_400, 600)
    number(
        "--keep-files",
        "KEEP_FILES",
        "seconds a picture of the page's can be fetched",
        60,
        86_400,
        3600,
    )
    number("--stop-within", "STOP_WITHIN", "seconds to finish in when told to stop", 0, 3600, 60)
    number(
        "--rate-per-address",
        "RATE_PER_ADDRESS",
        "requests in a minute from one address; 0: no limit",
        0,
        100_000,
        0,
    )
    number(
        "--rate-per-session",
        "RATE_PER_SESSION",
        "requests in a minute from one open page or API key; 0: no limit",
        0,
        100_000,
        0,
    )
    number(
        "--trusted-proxies",
        "TRUSTED_PROXIES",
        "proxies in front, each of which adds to X-Forwarded-For; 1 on a Hugging Face Space",
        0,
        10,
        int(on_space),
    )
    option(
        "--api-keys-file",
        "API_KEYS_FILE",
        "file with one key a line, of which /v1 then needs one",
        type=Path,
    )
    option(
        "--blocked-words",
        "BLOCKED_WORDS",
        "file with what no prompt may contain: a word or several a line, or a /pattern/",
        type=Path,
        metavar="FILE",
    )
    option(
        "--cors-origins",
        "CORS_ORIGINS",
        "origins, separated by commas, of other pages that may use and embed this one",
        type=_origins,
        default="",
    )
    option(
        "--allowed-hosts",
        "ALLOWED_HOSTS",
        "names, separated by commas, that this server is reached by, such as draw.example.org; "
        "*.example.org allows all below, * all there are; IP addresses and private names always",
        type=_hosts,
        default="",
        metavar="NAMES",
    )
    option(
        "--page-api",
        "PAGE_API",
        "yes or no: whether programs may call the page's own API, under /gradio_api/call",
        type=_yes_or_no,
        default="yes",
    )
    option(
        "--log-format",
        "LOG_FORMAT",
        "text for people or json for machines",
        type=_one_of("text", "json"),
        default="text",
    )
    option(
        "--log-prompts",
        "LOG_PROMPTS",
        "yes or no: whether prompts are logged",
        type=_yes_or_no,
        default="no",
    )
    option(
        "--backend-urls",
        "BACKEND_URL",
        "other instances, separated by commas, that draw; this one then loads no model",
        type=_origins,
        default="",
        metavar="URL",
    )
    option("--backend-key-file", "BACKEND_KEY_FILE", "file with the API key for them", type=Path)
    option(
        "--scheduler",
        "SCHEDULER",
        "euler, euler-ancestral, ddim, pndm or dpmsolver++; by default the checkpoint's own",
        metavar="NAME",
    )
    option(
        "--safety-checker",
        "SAFETY_CHECKER",
        "yes or no: whether the checkpoint's safety checker, where it has one, looks at the "
        "pictures; those it flags are blurred",
        type=_yes_or_no,
        default="yes",
    )
    option(
        "--screen",
        "SCREEN",
        "package.module:function of your own: given a list of finished pictures (PIL), it says of "
        "each whether to blur it, as True or False",
        type=_function,
        metavar="FUNCTION",
    )
    option(
        "--reveal",
        "REVEAL",
        "yes or no: whether who asked for a picture that --screen flagged can see it all the "
        "same; never one that the checkpoint's safety checker flagged",
        type=_yes_or_no,
        default="yes",
    )
    option(
        "--cache-dir",
        "CACHE_DIR",
        "private folder to keep compiled programs in, for quicker restarts",
        type=Path,
    )
    # Hugging Face sets these variables; they have no flags.
    parser.set_defaults(on_space=on_space, space_host=environment.get("SPACE_HOST", ""))
    chosen = Options(**vars(parser.parse_args(arguments)))
    if chosen.screen and chosen.backend_urls:
        parser.error("--screen: pictures are screened where they are drawn: at --backend-urls")
    return chosen


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = float(text) if text.strip().isdecimal() else math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not possible; a whole number from {low} to {high} is needed"
            )
        return int(text)

    return parse


def _sizes(text: str) -> tuple[tuple[int, int], ...]:
    sizes = {}
    for part in filter(None, map(str.strip, text.split(","))):
        width, _, height = part.partition("x")
        try:
            sizes[_whole(8, 8192)(width), _whole(8, 8192)(height)] = None  # drops duplicates
        except argparse.ArgumentTypeError:
            raise argparse.ArgumentTypeError(
                f"{part!r} is not possible; sizes such as 1024x1024,1152x896 are"
            ) from None
    return tuple(sizes)


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text!r} is not possible; {' or '.join(words)} is")
        return text

    return parse


def _yes_or_no(text: str) -> bool:
    return _one_of("yes", "no")(text) == "yes"


def _function(text: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not possible; package.module:function is")
    return text


def _hosts(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if not re.fullmatch(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
            raise argparse.ArgumentTypeError(
                f"{name!r} is not possible; a name such as draw.example.org is, without a port"
            )
    return names


def _origins(text: str) -> tuple[str, ...]:
    origins = tuple(part.strip() for part in text.split(",") if part.strip())
    for origin in origins:
        if not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+", origin):
            raise argparse.ArgumentTypeError(
                f"{origin!r} is not possible; an origin such as https://example.org is"
            )
    return origins
