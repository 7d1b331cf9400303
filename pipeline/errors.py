"""The package's exceptions. Messages say what is wrong, where, and what would be right."""

from threading import Event


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, incomplete or of an unsupported kind.

    The message names the file, the key or tensor and its value, and says what would be right.
    """


class UnlikeError(CheckpointError):
    """A checkpoint whose architecture differs from that of the programs that should run it."""


class ControlError(CheckpointError):
    """A loaded ControlNet whose file cannot be read any more.

    Attributes:
        name: its name in requests.
    """

    def __init__(self, name: str, reason: object) -> None:
        super().__init__(f"the control {name!r} cannot be read: {reason}")
        self.name = name


class InputError(ValueError):
    """An argument of a request that cannot be used, such as a seed out of range or a wrong size.

    The message names the argument and its value, and says what would be right.
    """


class DeviceError(RuntimeError):
    """A device that is missing, has too little memory, or fails."""


class ScreenError(RuntimeError):
    """A failure of the operator's screening of finished pictures; none of them is returned."""


class NotFiniteError(RuntimeError):
    """Latents with NaN or infinity, as when LoRAs change a network too much."""


class MetadataError(ValueError):
    """A picture, or a text with a picture's settings, that cannot be read."""


class PictureError(MetadataError):
    """A file that is not a picture, or is damaged."""


class TooLargeError(MetadataError):
    """A picture, or its settings, above a limit that protects against hostile files."""


class Cancelled(Exception):
    """A run that stopped, in its preparation or between two steps, because it was cancelled."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's type if there is none."""
    return str(error).partition("\n")[0] or type(error).__name__


def raise_if_cancelled(cancelled: Event | None) -> None:
    """Raise Cancelled if the event of a request that is prepared is set."""
    if cancelled is not None and cancelled.is_set():
        raise Cancelled("stopped while it was prepared")
