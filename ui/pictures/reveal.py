"""The button that shows the original of a blurred picture, and hides it again."""

import gradio as gr

from serving.generator import ErrorKind, RequestError
from serving.messages import Code, Message
from ui import i18n
from ui.pictures import saved
from ui.pictures.saved import Picture


def layout() -> gr.Button:
    """Return the button, which is hidden until there is something to reveal."""
    return gr.Button(i18n.SHOW_ANYWAY, size="md", visible=False, elem_id="reveal")


def offered(picture: Picture) -> gr.Button:
    """Return the button's update for the opened picture."""
    label = i18n.SHOW_ANYWAY if picture.blurred else i18n.HIDE_AGAIN
    return gr.Button(label, visible=picture.other is not None)


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
