"""Settings read back from a picture, or from its text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from gradio.components import Component

from pipeline.errors import MetadataError, PictureError, TooLargeError
from pipeline.facts import Facts
from pipeline.images import metadata
from pipeline.images.metadata import Settings
from serving.generator import MAX_CHARACTERS, Generator, RequestError
from serving.http.limits import MAX_UPLOAD_BYTES
from serving.requests import readers
from ui import i18n, settings, status
from ui.events import AT_ONCE
from ui.form import Visitor
from ui.gradio_compat import uploads
from ui.pictures.picture_panel import apply
from ui.styles import Style, typed

# Largest file: the limit of an upload, less the form that is sent around the file.
MOST_BYTES = MAX_UPLOAD_BYTES - 2**10
T = TypeVar("T")

# Shows the offer while the prompt ends with a line of settings, without a request to the server.
_OFFER = """(prompt) => {
  const last = (prompt ?? "").trim().split("\\n").pop();
  const visible = /^Steps: *\\d.*, *Seed: *\\d/.test(last) && last.split(":").length > 3;
  return { __type__: "update", visible };
}"""
# A file that is refused, and a picture that is no longer there.
_TOLD = """
element.addEventListener("refused", ({ detail }) => trigger("select", detail));
element.addEventListener("removed", () => trigger("clear"));
"""
_EMPTY = '() => ["", { __type__: "update", visible: false }]'


@dataclass(frozen=True)
class Restorer:
    """The components that take a picture or its text, and show the settings found in it."""

    file: gr.File
    text: gr.Textbox
    found: gr.HTML
    use: gr.Button
    settings: gr.State


@dataclass(frozen=True)
class Offer:
    """The components under the prompt that offer to use settings that were pasted into it."""

    row: gr.Row
    use: gr.Button


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


def layout(facts: Facts) -> Restorer:
    """Return a place to drop a picture, and one to paste a text."""
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
    result = gr.HTML(js_on_load=_TOLD, elem_id="restored", padding=False)
    use = gr.Button(i18n.USE_SETTINGS, visible=False, elem_id="restore-use")
    return Restorer(file, text, result, use, gr.State(None))


def layout_offer() -> Offer:
    """Return the offer, which is hidden until settings are pasted into the prompt."""
    with gr.Row(visible=False, elem_id="pasted") as row:
        gr.HTML(status.note(i18n.LOOKS_LIKE_SETTINGS), padding=False)
        use = gr.Button(i18n.USE_THEM, size="sm", elem_id="use-pasted")
    return Offer(row, use)


def connect_offer(
    offer: Offer,
    prompt: gr.Textbox,
    fields: Sequence[Component],
    strip: gr.HTML,
    generator: Generator,
    styles: Mapping[str, Style],
) -> None:
    """Offer to use settings that were pasted into the prompt, and put them into the fields."""

    async def use(sender: gr.Request, text: str | None) -> tuple[Any, ...]:
        try:
            return await _in_turn(
                sender, lambda: apply(from_text(text or ""), generator.facts, styles)
            )
        except RestoreError as error:
            return *(gr.skip() for _ in fields), status.warning(str(error))

    prompt.change(None, prompt, offer.row, js=_OFFER, **AT_ONCE)
    offer.use.click(use, prompt, [*fields, strip], **AT_ONCE)


def connect(
    restorer: Restorer,
    fields: Sequence[Component],
    strip: gr.HTML,
    generator: Generator,
    styles: Mapping[str, Style],
) -> None:
    """Show settings as soon as they are found, and put them into the page's fields on request."""

    async def of_picture(sender: gr.Request, dropped: dict[str, Any] | None) -> tuple[Any, ...]:
        read = partial(_of_picture, dropped, styles)
        # The field is emptied so that the next picture can be dropped there.
        return None, *await _shown_in_turn(sender, read)

    async def of_text(sender: gr.Request, text: str | None) -> tuple[Any, ...]:
        return await _shown_in_turn(sender, partial(_of_text, text, styles))

    shows = [restorer.found, restorer.use, restorer.settings]
    # No preprocessing: Gradio would create an empty file beside the upload, and leave it there.
    restorer.file.upload(
        of_picture, restorer.file, [restorer.file, *shows], preprocess=False, **AT_ONCE
    )
    restorer.found.select(_refused, None, shows, **AT_ONCE)
    restorer.found.clear(None, None, [restorer.found, restorer.use], js=_EMPTY, **AT_ONCE)
    restorer.text.change(of_text, restorer.text, shows, trigger_mode="always_last", **AT_ONCE)
    restorer.use.click(
        lambda values: apply(values, generator.facts, styles),
        restorer.settings,
        [*fields, strip],
        **AT_ONCE,
    )


async def _in_turn(sender: gr.Request, work: Callable[[], T]) -> T:
    """Return what `work` returns, which begins when it is the sender's turn.

    Raises:
        RestoreError: as `work`, or if too many calls of the sender run or wait.
    """
    try:
        return await readers.of_settings().run(Visitor.behind(sender).address, work)
    except RequestError as error:
        raise RestoreError(i18n.translate(error.message)) from error


async def _shown_in_turn(
    sender: gr.Request, read: Callable[[], tuple[Any, ...]]
) -> tuple[Any, ...]:
    try:
        return await _in_turn(sender, read)
    except RestoreError as error:
        return _not_found(str(error))


def _of_picture(dropped: dict[str, Any] | None, styles: Mapping[str, Style]) -> tuple[Any, ...]:
    """Read a picture; `dropped` is Gradio's `FileData` as JSON."""
    path = Path((dropped or {}).get("path") or "")
    label = i18n.RESTORE_ITS_SETTINGS
    html, *rest = _shown(lambda: from_picture(path), label, styles)
    # `start/tools.js` tells these settings from those of a text.
    return html and f"<div data-of-picture>{html}</div>", *rest


def _refused(event: gr.EventData) -> tuple[Any, ...]:
    """Say why the browser did not send a file; the event names the reason."""
    is_large = event._data == "too large"
    return _not_found(i18n.TOO_LARGE_A_PICTURE if is_large else i18n.UNREADABLE_PICTURE)


def _of_text(text: str | None, styles: Mapping[str, Style]) -> tuple[Any, ...]:
    if not (text or "").strip():
        return _nothing()
    return _shown(lambda: from_text(text or ""), i18n.USE_SETTINGS, styles)


def _shown(
    find: Callable[[], Settings | None], label: str, styles: Mapping[str, Style]
) -> tuple[str, Any, Settings | None]:
    try:
        picture_settings = find()
    except RestoreError as error:
        return _not_found(str(error))
    if picture_settings is None:
        return _nothing()
    words = typed(styles.values(), picture_settings.prompt, picture_settings.negative_prompt)
    html = settings.as_html(picture_settings, words)
    if settings.is_shortened(picture_settings):
        html += status.warning(i18n.shortened(MAX_CHARACTERS))
    return html, gr.Button(label, visible=True), picture_settings


def _nothing() -> tuple[str, Any, None]:
    return status.EMPTY, gr.Button(visible=False), None


def _not_found(message: str) -> tuple[str, Any, None]:
    return status.warning(message), gr.Button(visible=False), None
