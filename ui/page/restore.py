"""Settings read back from a picture, or from its text."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr

from pipeline.errors import MetadataError, PictureError, TooLargeError
from pipeline.images import metadata
from pipeline.images.metadata import Settings
from serving.generator import MAX_CHARACTERS, Generator, RequestError
from serving.http.limits import MAX_UPLOAD_BYTES
from serving.requests import readers
from ui import i18n, scripts, status
from ui.form import settings
from ui.form.fields import Fields, Visitor
from ui.gradio_compat import uploads
from ui.pictures.picture_panel import apply
from ui.samples.styles import Style, typed
from ui.wiring import Call, Updates, Wiring

# Largest file: the limit of an upload, less the form that is sent around the file.
MOST_BYTES = MAX_UPLOAD_BYTES - 2**10
T = TypeVar("T")

# Shows the offer while the prompt ends with a line of settings, without a request to the server.
_OFFER = """({ prompt }) => {
  const last = (prompt ?? "").trim().split("\\n").pop();
  const visible = /^Steps: *\\d.*, *Seed: *\\d/.test(last) && last.split(":").length > 3;
  return { offer: { __type__: "update", visible } };
}"""
_EMPTY = """() => (
  { "restored": "", "restore-use": { __type__: "update", visible: false } }
)"""


class RestoreError(Exception):
    """An input without readable settings; the message is meant for the visitor."""


def from_picture(path: Path) -> Settings | None:
    """Read the settings in an uploaded picture, then delete the file and, if empty, its folder.

    A picture without settings, for which this is None, can still be one to start from. Texts are
    cut to what the page takes (`settings.bounded`). A path that is not an uploaded file's is
    neither opened nor deleted.

    Raises:
        RestoreError: if the picture or its settings cannot be read.
    """
    try:
        upload = uploads.resolved(path)
    except FileNotFoundError as error:
        raise RestoreError(i18n.UNREADABLE_PICTURE) from error
    try:
        picture_settings = metadata.read(upload)
    except TooLargeError as error:
        raise RestoreError(i18n.TOO_LARGE_A_PICTURE) from error
    except (PictureError, OSError) as error:
        raise RestoreError(i18n.UNREADABLE_PICTURE) from error
    except MetadataError as error:
        raise RestoreError(i18n.UNREADABLE_SETTINGS) from error
    finally:
        uploads.remove(upload)
    return None if picture_settings is None else settings.bounded(picture_settings)


def from_text(text: str) -> Settings:
    """Read the settings in a pasted text, cut to what the page takes.

    Raises:
        RestoreError: if the text is not in the format of this program or of AUTOMATIC1111's.
    """
    if len(text) > metadata.MAX_TEXT:
        raise RestoreError(i18n.NO_SETTINGS_IN_TEXT)
    try:
        return settings.bounded(metadata.from_text(text))
    except MetadataError as error:
        raise RestoreError(i18n.NO_SETTINGS_IN_TEXT) from error


def layout(wiring: Wiring) -> None:
    """Lay out a place to drop a picture, and one to paste a text."""
    file = gr.File(
        label=i18n.START_PICTURE,
        file_types=[".png", ".jpg", ".jpeg", ".webp"],
        height=140,
        elem_id="restore-picture",
    )
    text = gr.Textbox(
        label=i18n.RESTORE_TEXT,
        placeholder=i18n.RESTORE_HINT,
        lines=2,
        max_lines=6,
        elem_id="restore-text",
    )
    wiring.add("restore-picture", file)
    wiring.add("restore-text", text)
    wiring.add(
        "restored", gr.HTML(js_on_load=scripts.part("restored"), elem_id="restored", padding=False)
    )
    wiring.add("restore-use", gr.Button(i18n.USE_SETTINGS, visible=False, elem_id="restore-use"))
    wiring.add("settings", gr.State(None))


def layout_offer(wiring: Wiring) -> None:
    """Lay out the offer, which is hidden until settings are pasted into the prompt."""
    with wiring.add("offer", gr.Row(visible=False, elem_id="pasted")):
        gr.HTML(status.as_note(i18n.LOOKS_LIKE_SETTINGS), padding=False)
        wiring.add("use-pasted", gr.Button(i18n.USE_THEM, size="sm", elem_id="use-pasted"))


def connect_offer(wiring: Wiring, generator: Generator, styles: Mapping[str, Style]) -> None:
    """Offer to use settings that were pasted into the prompt, and put them into the fields."""

    async def use(call: Call) -> Updates:
        def read() -> Updates:
            return apply(from_text(call.values["prompt"] or ""), generator.facts, styles)

        try:
            return await _in_turn(call.sender, read)
        except RestoreError as error:
            return {"status": status.warning(str(error))}

    wiring.on("prompt.change", reads=["prompt"], updates=["offer"], js=_OFFER)
    wiring.on("use-pasted.click", use, reads=["prompt"], updates=[*Fields._fields, "status"])


def connect(wiring: Wiring, generator: Generator, styles: Mapping[str, Style]) -> None:
    """Show settings as soon as they are found, and put them into the page's fields on request."""

    async def of_picture(call: Call) -> Updates:
        read = partial(_of_picture, call.values["restore-picture"], styles)
        # The field is emptied so that the next picture can be dropped there.
        return {"restore-picture": None, **await _shown_in_turn(call.sender, read)}

    async def of_text(call: Call) -> Updates:
        return await _shown_in_turn(
            call.sender, partial(_of_text, call.values["restore-text"], styles)
        )

    def use(call: Call) -> Updates:
        return apply(call.values["settings"], generator.facts, styles)

    shows = ["restored", "restore-use", "settings"]
    wiring.on(
        "restore-picture.upload",
        of_picture,
        reads=["restore-picture"],
        updates=["restore-picture", *shows],
    )
    wiring.on("restored.select", _refused, updates=shows)
    wiring.on("restored.clear", updates=shows[:2], js=_EMPTY)
    text_options: dict[str, Any] = {"updates": shows, "trigger_mode": "always_last"}
    wiring.on("restore-text.change", of_text, reads=["restore-text"], **text_options)
    fields = [*Fields._fields, "status"]
    wiring.on("restore-use.click", use, reads=["settings"], updates=fields)


