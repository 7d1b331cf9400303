"""Messages to visitors and clients: codes with parameters, and their English texts for the APIs.

A front-end passes codes and parameters on, and the page writes them in the visitor's language
(`ui.i18n`). Nothing is ever translated by comparing English sentences.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

Param: TypeAlias = str | int | float | bool | list[str] | None

LONGEST = 40  # characters of a value that a message quotes
# Whole numbers from here on are written without an exponent and without ".0".
_LARGE = 10**6


# Codes of messages. Each has a text in `ENGLISH`, and one in each language of the page. Its value
# is its name in small letters.
Code = StrEnum(
    "Code",
    [
        "UNTRANSLATED",  # an English `text` of a library or of an older instance
        "CANCELLED",
        "ABANDONED",
        "STOPPING",
        "UNAVAILABLE",
        "REPLACED",
        "OUT_OF_MEMORY",
        "FAILED",
        "BROKEN",
        "UNSCREENED",
        "NOT_FINITE",
        "LOOP",
        "UNKNOWN_REQUEST",
        "DUPLICATE",
        "FULL",
        "TOO_MANY_REQUESTS",
        "NOT_STARTED",
        "NOT_FINISHED",
        "NO_ROOM",
        "PICTURE_GONE",
        "CROWDED",
        "TOO_MANY_CONNECTIONS",
        "TOO_MANY_PAGES",
        "TOO_MANY_CALLS",
        "TOO_LARGE",
        "TOO_MANY_UPLOADS",
        "UPLOAD_TOO_SLOW",
        "NO_ROOM_FOR_UPLOADS",
        "NO_FILE",
        "KEY_NEEDED",
        "SIGN_IN_NEEDED",
        "SIGN_IN",
        "USER_NAME",
        "PASSWORD",
        "PASSPHRASE",
        "WRONG_PASSWORD",
        "WRONG_PASSPHRASE",
        "NEW_TAB",
        "LANGUAGE",  # the code of the language that a message is written in
        "WRONG_HOST",
        "WRONG_ORIGIN",
        "WRONG_PATH",
        "TWO_LENGTHS",
        "BLOCKED",
        "BLANK_PROMPT",
        "TOO_LONG",
        "NOT_TEXT",
        "NOT_A_NUMBER",
        "UNREADABLE",
        "OUT_OF_RANGE",
        "NOT_WHOLE",
        "UNKNOWN_CHOICE",
        "MISSING_RECIPE",
        "MISSING_REFINER",
        "NO_STEP_CACHE",
        "NO_CLIP_SKIP",
        "UNFIT_SCHEDULER",
        "NOT_TIMESTEPS",
        "NOT_WITH",
        "ONE_OF_TWO",
        "NOT_READY",
        "WRONG_COUNT",
        "TOO_MANY_LINES",
        "UNKNOWN_LORA",
        "DOUBLED_LORA",
        "UNUSABLE_LORA",
        "UNKNOWN_CONTROL",
        "UNUSABLE_MODEL",
        "UNREADABLE_MODEL",
        "TOO_MANY_LORAS",
        "TOO_MANY_TEXTS",
        "TOO_LONG_FOR_FORMAT",
        "NOT_LIVE",
        "TOO_LARGE_FOR_URLS",
        "UNUSABLE_PICTURE",
        "MASK_SIZE",
        "EMPTY_MASK",
        "MASK_NEEDED",
        "IMAGE_NEEDED",
        "WITHOUT",
        "INPUT_GONE",
    ],
)


@dataclass(frozen=True)
class Message:
    """A code with its parameters; `str` returns the English text.

    Attributes:
        code: the code, which clients can rely on.
        params: values by name, as JSON. Some have a meaning that every language formats in its own
            way: `field` is a setting's name, `wait_s` the seconds until the next try, or None.
    """

    code: Code
    params: Mapping[str, Param] = field(default_factory=dict)

    def __str__(self) -> str:
        return render(ENGLISH[self.code], self.params, _WRITERS, plain)


def untranslated(text: str) -> Message:
    """Return the message for an English text without a code."""
    return Message(Code.UNTRANSLATED, {"text": text})


def render(
    template: str,
    params: Mapping[str, Param],
    writers: Mapping[str, Callable[[Param], str]],
    write: Callable[[Param], str],
) -> str:
    """Return a template with its parameters filled in.

    Args:
        template: text with `{names}` of parameters.
        params: the values.
        writers: functions that write the parameters of certain names.
        write: function that writes all others.

    Raises:
        KeyError: if a parameter is missing.
    """
    texts = {name: writers.get(name, write)(value) for name, value in params.items()}
    return template.format_map(texts)


def plain(value: object) -> str:
    """Return a value as text; a large whole number has all its digits: 4294967296, not 4.3e+09."""
    if isinstance(value, float) and value.is_integer() and _LARGE <= abs(value) < 10**LONGEST:
        return f"{value:.0f}"
    return str(value)


def concise(number: float) -> str:
    """Return a number without needless decimals: 20 rather than 20.0; a whole one in full."""
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


def short(value: object, max_length: int = LONGEST) -> str:
    """Return a value as text that a message can quote: at most `max_length` printable characters.

    A mark such as U+202E would turn the rest of the message round.
    """
    start = str(value)[: max_length + 1]
    text = "".join(x if x.isprintable() else " " for x in start)
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def is_soon(wait_s: float | None) -> bool:
    """Return whether a wait is unknown, or too short to be counted in seconds."""
    return wait_s is None or wait_s < 2


def _soon(wait_s: float | None) -> str:
    return "in a moment" if wait_s is None or is_soon(wait_s) else f"in about {wait_s:.0f} seconds"


_WRITERS: dict[str, Callable[..., str]] = {
    "value": lambda value: short(plain(value)),
    "low": concise,
    "high": concise,
    "seconds": concise,
    "choices": " or ".join,
    "files": ", ".join,
    "wait_s": _soon,
}

ENGLISH: dict[Code, str] = {
    Code.UNTRANSLATED: "{text}",
    Code.CANCELLED: "Stopped.",
    Code.ABANDONED: "The request was stopped because no client followed it any more.",
    Code.STOPPING: "The server is shutting down. Try again in a moment.",
    Code.UNAVAILABLE: "No instance can draw at the moment. Try again in a while.",
    Code.REPLACED: "The model has been replaced since the request began. Try again.",
    Code.OUT_OF_MEMORY: (
        "The device ran out of memory while drawing. Try again, or choose a smaller size."
    ),
    Code.FAILED: "Something went wrong while drawing. Try again.",
    Code.BROKEN: "Something went wrong on the server. Try again.",
    Code.UNSCREENED: "The pictures could not be screened. Try again.",
    Code.NOT_FINITE: (
        "The model's values overflowed, so there is no picture. Lower the weights of the LoRAs, or"
        " guidance_scale."
    ),
    Code.LOOP: "This instance passes requests on; BACKEND_URLS must name instances that draw.",
    Code.UNKNOWN_REQUEST: "No request has this id, or its result is no longer kept.",
    Code.DUPLICATE: "Another request has this id already. Use another id.",
    Code.FULL: "The queue is full. Try again {wait_s}.",
    Code.TOO_MANY_REQUESTS: "You have sent too many requests. Try again {wait_s}.",
    Code.NOT_STARTED: "The request did not begin within {seconds} seconds. Try again later.",
    Code.NOT_FINISHED: (
        "The pictures were not finished within {seconds} seconds. Try again later."
    ),
    Code.NO_ROOM: "The pictures are drawn, but the server has no room to keep them. "
    "Try again later.",
    Code.PICTURE_GONE: "This picture does not exist, or is no longer kept. Draw it again.",
    Code.CROWDED: "Too many visitors are connected. Try again in a moment.",
    Code.TOO_MANY_CONNECTIONS: (
        "Too many connections are open from your network. Close some and try again."
    ),
    Code.TOO_MANY_PAGES: (
        "This page is open too often from your network. Close some tabs and try again."
    ),
    Code.TOO_MANY_CALLS: "Too many of your calls are still unanswered. Try again in a moment.",
    Code.TOO_LARGE: "This is too large to send: at most {kib} KiB are possible.",
    Code.TOO_MANY_UPLOADS: "Too many files are being uploaded. Try again in a moment.",
    Code.UPLOAD_TOO_SLOW: "The file did not arrive in time. Try again.",
    Code.NO_ROOM_FOR_UPLOADS: "The server has no room for files. Try again later.",
    Code.NO_FILE: "The form has no file named 'files'.",
    Code.KEY_NEEDED: "A valid API key is needed, as 'Authorization: Bearer KEY'.",
    Code.SIGN_IN_NEEDED: "Sign in to use the page.",
    Code.SIGN_IN: "Sign in",
    Code.USER_NAME: "Username",
    Code.PASSWORD: "Password",
    Code.PASSPHRASE: "Passphrase",
    Code.WRONG_PASSWORD: "The username or the password is wrong.",
    Code.WRONG_PASSPHRASE: "The passphrase is wrong.",
    Code.NEW_TAB: "Open the page in a new tab",
    Code.LANGUAGE: "en",
    Code.WRONG_HOST: (
        "This server does not answer for the host that was asked for. "
        "Its operator can add the host to ALLOWED_HOSTS."
    ),
    Code.WRONG_ORIGIN: (
        "Pages of other origins may not send this. "
        "The operator of this server can add their origin to CORS_ORIGINS."
    ),
    Code.WRONG_PATH: "There is nothing at this path.",
    Code.TWO_LENGTHS: "Send either Content-Length or Transfer-Encoding, not both.",
    Code.BLOCKED: '"{word}" is not allowed here. Leave it out.',
    Code.BLANK_PROMPT: "prompt is blank; describe what the picture should show",
    Code.TOO_LONG: "{field} has {length} characters; at most {limit} are possible",
    Code.NOT_TEXT: "{field} is not a text; expected a string",
    Code.NOT_A_NUMBER: "{field} is {value}, not a finite number",
    Code.UNREADABLE: "{field} is {value}; expected a value such as {example}",
    Code.OUT_OF_RANGE: "{field} is {value}; expected {low} to {high}",
    Code.NOT_WHOLE: "{field} is {value}; expected a whole number from {low} to {high}",
    Code.UNKNOWN_CHOICE: "{field} is {value}; here it can only be {choices}",
    Code.MISSING_RECIPE: (
        "{field} is {value}, which needs a LoRA that this server does not have; leave it out"
    ),
    Code.MISSING_REFINER: "{field} is {value}, but there is no refiner here; leave it out",
    Code.NO_STEP_CACHE: "{field} is {value}, but there is no step cache here; leave it out",
    Code.NO_CLIP_SKIP: "{field} is {value}, but this model has no clip skip; leave it out",
    Code.UNFIT_SCHEDULER: "{field} is {value}, which cannot draw with this model: {reason}",
    Code.NOT_TIMESTEPS: (
        "{field} is {value}; expected up to {limit} falling whole numbers from {low} to {high},"
        " such as {example}"
    ),
    Code.NOT_WITH: (
        "{field} is {value}, which {other} {its} cannot use; leave it out, or set {other} to"
        " {choices}"
    ),
    Code.ONE_OF_TWO: "{field} and {other} cannot be used together; leave one of them out",
    Code.NOT_READY: (
        "{field} is {value}, which is not ready yet; try again later, or choose {choices}"
    ),
    Code.WRONG_COUNT: (
        "{field} has {count} texts; expected one, or one for each of the {images} pictures"
    ),
    Code.TOO_MANY_LINES: "prompt has {lines} lines; at most {limit} pictures are drawn at once",
    Code.UNKNOWN_LORA: "loras names {value}, which is not in the server's folder LORA_DIR",
    Code.UNKNOWN_CONTROL: (
        "controls names {value}, which is not in the server's folder CONTROL_DIR, or not for this"
        " model"
    ),
    Code.DOUBLED_LORA: (
        "loras names {value}, but several files in LORA_DIR have this name; none is used: {files}"
    ),
    Code.UNUSABLE_LORA: (
        "loras names {value}, whose file cannot be used with this model; leave it out"
    ),
    Code.UNUSABLE_MODEL: "{field} is {value}, which cannot be used here: {reason}",
    Code.UNREADABLE_MODEL: (
        "the model {value} cannot be read at the moment; choose another one, or try again later"
    ),
    Code.TOO_MANY_LORAS: "loras has {count} names; at most {limit} are possible",
    Code.TOO_MANY_TEXTS: (
        "prompt changes too often during the run; expected at most {limit} different texts, with "
        "fewer [from:to:when] and [a|b]"
    ),
    Code.TOO_LONG_FOR_FORMAT: (
        "{field} is {value}, a format without room for prompts this long; use png or webp"
    ),
    Code.NOT_LIVE: "live is true, but live pictures are too slow here or off; leave it out",
    Code.TOO_LARGE_FOR_URLS: (
        "{field} is 'url', for which these pictures are too large; use 'b64_json'"
    ),
    Code.UNUSABLE_PICTURE: (
        "{field} cannot be used: {reason}; expected a PNG, JPEG or WebP picture"
    ),
    Code.MASK_SIZE: "{field} is {value} pixels; expected {expected}, the size of image",
    Code.EMPTY_MASK: (
        "{field} marks no part of the picture, so there is nothing to redraw; mark a part, or leave"
        " it out"
    ),
    Code.MASK_NEEDED: (
        "{field} is missing; this model redraws masked parts of pictures, so send image and mask"
    ),
    Code.IMAGE_NEEDED: "{field} is missing; this model only redraws pictures",
    Code.WITHOUT: "{field} is given without {other}; send {other} too, or leave {field} out",
    Code.INPUT_GONE: (
        "The picture that this request starts from is no longer kept. Send the request again."
    ),
}
