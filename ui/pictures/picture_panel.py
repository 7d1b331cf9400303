"""The panel under an opened picture: its actions, and its settings.

The browser gets the texts of all pictures in the gallery at once. `pictures.js` shows those of the
picture that is open, found by its file, and actions name that file: whatever order answers arrive
in, the panel belongs to the open picture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import gradio as gr
from gradio.components import Component

from pipeline.facts import Facts
from pipeline.images.metadata import Settings
from serving.generator import Generator, RequestError
from ui import form, i18n, link, settings, status
from ui.app_name import part
from ui.events import AT_ONCE
from ui.pictures import downloads, reveal, saved
from ui.pictures.saved import Picture
from ui.styles import Style, typed

# Puts the key of the picture that the panel shows in the place of the first input, the app's name.
WITH_KEY = f"""(app, ...others) => [
  {part("#picked [data-place]")}?.dataset.key ?? "", ...others
]"""
_PLACE = '<div data-place role="group"></div>'


@dataclass(frozen=True)
class Panel:
    """The components of the panel under the opened picture."""

    column: gr.Column  # mounted with the first pictures, so that the page opens sooner
    texts: gr.HTML  # of all pictures in the gallery, never in view
    use: gr.Button
    new_seed: gr.Button
    variations: gr.Button
    larger: gr.Button
    strength: gr.Slider
    finish: gr.Button
    reveal: gr.Button
    blur: gr.Button


def layout(facts: Facts) -> Panel:
    """Return the panel, which is mounted with the first pictures and seen while one is open."""
    texts = gr.HTML(status.EMPTY, elem_id="picture-texts", padding=False)
    with gr.Column(elem_id="picked", visible=False) as column:
        with gr.Row(elem_id="actions"):
            finish = gr.Button(i18n.FINISH, variant="primary", size="md", elem_id="finish")
            reveal_button = gr.Button(i18n.SHOW_ANYWAY, size="md", elem_id="reveal")
            blur = gr.Button(i18n.HIDE_AGAIN, size="md", elem_id="blur")
            variations = gr.Button(i18n.VARIATIONS, size="md", elem_id="variations")
            larger = gr.Button(i18n.LARGER, size="md", elem_id="larger")
            new_seed = gr.Button(i18n.NEW_SEED, size="md", elem_id="new-seed")
            use = gr.Button(i18n.REUSE, size="md", elem_id="reuse")
            # `drop.js` gives the opened picture to the tools of `ui.start`.
            gr.Button(i18n.USE_PICTURE, size="md", elem_id="use-picture")
        gr.HTML(_PLACE, elem_id="picked-settings", padding=False)
        label = i18n.SETTINGS["variation_strength"].label
        strength = gr.Slider(0.05, 1, 0.25, step=0.05, label=label, elem_id="strength")
    return Panel(
        column,
        texts,
        use,
        new_seed,
        variations,
        larger,
        strength,
        finish,
        reveal_button,
        blur,
    )


def arrows() -> str:
    """Return HTML with buttons that open the picture before and after the open one."""
    return "".join(
        f'<button type="button" data-walk="{steps}" aria-label="{escape(name)}"></button>'
        for steps, name in ((-1, i18n.PREVIOUS), (1, i18n.NEXT))
    )


def connect(
    panel: Panel,
    app: gr.HTML,
    gallery: gr.Gallery,
    pictures: gr.State,
    fields: Sequence[Component],
    files: gr.HTML,
    strip: gr.HTML,
    generator: Generator,
) -> Any:
    """Connect the panel to the gallery; return the event after which to draw with a new seed."""

    def exchange(key: str | None, pictures: list[Picture], files: str | None) -> tuple[Any, ...]:
        return _exchange(pictures, key, files, generator.facts)

    def use(key: str | None, pictures: list[Picture]) -> tuple[Any, ...]:
        return _use(pictures, key, generator.facts)

    def use_anew(key: str | None, pictures: list[Picture]) -> tuple[Any, ...]:
        return _use(list(map(_without_seed, pictures)), key, generator.facts)

    gr.on(
        [panel.reveal.click, panel.blur.click],
        exchange,
        [app, pictures, files],
        [strip, gallery, pictures, panel.texts],
        js=WITH_KEY,
        **AT_ONCE,
    )
    inputs = [app, pictures]
    panel.use.click(use, inputs, [*fields, strip], js=WITH_KEY, **AT_ONCE)
    return panel.new_seed.click(use_anew, inputs, [*fields, strip], js=WITH_KEY, **AT_ONCE)


def texts(pictures: Sequence[Picture], facts: Facts) -> str:
    """Return HTML with the kind, the links and the settings of each picture, by its key."""
    return "".join(_text(picture, facts) for picture in pictures)


def _text(picture: Picture, facts: Facts) -> str:
    fields, _ = picture.fields(facts)
    note = status.note(i18n.FINISH_INFO) if picture.unfinished else status.EMPTY
    links = status.EMPTY if picture.unfinished else downloads.links(picture.path)
    width, height = picture.drawn_size
    query = link.to_query(fields._replace(images=1))
    began = "" if fields.strength is None else "1"
    return (
        f'<article data-key="{escape(picture.key)}" data-kind="{_kind(picture, facts)}"'
        f' data-began="{began}" data-start="{escape(picture.start)}"'
        f' data-ratio="{(width or 1) / (height or 1):.3f}">{note}'
        f'<p class="files">{links}{settings.link_button(query)}</p>'
        f"<details><summary>{escape(i18n.DETAILS)}</summary>"
        f"{settings.as_html(picture.settings, picture.typed, picture.size)}</details></article>"
    )


def _kind(picture: Picture, facts: Facts) -> str:
    """Return words that tell the page's style sheet which actions to offer."""
    kinds = {
        "unfinished": picture.unfinished is not None,
        "blurred": picture.other is not None and picture.blurred,
        "original": picture.other is not None and not picture.blurred,
        "enlargeable": picture.larger_size(facts) is not None,
    }
    return " ".join(kind for kind, applies in kinds.items() if applies)


