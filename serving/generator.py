"""The `Generator` protocol, with its requests and events.

The page, HTTP and every generator share these types. Nothing here imports JAX or Gradio.
"""

import secrets
from abc import abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, TypeAlias

from pipeline.facts import Facts
from pipeline.request import GenerateRequest
from pipeline.text.prompt_syntax import PLAIN
from serving.messages import Message

MAX_CHARACTERS = 2000  # of a prompt

# Fields of the facts that describe what there may be pictures of.
Pictured: TypeAlias = Literal["loras", "models"]


def new_id() -> str:
    """Return an id that cannot be guessed: a client that knows it may see and stop the request."""
    return secrets.token_urlsafe(18)


@dataclass(frozen=True)
class Request(GenerateRequest):
    """One request for pictures. Its seeds are always set: random ones are chosen before.

    Attributes:
        images: number of pictures; None for as many as the model draws at once.
        size: width and height in pixels; None for the model's default.
        visitor: identifier of the visitor. Visitors take turns; "" counts as one visitor.
        address: network address of the visitor, "" if unknown.
        keep: whether the request goes on for a short time after its last follower has left.
        previews: whether to send `Preview` events.
        unblurred: whether to send the original with a blurred picture, if it may be shown.
        live: whether to draw one picture in few steps while the visitor types. It comes after all
            other requests, is dropped for the visitor's next one, and is sent as a `Preview`.
        image: the picture to start from, as a PNG file that `requests.inputs` made; it is dropped
            when the request ends.
        mask: the part of `image` to redraw, in white, as a PNG file of its size; dropped likewise.
        followed: the pictures to follow, as PNG files, one for each of `controls`; None stands for
            `image`. They are dropped likewise.
        digest: set if an instance passes the request on: the digest of the model and the files that
            it must be drawn with, see `pipeline.facts.digest_of`; otherwise "".
    """

    images: int | None = None
    size: tuple[int, int] | None = None
    id: str = field(default_factory=new_id)
    visitor: str = ""
    address: str = ""
    keep: bool = False
    previews: bool = False
    unblurred: bool = False
    live: bool = False
    image: bytes | None = field(default=None, repr=False)
    mask: bytes | None = field(default=None, repr=False)
    followed: tuple[bytes | None, ...] = field(default=(), repr=False)
    digest: str = ""

    @property
    def input_bytes(self) -> int:
        """Number of bytes of the pictures that it starts from, and of those that it follows."""
        return sum(len(file or b"") for file in (self.image, self.mask, *self.followed))

    @property
    def group(self) -> tuple[str, str]:
        """The model and the LoRAs that it is drawn with; requests of a group can share a step."""
        return self.model, self.loras


# The reasons why a request was refused, or ended without pictures.
ErrorKind = StrEnum(
    "ErrorKind",
    [
        "INVALID",  # a value that cannot be used
        "BLOCKED",  # a word that the operator does not want drawn
        "FULL",  # no room in the queue
        "TOO_MANY",  # one visitor asks too often
        "CANCELLED",
        "ABANDONED",  # the request has no followers
        "DEADLINE",
        "OUT_OF_MEMORY",
        "FAILED",
        "STOPPING",  # the server is being shut down
        "UNAVAILABLE",  # no instance can draw at the moment
        "UNKNOWN",  # no request has this id
        "DUPLICATE",  # another request has this id
        "HTTP_413",  # too many bytes; named as other errors of HTTP
        "LOOP",  # an instance that passes requests on was asked by another one
        "UNAUTHORISED",  # no API key, or a wrong one
        "FORBIDDEN",  # sent by a page of another origin
        "MISDIRECTED",  # addressed to a host that is not this server
    ],
)


@dataclass(frozen=True)
class Queued:
    """The request waits in the queue.

    Attributes:
        position: position from the front, beginning with 1.
        expected_wait_s: seconds until the request begins, None while unknown.
    """

    position: int
    expected_wait_s: float | None


@dataclass(frozen=True)
class Started:
    """Drawing has begun; an attempt above 1 follows one that failed."""

    attempt: int = 1


@dataclass(frozen=True)
class Step:
    """Progress: `done` of `total` denoising steps are finished."""

    done: int
    total: int


@dataclass(frozen=True)
class Preview:
    """Previews of the unfinished pictures, as small JPEG files; not sent after every step.

    The preview of a live request is its finished picture.
    """

    jpegs: tuple[bytes, ...]


@dataclass(frozen=True)
class Image:
    """A finished picture.

    Attributes:
        index: position among the pictures of the request, beginning with 0.
        png: the PNG file, with the settings inside.
        unblurred: the original of a blurred picture, if the request asked for it and may have it.
        ignored: the parts of its prompts that have no effect, such as the tag of a LoRA that is not
            there, and the ends that did not fit.
    """

    index: int
    png: bytes
    seed: int
    settings: dict[str, str | int | float | None]  # fields of `metadata.Settings`
    unblurred: bytes | None = None
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pause:
    """Nothing has changed for a while; sent only to followers that ask for it."""


