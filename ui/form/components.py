"""The components of the page's fields, which follow what can be drawn.

The declarations in `pipeline.request` give the limits of numbers.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

import gradio as gr
from gradio.components import Component

from pipeline.facts import Facts
from pipeline.request import SETTINGS, VALUES
from pipeline.schedulers.recipes import RECIPE_SETS
from pipeline.setting_kinds import (
    Choice,
    Loras,
    Named,
    Number,
    OwnNumber,
    Seed,
    Setting,
    Timesteps,
    Variations,
    Whole,
)
from serving.generator import MAX_CHARACTERS, Generator
from serving.messages import Code, Message, Param
from ui import i18n, looks, start, status
from ui.form.fields import ALL, DEFAULTS, FIELDS, USUAL, Fields, as_shown, highest, label_of
from ui.relay import of_app
from ui.samples.styles import NONE, Style
from ui.wiring import Call, Updates, Wiring

# Time between two checks for sizes that are not available yet.
POLL_SECONDS = 5.0

# Fields whose values are not used beside a recipe, by their names.
_SET_BY_RECIPE = [
    setting.link
    for setting in VALUES
    if setting.name in RECIPE_SETS and not FIELDS[setting.name].if_set
]


def create(wiring: Wiring, facts: Facts, styles: Mapping[str, Style]) -> None:
    """Create the components of all fields but the prompt; `ui.page.page` lays them out."""
    words = i18n.SETTINGS
    style_choices = [(i18n.STYLES[name], name) for name in styles]
    max_images = facts.images_per_request
    count_choices = [*((str(i), i) for i in range(1, max_images)), (str(max_images), ALL)]
    for name, choices, value, elem_id in (
        ("style", style_choices, NONE, "style"),
        ("size", _sizes(facts), USUAL, "size"),
        ("images", count_choices, ALL, "count"),
    ):
        options = {"label": words[name].label, "elem_id": elem_id, "render": False}
        wiring.add(name, gr.Radio(choices, value=value, **options))
    label, info = words["negative_prompt"]
    options = {"label": label, "info": info, "elem_id": "negative", "render": False}
    wiring.add("negative_prompt", gr.Textbox(max_length=MAX_CHARACTERS, **options))
    for name in FIELDS:
        wiring.add(SETTINGS[name].link, _component(SETTINGS[name], facts))
    for name in ("randomise", "several"):
        label, info = words[name]
        options = {"label": label, "info": info or None, "elem_id": name, "render": False}
        wiring.add(name, gr.Checkbox(DEFAULTS[name], **options))
    wiring.add("timer", gr.Timer(POLL_SECONDS, active=bool(facts.coming_sizes), render=False))


def _component(setting: Setting, facts: Facts) -> Component:
    model_setting, field = setting.for_model(facts), FIELDS[setting.name]
    if setting.name in start.FIELDS:
        return start.field(setting)
    options: dict[str, Any] = {
        "label": label_of(setting),
        "info": i18n.SETTINGS[setting.name].info,
        "elem_id": setting.flag,
        "elem_classes": ["if-set"] if field.if_set else None,
        "render": False,
    }
    if isinstance(model_setting, Variations | Timesteps):
        example, max_length = model_setting.example, MAX_CHARACTERS
        return gr.Textbox(
            model_setting.default, placeholder=example, max_length=max_length, **options
        )
    if isinstance(model_setting, Choice) and field.if_set:  # the style sheet finds empty fields
        return gr.Textbox(
            model_setting.default, placeholder=", ".join(model_setting.choices), **options
        )
    if isinstance(model_setting, Choice):
        # Without a filter, touching it opens no keyboard.
        options |= {
            "filterable": False,
            "visible": len(model_setting.choices) >= model_setting.least,
        }
        return gr.Dropdown(
            _choices(model_setting, facts), value=DEFAULTS[model_setting.link], **options
        )
    if isinstance(model_setting, Loras):
        return looks.field(facts)
    # Gradio neither checks bounds nor rounds here, so that the page can report such a number.
    if isinstance(model_setting, Seed):
        return gr.Number(setting.default, **options)
    if isinstance(model_setting, OwnNumber):  # Gradio's own component for numbers has 0 for none
        options["placeholder"] = i18n.text("automatic", own="")
        options["visible"] = model_setting.low < model_setting.high
        return gr.Textbox("", max_length=20, **options)
    if isinstance(model_setting, Number):
        options["visible"] = model_setting.low < model_setting.high
        # Gradio refuses a slider with a single value, even a hidden one.
        maximum = highest(model_setting if options["visible"] else cast(Number, setting))
        limits = model_setting.low, maximum, model_setting.default, field.step
        low, high, value, step = (as_shown(model_setting, number) for number in limits)
        return gr.Slider(low, high, value, step=step, **options)
    raise TypeError(f"{setting.name} has no component")


def _choices(setting: Choice, facts: Facts) -> list[tuple[str, str]]:
    """Return the texts and the values of a choice, the model's own first."""
    if setting.name == "recipe":
        return _qualities(facts)
    texts = [(setting.texts.get(name, name), name) for name in setting.choices]
    if setting.default:
        return texts
    if isinstance(setting, Named):
        titles = {model.name: model.title for model in facts.models}
        model_choices = ((titles.get(name) or name, name) for name in setting.choices[1:])
        return [(facts.name, ""), *model_choices]
    scheduler = setting.in_text(facts.scheduler) if setting.name == "scheduler" else ""
    return [(i18n.text("automatic", own=scheduler), ""), *texts]


