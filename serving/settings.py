"""The operator's settings: one class, read from flags and environment variables."""

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, get_args, get_origin

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

from pipeline.setting_kinds import listed

_YES_OR_NO = {"yes": True, "no": False}
_NEAR = 0.87  # likeness of a misspelt name, as difflib has it


def _parsed_by(parse: Callable[[str], Any]) -> BeforeValidator:
    """Return a validator that parses text and passes on all other values."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _whole(text: str) -> int:
    if not text.strip().isdecimal():  # int() would accept 1_000 and +5
        raise ValueError
    return int(text)


def _yes_or_no(text: str) -> bool:
    if text not in _YES_OR_NO:
        raise ValueError
    return _YES_OR_NO[text]


def _size(text: str) -> tuple[int, int]:
    sides = re.fullmatch(r"(\d{1,4})\s*x\s*(\d{1,4})", text)
    if not sides or not all(8 <= int(side) <= 8192 for side in sides.groups()):
        raise ValueError(f"{text!r} is not possible; expected sizes such as 1024x1024,1152x896")
    return int(sides[1]), int(sides[2])


def _matching(pattern: str, expectation: str) -> AfterValidator:
    """Return a validator of texts that match a pattern; the error says what is expected."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            masked_text = re.sub(r"//.*@", "//...@", text)  # a password stays out of the log
            raise ValueError(f"{masked_text!r} is not possible; expected {expectation}")
        return text

    return AfterValidator(check)


Whole = Annotated[int, _parsed_by(_whole)]
WholeOrNone = Annotated[int | None, _parsed_by(_whole)]
YesOrNo = Annotated[bool, _parsed_by(_yes_or_no)]
_Origin = Annotated[
    str, _matching(r"https?://[A-Za-z0-9.\-\[\]:]+", "an origin such as https://example.org")
]
_PageOrigin = Annotated[
    str,
    _matching(r"https?://(\*\.)?[A-Za-z0-9.\-\[\]:]+", "an origin such as https://example.org"),
]
_HostName = Annotated[
    str,
    _matching(
        r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*",
        "a name such as draw.example.org, without a port",
    ),
]
Sizes = Annotated[
    tuple[Annotated[tuple[int, int], _parsed_by(_size)], ...],
    _parsed_by(listed),
    AfterValidator(lambda sizes: tuple(dict.fromkeys(sizes))),
]
Origins = Annotated[tuple[_Origin, ...], _parsed_by(listed)]
PageOrigins = Annotated[tuple[_PageOrigin, ...], _parsed_by(listed)]
Sources = Annotated[tuple[str, ...], _parsed_by(listed)]
HostNames = Annotated[tuple[_HostName, ...], _parsed_by(listed)]
Function = Annotated[str, _matching(r"[\w.]+:\w+", "package.module:function")]


def _setting(
    default: Any,
    description: str,
    *,
    section: str | None = None,
    default_text: str | None = None,
    on_space: Any = None,
    ge: int | None = None,
    le: int | None = None,
) -> Any:
    """Declare a setting that has a flag and a variable.

    Args:
        default: the value of a setting that is not given.
        description: a text for people who do not know this program.
        section: title of the settings from this one on, in the documentation.
        default_text: description of a default whose value does not explain it.
        on_space: the default on a Hugging Face Space, if that differs.
        ge: the lowest value of a whole number.
        le: the highest value of a whole number.
    """
    documented = {"section": section, "default_text": default_text, "on_space": on_space}
    return Field(
        default,
        description=description,
        json_schema_extra={"documented": documented},
        ge=ge,
        le=le,
    )