@dataclass(frozen=True)
class Done:
    """End of a request whose pictures have all been sent."""

    truncated: str = ""  # the words of the prompts that did not fit, or ""


@dataclass(frozen=True)
class Error:
    """End of a request without all of its pictures; `message` is shown to the visitor."""

    kind: ErrorKind
    message: Message


Ending: TypeAlias = Done | Error
Event: TypeAlias = Queued | Started | Step | Preview | Image | Pause | Ending


class RequestError(Exception):
    """Refusal of a request.

    Attributes:
        message: shown to the visitor; `str` of the exception is its English text.
        kind: the reason.
        field: the field of `Request` that is wrong, or None.
        retry_after_s: seconds after which to ask again, or None.
    """

    def __init__(
        self,
        message: Message,
        kind: ErrorKind = ErrorKind.INVALID,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(str(message))
        self.message = message
        self.kind = kind
        self.field = field
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Load:
    """Numbers of requests in a generator, whether it takes more, and its slots for pictures."""

    waiting: int
    running: int
    max_waiting: int
    accepting: bool  # whether it can draw and is not shutting down
    stuck: bool = False  # whether its devices have been silent for far too long
    slots: int = 0  # pictures that are drawn at the same time, at most
    slots_in_use: int = 0

    @property
    def has_room(self) -> bool:
        """Whether a request would be taken in now."""
        return self.accepting and self.waiting < self.max_waiting


@dataclass(frozen=True)
class Length:
    """Length of a prompt in tokens.

    Attributes:
        tokens: number of tokens, with the start and end tokens that every prompt has; without them
            if prompts may have several chunks.
        limit: number of tokens that the model reads, likewise.
        left_out: the text beyond the limit, which the model does not read, or "".
        chunks: number of chunks that the prompt takes.
    """

    tokens: int
    limit: int
    left_out: str = ""
    chunks: int = 1


class Generator(Protocol):
    """Interface that takes requests in and draws them, in an order that is fair to all visitors."""

    @property
    @abstractmethod
    def facts(self) -> Facts:
        """The facts about the model that draws."""

    @property
    @abstractmethod
    def load(self) -> Load:
        """The current load."""

    @property
    @abstractmethod
    def stuck(self) -> bool:
        """Whether the devices have been silent for far too long during a request."""

    @property
    @abstractmethod
    def at_work(self) -> bool:
        """Whether a thread of this process still works; after `close`, its result is not used."""

    @abstractmethod
    async def open(self) -> None:
        """Start up on the running event loop, on which all other methods are called too."""

    @abstractmethod
    async def measure(
        self, prompt: str, prompt_syntax: str = PLAIN, steps: int | None = None
    ) -> Length | None:
        """Return the length of a prompt; None while no instance can measure it.

        Args:
            prompt: a prompt that `explain` can read in this syntax and these steps.
            prompt_syntax: its syntax.
            steps: the number of steps of the run, the model's default if None. A prompt may have
                several texts in a run, the longest of which counts.
        """

    @abstractmethod
    async def thumbnail(self, kind: Pictured, name: str) -> bytes | None:
        """Return a small WebP picture of a LoRA or a model; None if there is none."""

    @abstractmethod
    async def submit(self, request: Request) -> None:
        """Take a request in.

        Raises:
            RequestError: if the request is refused; it then leaves no trace.
        """

    @abstractmethod
    async def take_up(self, request_id: str) -> None:
        """Submit a request again, unchanged, if it ended because it had no followers.

        Raises:
            RequestError: if there is no request with this id any more, or if it is refused.
        """

    @abstractmethod
    def events(self, request_id: str, pause_s: float | None = None) -> AsyncGenerator[Event]:
        """Yield the current state of a request, then its further events, up to `Done` or `Error`.

        With `pause_s`, a `Pause` follows every so many seconds without an event.

        Several clients may follow a request, at any time until its result is forgotten. A slow
        client misses outdated steps, previews and queue positions, but no other events. When the
        last follower leaves, the request is stopped: at once, or after a while with `Request.keep`.

        Raises:
            RequestError: if there is no request with this id any more.
        """

    @abstractmethod
    def cancel(self, request_id: str) -> None:
        """Stop a request within two steps; do nothing if it has ended.

        Raises:
            RequestError: if there is no request with this id any more.
        """

    @abstractmethod
    async def close(self, within_s: float) -> None:
        """Refuse new requests, end waiting ones, and end running ones after `within_s` seconds.

        Devices that do not stop even then are not waited for. May be called again with less time.
        """