def _qualities(facts: Facts) -> list[tuple[str, str]]:
    """Return the texts and the names of the recipes, after the choice of none."""
    recipe_choices = [
        (i18n.text("quick", steps=recipe.steps[0], title=recipe.title), recipe.name)
        for recipe in facts.recipes
    ]
    return [(i18n.BEST, ""), *recipe_choices]


def hide_unused(wiring: Wiring) -> None:
    """Hide the fields that a recipe sets while one is chosen; they keep their values."""
    js = f"""({{ recipe }}) => Object.fromEntries({_SET_BY_RECIPE}.map((name) => (
      [name, {{ __type__: "update", visible: !recipe }}])))"""
    wiring.on("recipe.change", reads=["recipe"], updates=_SET_BY_RECIPE, js=js)


def connect(wiring: Wiring, generator: Generator) -> None:
    """Offer each size as soon as pictures of it can be drawn; a chip opens the choice.

    The models, the recipes and the LoRAs are those of the moment at which the page is opened. They
    are sent only if they differ from those of the layout. The choice of a model also sets the
    model's own number of steps and guidance scale.
    """
    layout_facts = generator.facts

    def sizes(_: Call) -> Updates:
        model = generator.facts
        if (model.sizes, model.coming_sizes) == (layout_facts.sizes, layout_facts.coming_sizes):
            return {}
        return {
            "size": gr.Radio(choices=_sizes(model)),
            "timer": gr.Timer(active=bool(model.coming_sizes)),
            "chip-size": gr.Button(visible=len(model.sizes) > 1),
        }

    def models(name: str) -> Updates:
        """Return the choice of models, with the one that the tab kept if it is still there."""
        model = generator.facts
        choices = _choices(cast(Named, SETTINGS["model"].for_model(model)), model)
        is_there = name == "" or name in model.model_names
        value = name if is_there else ""
        updates = {"model": gr.Dropdown(choices=choices, value=value, visible=len(choices) > 1)}
        if is_there:
            return updates
        params: dict[str, Param] = {"field": "model", "value": name}
        params["choices"] = [*model.model_names]
        text = i18n.translate(Message(Code.UNKNOWN_CHOICE, params))
        return updates | {"status": status.warning(text)}

    def opened(call: Call) -> Updates:
        model, updates, name = generator.facts, {**sizes(call)}, call.values["model"] or ""
        if name or model.models != layout_facts.models:
            updates |= {**models(name), **_own_sizes(model.for_known(name), call.values["size"])}
        if model.loras != layout_facts.loras:
            recipes = gr.Dropdown(choices=_qualities(model), visible=bool(model.recipes))
            updates |= {"recipe": recipes, "loras": looks.offered(model)}
        return updates

    def usual(call: Call) -> Updates:
        facts = generator.facts.for_known(call.values["model"] or "")
        updates = {"steps": facts.num_inference_steps, "guidance_scale": facts.guidance_scale}
        if not generator.facts.others:
            return updates
        return updates | _own_sizes(facts, call.values["size"])

    of_sizes = "size", "timer", "chip-size"
    wiring.on("timer.tick", sizes, updates=of_sizes)
    reads = "model", "size"
    wiring.on(
        "page.load",
        opened,
        reads=reads,
        updates=[*of_sizes, "model", "recipe", "loras", "status"],
    )
    wiring.on("model.input", usual, reads=reads, updates=["steps", "guidance_scale", "size"])