def apply(
    new_settings: Settings | None, facts: Facts, styles: Mapping[str, Style]
) -> tuple[Any, ...]:
    """Return new values for the page's fields and its strip, of settings from elsewhere."""
    if new_settings is None:
        return (gr.skip(),) * (len(form.Fields._fields) + 1)
    words = typed(styles.values(), new_settings.prompt, new_settings.negative_prompt)
    values, notes = form.as_fields(new_settings, facts, words)
    return (*values.shown(), status.taken_over(notes))


def _use(pictures: Sequence[Picture], key: str | None, facts: Facts) -> tuple[Any, ...]:
    try:
        picture = pictures[saved.find(pictures, key)]
    except RequestError as error:
        unchanged = (gr.skip(),) * len(form.Fields._fields)
        return *unchanged, status.error(i18n.translate(error.message))
    values, notes = picture.fields(facts)
    return (*values.shown(), status.taken_over(notes))


def _exchange(
    pictures: list[Picture], key: str | None, files: str | None, facts: Facts
) -> tuple[Any, ...]:
    try:
        index = saved.find(pictures, key)
        pictures = reveal.exchange(pictures, index, files)
    except RequestError as error:
        return status.error(i18n.translate(error.message)), *(gr.skip(),) * 3
    gallery = gr.Gallery(saved.for_gallery(pictures), selected_index=index)
    return gr.skip(), gallery, pictures, texts(pictures, facts)


def _without_seed(picture: Picture) -> Picture:
    names = ("seed", "variation_seed", "variation_strength", "variation_of")
    new_settings = replace(picture.settings, **dict.fromkeys(names))
    return replace(picture, settings=new_settings)