async def _in_turn(sender: gr.Request, work: Callable[[], T]) -> T:
    """Return what `work` returns, which begins when it is the sender's turn.

    Raises:
        RestoreError: as `work`, or if too many calls of the sender run or wait.
    """
    try:
        return await readers.of_settings().run(Visitor.behind(sender).address, work)
    except RequestError as error:
        raise RestoreError(i18n.translate(error.message)) from error


async def _shown_in_turn(sender: gr.Request, read: Callable[[], Updates]) -> Updates:
    try:
        return await _in_turn(sender, read)
    except RestoreError as error:
        return _shown(status.as_warning(str(error)))


def _of_picture(dropped: dict[str, Any] | None, styles: Mapping[str, Style]) -> Updates:
    """Read a picture; `dropped` is Gradio's `FileData` as JSON."""
    picture_settings = from_picture(Path((dropped or {}).get("path") or ""))
    if picture_settings is None:
        return _shown(status.EMPTY)
    # `start/tools.js` offers these settings beside the picture.
    html = f"<div data-of-picture>{_html(picture_settings, styles)}</div>"
    return _shown(html, picture_settings)


def _of_text(text: str | None, styles: Mapping[str, Style]) -> Updates:
    if not (text or "").strip():
        return _shown(status.EMPTY)
    picture_settings = from_text(text or "")
    return _shown(_html(picture_settings, styles), picture_settings)


def _refused(call: Call) -> Updates:
    """Say why the browser did not send a file; the event names the reason."""
    is_large = call.data == "too large"
    message = i18n.TOO_LARGE_A_PICTURE if is_large else i18n.UNREADABLE_PICTURE
    return _shown(status.as_warning(message))


def _html(picture_settings: Settings, styles: Mapping[str, Style]) -> str:
    words = typed(styles.values(), picture_settings.prompt, picture_settings.negative_prompt)
    html = settings.as_html(picture_settings, words)
    if settings.is_shortened(picture_settings):
        html += status.as_warning(i18n.text("shortened", limit=MAX_CHARACTERS))
    return html


def _shown(html: str, picture_settings: Settings | None = None) -> Updates:
    """Return the updates that show settings that were found, or why there are none."""
    button = gr.Button(visible=picture_settings is not None)
    return {"restored": html, "restore-use": button, "settings": picture_settings}
