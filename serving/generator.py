"""What is asked of whatever draws the pictures, and what is heard back.

Nothing here imports JAX or Gradio: the page, HTTP and every generator share these types.
"""

import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from pipeline.request import MAX_SEED

MAX_CHARACTERS = 2000  # of a prompt


@dataclass(frozen=True)
class Model:
    """The model that draws."""

    name: str
    revision: str | None
    bundled: bool  # the miniature that comes with this program
    device: str  # such as "cpu", "NVIDIA H200" or "TPU v5 lite"
    num_devices: int
    height: int  # pixels, as `width`
    width: int
    images_per_request: int
    num_inference_steps: int  # unless a request says otherwise
    max_inference_steps: int
    family: str  # "Stable Diffusion XL" or "Stable Diffusion"
    safety_checker: bool  # one looks at the pictures, and those that it flags are blurred
    scheduler: str  # such as "euler"
    version: str  # of what computes, and its numbers, such as "jax 0.10.2, bfloat16"
    more_sizes: tuple[tuple[int, int], ...] = ()  # width and height, that a request can ask for
    coming_sizes: tuple[tuple[int, int], ...] = ()  # those it will be able to ask for soon
    screened: bool = False  # the operator's own function looks at the pictures as well

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Width and height of the pictures there can be, first the one of who does not ask."""
        return (self.width, self.height), *self.more_sizes


def new_id() -> str:
    """An id that cannot be guessed: whoever knows it may see and stop the request."""
    return secrets.token_urlsafe(18)


def random_seed() -> int:
    """Any seed there is."""
    return secrets.randbelow(MAX_SEED + 1)


@dataclass(frozen=True)
class Request:
    """One request for pictures. The seed is always known: it is drawn before this is made.

    Attributes:
        prompt: one for all pictures, or one for each; `negative_prompt` the same.
        seed: picture i is drawn from seed + i.
        images: how many pictures are wanted; None for as many as the model draws at once.
        size: width and height in pixels; None for the model's own.
        visitor: who asks. Visitors take turns; "" is one visitor, too.
        address: where the visitor comes from, "" if that is not known.
        keep: whether the request outlives, for a short time, everyone who follows it.
        previews: whether there are to be `Preview` events.
        unblurred: whether a blurred picture is to come with the picture itself, if it may be shown.
        guidance_until: the share of the steps, 0 to 1, after which there is no guidance any more.
        variation_seed: with a strength, picture i is a variation of the picture of `seed`, its
            noise turned towards that of variation_seed + i.
        variation_strength: how far, from 0, not at all, to 1, all the way.
    """

    prompt: str | tuple[str, ...]
    negative_prompt: str | tuple[str, ...] | None
    guidance_scale: float
    num_inference_steps: int
    seed: int
    images: int | None = None
    size: tuple[int, int] | None = None
    id: str = field(default_factory=new_id)
    visitor: str = ""
    address: str = ""
    keep: bool = False
    previews: bool = False
    unblurred: bool = False
    guidance_until: float = 1.0
    variation_seed: int = 0
    variation_strength: float = 0.0


class ErrorKind(StrEnum):
    """Why a request was refused, or ended without pictures."""

    INVALID = "invalid"  # a value that cannot be used
    BLOCKED = "blocked"  # a word that the operator does not want drawn
    FULL = "full"  # no room in the queue
    TOO_MANY = "too_many"  # one visitor asks too often
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"  # nobody waited for it any more
    DEADLINE = "deadline"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    STOPPING = "stopping"  # the server is being shut down
    UNAVAILABLE = "unavailable"  # no instance can draw at the moment
    UNKNOWN = "unknown"  # there is no request of this id
    DUPLICATE = "duplicate"  # there is one already
    LOOP = "loop"  # instances that pass requests on have been pointed at each other
    UNAUTHORISED = "unauthorised"  # no API key, or a wrong one
    FORBIDDEN = "forbidden"  # sent by a page of another origin
    MISDIRECTED = "misdirected"  # addressed to a host that is not this server


@dataclass(frozen=True)
class Queued:
    """Waiting, as the `position`th from the front; `expected_wait_s` is None while unknown."""

    position: int
    expected_wait_s: float | None


@dataclass(frozen=True)
class Started:
    """Drawing has begun; from attempt 2 on, begun again elsewhere."""

    attempt: int = 1


@dataclass(frozen=True)
class Step:
    """`done` of `total` denoising steps are finished."""

    done: int
    total: int


@dataclass(frozen=True)
class Preview:
    """How the pictures look so far, as small JPEG files; not after every step."""

    jpegs: tuple[bytes, ...]


@dataclass(frozen=True)
class Image:
    """The picture of this index, counted from 0, as a PNG file with its settings inside.

    Where it is blurred, `unblurred` may have the picture itself, for a visitor who asks to see it.
    """

    index: int
    png: bytes
    seed: int
    settings: dict[str, str | int | float | None]  # what `pipeline.images.metadata.Settings` holds
    unblurred: bytes | None = None


@dataclass(frozen=True)
class Done:
    """The end of a request whose pictures are all there."""

    truncated: str = ""  # the words of the prompts that did not fit, or ""


@dataclass(frozen=True)
class Error:
    """The end of a request without (all of) its pictures; `message` is meant for the visitor."""

    kind: ErrorKind
    message: str


Ending: TypeAlias = Done | Error
Event: TypeAlias = Queued | Started | Step | Preview | Image | Ending


class RequestError(Exception):
    """A request that is refused; the message is meant for the visitor.

    Attributes:
        kind: why.
        field: the field of `Request` that cannot be used, if it is about one.
        retry_after_s: when asking again makes sense, if it does.
    """

    def __init__(
        self,
        message: str,
        kind: ErrorKind = ErrorKind.INVALID,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.field = field
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Load:
    """How busy a generator is."""

    waiting: int
    running: int
    max_waiting: int
    accepting: bool  # it can draw, and is not being shut down
    stuck: bool = False  # its devices have said nothing for far too long

    @property
    def has_room(self) -> bool:
        """Whether a request would be taken in now."""
        return self.accepting and self.waiting < self.max_waiting


@dataclass(frozen=True)
class Length:
    """How long a prompt is for the model.

    Attributes:
        tokens: with those for the start and the end, which every prompt has.
        limit: how many there can be.
        left_out: the end of the prompt that the model does not read, or "".
    """

    tokens: int
    limit: int
    left_out: str = ""


class Generator(Protocol):
    """Takes requests in and draws them, in an order that is fair to all visitors."""

    @property
    def model(self) -> Model:
        """The model that draws."""
        ...

    @property
    def load(self) -> Load:
        """How busy it is."""
        ...

    @property
    def stuck(self) -> bool:
        """Whether the devices have said nothing for far too long, in the midst of a request."""
        ...

    @property
    def at_work(self) -> bool:
        """Whether a thread of this process cannot be ended yet; once closed, that is for no use."""
        ...

    async def open(self) -> None:
        """Gets ready, on the event loop that all else will happen on."""
        ...

    async def measure(self, prompt: str) -> Length | None:
        """How long a prompt is; None while nobody can tell."""
        ...

    async def submit(self, request: Request) -> None:
        """Takes a request in.

        Raises:
            RequestError: if it is refused; it has then left no trace.
        """
        ...

    async def take_up(self, request_id: str) -> None:
        """Takes a request in again, as it was, if it ended because nobody waited for it.

        Raises:
            RequestError: there is no request of this id, or no longer; or it is refused.
        """
        ...

    def events(self, request_id: str) -> AsyncGenerator[Event]:
        """Yields how a request stands, and then what follows, up to a `Done` or `Error`.

        Several may follow a request, at any time until its result is forgotten. Who is slow is
        spared steps, previews and places in the queue that are out of date, nothing else. When
        nobody follows a request any more it is stopped, at once or (`Request.keep`) after a while.

        Raises:
            RequestError: there is no request of this id, or no longer.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Stops a request, within one step; one that has ended is left as it is.

        Raises:
            RequestError: there is no request of this id, or no longer.
        """
        ...

    async def close(self, within_s: float) -> None:
        """Takes in nothing more, ends what waits, and what still runs after `within_s` seconds.

        Does not wait for devices that do not even stop then. May be called again, with less time.
        """
        ...