class Options(BaseModel):
    """The checked settings of one process; `read` makes them.

    A field `images_per_request` has the flag --images-per-request and the variable
    IMAGES_PER_REQUEST.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    model_id: str | None = _setting(
        None,
        "Stable Diffusion checkpoint (XL, 1 or 2): a folder in diffusers' layout, the name of a "
        "repository on the Hugging Face Hub, or a single file, such as model.safetensors or "
        "owner/name/model.safetensors on the Hub.",
        section="Model and pictures",
        default_text="SDXL base 1.0 with an accelerator, the bundled miniature without one",
    )
    revision: str | None = _setting(
        None,
        "Branch, tag or commit of a checkpoint on the Hugging Face Hub.",
        default_text="the main branch; a fixed commit of SDXL base 1.0",
    )
    vae_id: str | None = _setting(
        None,
        "VAE that replaces the checkpoint's own: a folder, a repository or a single file, as for "
        "MODEL_ID.",
        default_text="the checkpoint's own",
    )
    unet_id: str | None = _setting(
        None,
        "UNet that replaces the checkpoint's own, such as that of a distilled model: a folder, a "
        "repository or a single file, as for MODEL_ID.",
        default_text="the checkpoint's own",
    )
    tiny_vae: str | None = _setting(
        None,
        "Tiny VAE (TAESD) made for the model, such as madebyollin/taesdxl: a folder, a repository "
        "or a single file. Previews are then small pictures in full colour, and requests can ask "
        "for it to decode their pictures, which is quicker and less exact.",
        default_text="none",
    )
    refiner_id: str | None = _setting(
        None,
        "Refiner of SDXL, which draws the last steps of pictures unless a request says otherwise: "
        "a folder, a repository or a single file, as for MODEL_ID. Only its UNet is loaded.",
        default_text="none",
    )
    scheduler: str | None = _setting(
        None,
        "Scheduler, which removes the noise, such as euler, dpmsolver++ or unipc; docs/models.md "
        "lists them.",
        default_text="the checkpoint's own",
    )
    lora_dir: Path | None = _setting(
        None,
        "Folder with LoRAs, as .safetensors files, that requests can name. Files may come and go "
        "while the server runs. A picture or a text file with the same name as a LoRA is shown "
        "with it.",
        default_text="the bundled miniature's own, none for other models",
    )
    model_dir: Path | None = _setting(
        None,
        "Folder with further models that requests can name: .safetensors files, and folders in "
        "diffusers' layout. They must have the same architecture as MODEL_ID's model, because "
        "they use its compiled programs. They may come and go while the server runs.",
        default_text="none",
    )
    models: Sources = _setting(
        (),
        "Further models that requests can name, separated by commas: folders, repositories or "
        "single files, as for MODEL_ID. A model of another architecture than MODEL_ID's gets "
        "compiled programs of its own, stays on the devices beside the first model, and draws "
        "without LoRAs.",
        default_text="none",
    )
    model_memory: WholeOrNone = _setting(
        None,
        "Bytes of the host's memory in which to keep models that are not on the devices. Changing "
        "to a model that is kept does not wait for the disk.",
        default_text="half of what is free",
        ge=0,
        le=2**50,
    )
    control_dir: Path | None = _setting(
        None,
        "Folder with ControlNets for MODEL_ID's model that requests can name: .safetensors files, "
        "and folders in diffusers' layout. Programs are compiled for those that are there at the "
        "start; others of the same architecture may come and go while the server runs.",
        default_text="the bundled miniature's own, none for other models",
    )
    preprocessors: Sources = _setting(
        (),
        "Functions of your own that make maps for ControlNets, separated by commas, each written "
        "name=package.module:function. One is given a picture, a NumPy array of uint8 with the "
        "axes height, width and colour, and returns such a map.",
        default_text="none",
    )
    embedding_dir: Path | None = _setting(
        None,
        "Folder with textual inversions, as .safetensors files. A prompt uses one by the name of "
        "its file. Files may come and go while the server runs.",
        default_text="none",
    )
    wildcard_dir: Path | None = _setting(
        None,
        "Folder with wildcard lists: text files with one choice in each line. A prompt in "
        "AUTOMATIC1111's syntax uses a list by the name of its file: `__colour__` stands for a "
        "line of colour.txt.",
        default_text="none",
    )
    prompt_chunks: Whole = _setting(
        1,
        "Number of chunks of 75 tokens that a prompt may have. More chunks take more memory. A "
        "prompt that fits into one chunk gives the same picture whatever the number is.",
        ge=1,
        le=3,
    )
    step_cache: YesOrNo = _setting(
        False,
        "Allow requests to use step caching (cache_interval), which is quicker and less exact. It "
        "takes some memory for each picture that is drawn at once. Pictures of other requests "
        "stay the same.",
    )
    devices_per_picture: Whole = _setting(
        1,
        "Number of devices that draw a picture together: 1 or an even number. With more devices a "
        "picture is finished sooner; with 1, more pictures are finished in all. From 4 on, "
        "pictures are equal to those of one device up to rounding, not bit for bit.",
        ge=1,
        le=64,
    )
    quantization: Literal["int8"] | None = _setting(
        None,
        "int8: most of the UNet multiplies 8-bit integers. This is quicker on accelerators, takes "
        "less memory for the UNet's parameters, and is less exact.",
        default_text="none",
    )
    sizes: Sizes = _setting(
        (),
        "Widths and heights of the pictures in pixels, separated by commas, such as "
        "1024x1024,1152x896. The first size is compiled before the page opens, the others after "
        "that.",
        default_text="the checkpoint's own size",
    )
    images_per_request: Whole = _setting(
        4,
        "Number of pictures that are drawn at once, and that a request gets unless it asks for "
        "fewer.",
        ge=1,
        le=64,
    )
    steps: WholeOrNone = _setting(
        None,
        "Number of steps for a request that does not choose it.",
        default_text="25, or as many as a distilled model was made for",
        ge=1,
        le=50,
    )
    live: Literal["auto", "on", "off"] = _setting(
        "auto",
        "Draw live pictures while visitors type, if the model or one of its LoRAs is made for few "
        "steps. auto: if a live picture takes at most 0.3 s. on: however long it takes. "
        "off: never. With several instances, set it where the pictures are drawn.",
    )
    cache_dir: Path | None = _setting(
        None,
        "Private folder for compiled programs, which make the next start much quicker.",
    )

    host: str = _setting(
        "127.0.0.1",
        "Address to listen on. 127.0.0.1 can be reached from this machine only, 0.0.0.0 from "
        "other machines as well.",
        section="Server",
        on_space="0.0.0.0",
    )
    port: Whole = _setting(7860, "Port to listen on.", ge=1, le=65535)
    allowed_hosts: HostNames = _setting(
        (),
        "Host names of this server, separated by commas, such as draw.example.org. *.example.org "
        "allows every name below example.org, and * allows every name. IP addresses and private "
        "names are always allowed.",
    )
    cors_origins: PageOrigins = _setting(
        (),
        "Origins of other web pages that may use and embed this one, separated by commas, such as "
        "https://example.org. Pages of https://*.example.org, which stands for every name below "
        "example.org, may only embed it.",
    )
    root_path: Annotated[str, _matching(r"(/[\w.~-]+)*", "a path such as /draw")] = _setting(
        "",
        "Path under which a proxy shows this server, such as /draw. The proxy removes it from the "
        "addresses that it passes on.",
        default_text="none",
    )
    trusted_proxies: Whole = _setting(
        0,
        "Number of proxies between the visitors and this server. Each adds the address of its "
        "caller to X-Forwarded-For.",
        on_space=1,
        ge=0,
        le=10,
    )
    api_keys_file: Path | None = _setting(
        None,
        "File with one API key per line. Programs then need one of the keys; visitors of the page "
        "need none.",
        default_text="no key is needed",
    )
    page_users_file: Path | None = _setting(
        None,
        "File with the users who may open the page, one per line, as `htpasswd -nB NAME` writes "
        "them: a name and the bcrypt hash of a password. Visitors then sign in.",
        default_text="everybody may open the page",
    )
    page_passphrase: Annotated[SecretStr, MinLen(8), MaxLen(72)] | None = _setting(
        None,
        "One passphrase for all visitors, of 8 to 72 characters, if there is no PAGE_USERS_FILE. "
        "Set the variable and not the flag, which every user of the machine can read.",
        default_text="everybody may open the page",
    )
    page_api: Literal["keys", "on", "off"] = _setting(
        "keys",
        "Which programs may call the page's own API, under /gradio_api/call. keys: programs that "
        "send a key from API_KEYS_FILE, or all programs when there is no such file. on: all "
        "programs. off: none.",
    )
    a1111_api: Literal["keys", "on", "off"] = _setting(
        "keys",
        "Who may use AUTOMATIC1111's API, under /sdapi/v1 and /controlnet. keys: clients that send "
        "a key from API_KEYS_FILE, or everybody when there is no such file. on: everybody. off: "
        "nobody.",
    )
    stop_within: Whole = _setting(
        60,
        "Seconds in which running requests can finish when the process is told to stop.",
        ge=0,
        le=3600,
    )
    log_format: Literal["text", "json"] = _setting(
        "text", "Format of the log: text for people, json for machines."
    )
    log_prompts: YesOrNo = _setting(False, "Write the prompts to the log.")

    max_waiting: Whole = _setting(
        32,
        "Number of requests that may wait for their turn. One visitor can hold half of these "
        "places, one address three quarters.",
        section="Requests and their limits",
        ge=1,
        le=10_000,
    )
    max_wait: Whole = _setting(
        600, "Seconds that a request may wait for its turn.", ge=1, le=86_400
    )
    max_run: Whole = _setting(
        300,
        "Seconds within which a request must finish, counted from the beginning of its newest "
        "picture.",
        ge=1,
        le=86_400,
    )
    grace: Whole = _setting(
        30,
        "Seconds that a request goes on after its page was closed or lost the connection, so that "
        "a reloaded page finds it again.",
        ge=0,
        le=3600,
    )
    keep_results: Whole = _setting(
        32,
        "Number of finished requests whose pictures can be fetched again. The oldest go earlier if "
        "the files exceed 256 MiB.",
        ge=0,
        le=10_000,
    )
    keep_seconds: Whole = _setting(
        600,
        "Seconds that the pictures of a finished request can be fetched again.",
        ge=0,
        le=86_400,
    )
    keep_files: Whole = _setting(
        3600, "Seconds that the page's picture files can be downloaded.", ge=60, le=86_400
    )
    rate_per_address: Whole = _setting(
        0, "Requests per minute from one address; 0 sets no limit.", ge=0, le=100_000
    )
    rate_per_session: Whole = _setting(
        0, "Requests per minute from one open page or API key; 0 sets no limit.", ge=0, le=100_000
    )

    backend_urls: Origins = _setting(
        (),
        "Origins of other instances, separated by commas, which draw the pictures. This instance "
        "then loads no model.",
        section="Other instances",
        default_text="this instance draws",
    )
    backend_key_file: Path | None = _setting(
        None, "File with the API key that the other instances ask for."
    )

    blocked_words: Path | None = _setting(
        None,
        "File with the words that no prompt may contain. Each line holds one word, several words, "
        "or a regular expression between slashes.",
        section="Moderation",
    )
    safety_checker: YesOrNo = _setting(
        True,
        "Run the checkpoint's safety checker, if it has one, and blur the pictures that it flags.",
    )
    screen: Function | None = _setting(
        None,
        "Function of your own, written package.module:function, that checks finished pictures. It "
        "is given a list of PIL images and returns a list of bool: True blurs a picture.",
    )
    reveal: YesOrNo = _setting(
        True,
        "Allow visitors to see their own pictures that SCREEN flagged. Pictures that the safety "
        "checker flagged always stay blurred.",
    )

    # Hugging Face sets these variables in a Space; they have no flags.
    space_id: str | None = None
    space_host: str = ""

    @property
    def on_space(self) -> bool:
        """Whether the process runs as a Hugging Face Space, under the host name `space_host`."""
        return self.space_id is not None

    @field_validator("screen")
    @classmethod
    def _screen_where_pictures_are_drawn(
        cls, value: str | None, info: ValidationInfo
    ) -> str | None:
        if value and info.data.get("backend_urls"):
            raise ValueError("set it at the instances that draw, not beside --backend-urls")
        return value


class Setting(NamedTuple):
    """A setting as `--help` and docs/settings.md show it."""

    section: str
    name: str
    flag: str
    variable: str
    metavar: str
    default: str
    description: str


class _Parser(argparse.ArgumentParser):
    """Parser that reports an error in one line; only `--help` prints the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def read(arguments: Sequence[str], environment: Mapping[str, str], prog: str = "app.py") -> Options:
    """Read the options; a flag wins over its environment variable.

    `prog` is the program's name in messages.

    Raises:
        SystemExit: with status 2 if an option is wrong, after one line that says what is wrong.
    """
    parser = _Parser(
        prog=prog,
        description="A page that draws pictures from words, with Stable Diffusion on JAX.",
        epilog="Each flag can also be given by the environment variable in brackets.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30, width=100),
        argument_default=argparse.SUPPRESS,
    )
    for section, settings in groupby(described(), lambda setting: setting.section):
        group = parser.add_argument_group(section)
        for setting in settings:
            text = f"{setting.description} Default: {setting.default}. [{setting.variable}]"
            group.add_argument(setting.flag, metavar=setting.metavar, help=text.replace("%", "%%"))
    # It would be an abbreviation of several others.
    parser.add_argument("--model", dest="model_id", help=argparse.SUPPRESS)
    flags = vars(parser.parse_args(arguments))
    # An empty variable counts as unset.
    variables = {
        name: value for name in Options.model_fields if (value := environment.get(name.upper()))
    }
    values = _defaults(variables) | variables | flags
    try:
        options = Options.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        label = _flag(name) if name in flags else name.upper()
        if allowed := _allowed(Options.model_fields[name]):
            parser.error(f"{label}: {values[name]!r} is not possible; expected {allowed}")
        parser.error(f"{label}: {problem.get('ctx', {}).get('error', problem['msg'])}")
    return options