def _own_sizes(facts: Facts, size: Any) -> dict[str, Any]:
    """Return the choice of a model's sizes, with `size` if it is one of them."""
    value = size if size in facts.size_names[1:] else USUAL
    return {"size": gr.Radio(choices=_sizes(facts), value=value)}


def _sizes(facts: Facts) -> list[tuple[str, str]]:
    own_size, *more_sizes = facts.sizes
    return [
        (i18n.size(own_size), USUAL),
        *zip(map(i18n.size, more_sizes), facts.size_names[1:], strict=True),
    ]


# --- values that the tab keeps ---

_TYPES = {str: "string", bool: "boolean", int: "number", float: "number"}  # the browser's
_KEEP = '(fields) => ({ relay: { __type__: "update", props: { draft: fields } } })'


def connect_draft(wiring: Wiring, facts: Facts, styles: Mapping[str, Style]) -> None:
    """Put the kept values into the fields when the page is opened, and keep every change.

    Only the browser handles these events, so that nobody can type before the values are there.
    Then the relay may tell the server of other values that the tab kept.
    """
    names = Fields._fields
    updates = [*names, "relay"]
    wiring.on("page.load", reads=["relay"], updates=updates, js=_restore(facts, styles))
    # Fields out of sight do not report that the page has filled them; the messages tell of that.
    changes = " ".join(f"{name}.change" for name in (*names, "status"))
    wiring.on(changes, reads=names, updates=["relay"], js=_KEEP)


def _restore(facts: Facts, styles: Mapping[str, Style]) -> str:
    """Return the browser's function that puts kept values into the fields that can take them.

    The tab may have kept the values from an older version of the page, or for another model.
    """
    return f"""({{ relay }}) => {{
      const fits = (value, {{ type, among, low, high, whole }}) => among
        ? among.includes(value)
        : typeof value === type && !(value < low || value > high)
          && !(value.length > {MAX_CHARACTERS}) && !(whole && !Number.isInteger(value));
      const kept = {of_app("kept.draft")};
      const fields = Object.entries({json.dumps(_possible(facts, styles))})
        .filter(([name, possible]) => fits(kept?.[name], possible))
        .map(([name]) => [name, kept[name]]);
      const opened = {{ __type__: "update", props: {{ opened: true }} }};
      return {{ ...Object.fromEntries(fields), relay: opened }};
    }}"""


def _possible(facts: Facts, styles: Mapping[str, Style]) -> dict[str, dict[str, Any]]:
    """Return which values each field can have."""
    models = facts, *facts.others
    sizes = [name for model in models for name in model.size_names]
    sizes += map("{0[0]}x{0[1]}".format, facts.coming_sizes)
    numbers = [
        setting.for_model(facts)
        for setting in VALUES
        if isinstance(setting, Number) and not isinstance(setting, OwnNumber)
    ]
    return {
        **{
            name: {"type": _TYPES[type(default)] if default is not None else "string"}
            for name, default in Fields()._asdict().items()
        },
        **{
            setting.link: {
                "type": "number",
                "low": as_shown(setting, setting.low),
                "high": as_shown(setting, highest(setting)),
                "whole": isinstance(setting, Whole),
            }
            for setting in numbers
        },
        **{
            setting.link: {"among": ["", *setting.for_model(facts).choices]}
            for setting in VALUES
            # Models come and go; `connect` checks the one that was kept.
            if isinstance(setting, Choice) and not isinstance(setting, Named)
        },
        "style": {"among": [*styles]},
        "size": {"among": [USUAL, *sizes]},
        "images": {"among": [ALL, *range(1, facts.images_per_request)]},
    }
