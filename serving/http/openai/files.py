"""Pictures that are kept in memory for a while, for clients that ask for URLs."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.generator import RequestError
from serving.messages import Code, Message
from serving.requests.shares import first_to_go

LIFETIME_S = 3600.0  # as long as OpenAI's URLs
MAX_BYTES = 64 * 2**20
MAX_FILES = 1000

_SUFFIXES = {"png": "png", "jpeg": "jpg", "webp": "webp"}


@dataclass(frozen=True)
class File:
    """A picture's file; `expires_at` is a time of the clock of its `Files`."""

    content: bytes
    media_type: str
    address: str  # of the client that asked for it
    expires_at: float


class Files:
    """The files that can be fetched, by names that cannot be guessed.

    Their memory is limited: the oldest files make room for new ones, first those of the client
    that has most.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._files: dict[str, File] = {}  # oldest first
        self._bytes = 0

    def add(self, contents: Sequence[bytes], address: str, output_format: str) -> list[str]:
        """Keep the pictures of one call, and return a name for each.

        Args:
            contents: the files.
            address: address of the client that asks for them.
            output_format: their format, "png", "jpeg" or "webp".

        Raises:
            RequestError: if the files are too large to be kept together.
        """
        if sum(map(len, contents)) > MAX_BYTES or len(contents) > MAX_FILES:
            field = "response_format"
            raise RequestError(Message(Code.TOO_LARGE_FOR_URLS, {"field": field}), field=field)
        names = []
        for content in contents:
            name = f"{secrets.token_urlsafe(24)}.{_SUFFIXES[output_format]}"
            expires_at = self._clock() + LIFETIME_S
            self._files[name] = File(content, f"image/{output_format}", address, expires_at)
            self._bytes += len(content)
            names.append(name)
        self._make_room()
        return names

    def find(self, name: str) -> File | None:
        """Return the file with this name, or None if there is none any more."""
        self._make_room()
        return self._files.get(name)

    def _make_room(self) -> None:
        """Drop the files that have expired, and others until the limits hold."""
        now = self._clock()
        for name in [name for name, file in self._files.items() if file.expires_at <= now]:
            self._drop(name)
        while self._bytes > MAX_BYTES or len(self._files) > MAX_FILES:
            self._drop(
                first_to_go(
                    (name, file.address, len(file.content)) for name, file in self._files.items()
                )
            )

    def _drop(self, name: str) -> None:
        self._bytes -= len(self._files.pop(name).content)
