"""The exchange of a blurred picture for its original, and back."""

from serving.generator import ErrorKind, RequestError
from serving.messages import Code, Message
from ui.pictures import saved
from ui.pictures.saved import Picture


def exchange(pictures: list[Picture], index: int, files: str | None) -> list[Picture]:
    """Return the pictures with the one at `index` replaced by its original, or blurred again.

    If `files` is `saved.BARE`, the new file has no settings inside.

    Raises:
        RequestError: if the picture is gone, or there is no room for the new file.
    """
    try:
        changed = saved.exchanged(pictures[index], files != saved.BARE)
    except (LookupError, OSError):  # the gallery changed, or the file was deleted
        raise RequestError(Message(Code.PICTURE_GONE), ErrorKind.UNKNOWN) from None
    return [*pictures[:index], changed, *pictures[index + 1 :]]
