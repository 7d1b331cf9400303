"""What the page asks of whatever draws the pictures, and what it hears back.

Nothing here imports JAX: the page knows these few types and no others.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Model:
    """The model that draws, as the page presents it."""

    name: str
    revision: str | None
    device: str  # such as "cpu", "NVIDIA H200" or "TPU v5 lite"
    num_devices: int
    height: int
    width: int
    images_per_request: int
    num_inference_steps: int  # unless a request says otherwise
    max_inference_steps: int


@dataclass(frozen=True)
class Request:
    """One request for pictures. The seed is always known: it is drawn before this is made."""

    prompt: str
    negative_prompt: str | None
    guidance_scale: float
    num_inference_steps: int
    seed: int


@dataclass(frozen=True)
class Step:
    """`done` of `total` denoising steps are finished."""

    done: int
    total: int


@dataclass(frozen=True)
class Pictures:
    """The end of a request: PNG files with their settings inside, and a seed for each."""

    pngs: tuple[bytes, ...]
    seeds: tuple[int, ...]
    truncated: str  # the words of the prompts that did not fit, or ""


class RequestError(Exception):
    """A request that cannot be granted; the message is meant for the visitor."""


class Generator(Protocol):
    """Draws pictures, one request after the other."""

    @property
    def model(self) -> Model:
        """The model that draws."""
        ...

    def run(self, request: Request) -> AsyncGenerator[Step | Pictures]:
        """Yields a `Step` after each step and then the `Pictures`.

        Closing or cancelling the iteration stops the drawing within one step.

        Raises:
            RequestError: if the request cannot be granted.
        """
        ...
