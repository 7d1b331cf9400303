"""Formats of the files that calls are answered with."""

from dataclasses import dataclass
from typing import Literal

import anyio.to_thread
from anyio import CapacityLimiter

from pipeline.errors import MetadataError
from pipeline.images import metadata
from serving.generator import RequestError
from serving.messages import Code, Message


@dataclass(frozen=True)
class Format:
    """The format of a call's files.

    Attributes:
        name: its name.
        quality: from 0 to 100; PNG files have none.
        thread: one thread that writes them.
        field: the parameter that named the format, for messages.
    """

    name: Literal["png", "jpeg", "webp"]
    quality: int
    thread: CapacityLimiter
    field: str = "output_format"

    async def encode(self, png: bytes) -> bytes:
        """Return a picture's PNG file in this format.

        Raises:
            RequestError: if the format has no room for the picture's settings.
        """
        if self.name == "png":
            return png
        kind = "JPEG" if self.name == "jpeg" else "WEBP"
        try:
            return await anyio.to_thread.run_sync(
                metadata.converted, png, kind, self.quality, limiter=self.thread
            )
        except MetadataError:
            message = Message(Code.TOO_LONG_FOR_FORMAT, {"field": self.field, "value": self.name})
            raise RequestError(message, field=self.field) from None
