"""A blurred picture, and the picture itself in its place, for the visitor who asks to see it."""

import gradio as gr

from serving.generator import ErrorKind, RequestError
from ui import i18n
from ui.pictures import saved
from ui.pictures.saved import Picture


def layout() -> gr.Button:
    """The button, which shows itself where there is something to reveal."""
    return gr.Button(i18n.SHOW_ANYWAY, size="md", visible=False, elem_id="reveal")


def offered(picture: Picture) -> gr.Button:
    """How the button stands to the picture that is open."""
    label = i18n.SHOW_ANYWAY if picture.blurred else i18n.HIDE_AGAIN
    return gr.Button(label, visible=picture.other is not None)


def exchange(shown: list[Picture], index: int, files: str | None) -> list[Picture]:
    """What is shown once the picture of this index and its other one have changed places.

    With `files` as `saved.BARE` it has no settings inside.

    Raises:
        RequestError: it is gone, or there is no room for the other one.
    """
    try:
        changed = saved.exchanged(shown[index], files != saved.BARE)
    except (LookupError, OSError):  # other pictures have come, or its file was deleted
        raise RequestError(i18n.GONE, ErrorKind.UNKNOWN) from None
    return [*shown[:index], changed, *shown[index + 1 :]]
