"""What can go wrong that a person can put right: messages say what, where and what is right."""


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, incomplete or of an unsupported kind.

    The message names the file, the key or tensor and its value, and says what would be right.
    """


class InputError(ValueError):
    """An argument of a request that cannot be used: a seed out of range, a wrong size, ...

    The message names the argument and its value, and says what would be right.
    """


class DeviceError(RuntimeError):
    """A device that is not there, has too little memory, or fails."""


class ScreenError(RuntimeError):
    """The operator's screening of finished pictures failed, so that none of them is given."""


class MetadataError(ValueError):
    """A picture, or a text that should hold a picture's settings, that cannot be read."""


class PictureError(MetadataError):
    """A file that is no picture, or a damaged one."""


class TooLargeError(MetadataError):
    """A picture, or its settings, over a limit that keeps hostile files harmless."""


class Cancelled(Exception):
    """The caller asked a run to stop, and it stopped between two steps."""