def misspelt(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable whose name is nearly that of a setting."""
    names = [name.upper() for name in Options.model_fields]
    near = {name: difflib.get_close_matches(name, names, 1, _NEAR) for name in environment}
    return [
        f"{name} is not a setting; is {match[0]} meant?"
        for name, match in near.items()
        if match and name not in names
    ]


def described() -> list[Setting]:
    """Return all settings that have a flag, in the order of their declaration."""
    settings: list[Setting] = []
    for name, field in Options.model_fields.items():
        documented = _documented(field)
        if documented is None:
            continue
        description = f"{field.description}"
        if _is_whole(field):
            description += " From {} to {}.".format(*_bounds(field))
        default = documented["default_text"] or _text(field.default)
        if documented["on_space"] is not None:
            default += f"; {_text(documented['on_space'])} on a Hugging Face Space"
        settings.append(
            Setting(
                documented["section"] or settings[-1].section,
                name,
                _flag(name),
                name.upper(),
                _metavar(name, field),
                default,
                description,
            )
        )
    return settings


def _documented(field: FieldInfo) -> dict[str, Any] | None:
    """Return the arguments that `_setting` was given, or None for a field without a flag."""
    extra = field.json_schema_extra
    return dict[str, Any](extra)["documented"] if isinstance(extra, dict) else None


def _defaults(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that differ on a Hugging Face Space, if this is one."""
    if "space_id" not in variables:
        return {}
    documentation = {name: _documented(field) for name, field in Options.model_fields.items()}
    return {
        name: documented["on_space"]
        for name, documented in documentation.items()
        if documented and documented["on_space"] is not None
    }


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _allowed(field: FieldInfo) -> str | None:
    """Return a phrase for the allowed values; None if there is no simple one."""
    if field.annotation is bool:
        return "yes or no"
    if _is_whole(field):
        return "a whole number from {} to {}".format(*_bounds(field))
    return " or ".join(_choices(field)) or None


def _is_whole(field: FieldInfo) -> bool:
    return field.annotation in (int, int | None)


def _choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the values of a choice, which may be left out; none of other settings."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())


def _bounds(field: FieldInfo) -> tuple[Any, Any]:
    """Return the lowest and the highest value of a whole number."""
    low = next(constraint.ge for constraint in field.metadata if isinstance(constraint, Ge))
    high = next(constraint.le for constraint in field.metadata if isinstance(constraint, Le))
    return low, high


def _metavar(name: str, field: FieldInfo) -> str:
    if field.annotation is bool or _choices(field):
        return str(_allowed(field)).replace(" or ", "|").upper()
    if _is_whole(field):
        return "SECONDS" if f"{field.description}".startswith("Seconds") else "NUMBER"
    return "FILE" if name == "blocked_words" else name.upper().rpartition("_")[2]


def _text(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return "none" if default is None or default == () else str(default)
