"""A picture's settings in the page, shown as text and copied into the fields."""

import re
from dataclasses import replace

import pytest

from pipeline import metadata
from pipeline.facts import LoraFacts, ModelFacts
from pipeline.images.metadata import Settings
from serving.generator import Request, RequestError
from serving.requests.unfinished import settings_of
from tests.models import MODEL
from tests.pages import MADE_HERE, field_of
from ui import i18n
from ui.form import requests, settings
from ui.form.fields import Fields, Visitor
from ui.samples.model_kind import Kind
from ui.samples.styles import NONE, styles_for


def test_settings_of_a_picture_made_here_are_restored_unchanged():
    fields, notes = settings.as_fields(MADE_HERE, MODEL)
    assert fields == Fields(
        prompt="a star",
        negative_prompt="dull",
        guidance_scale=6.5,
        steps=30,
        randomise=False,
        seed=7,
    )
    assert notes == []


def test_a_variation_is_restored_unchanged():
    varied = replace(MADE_HERE, guidance_until=0.4, variation_strength=0.3, variation_seed=9)
    fields, notes = settings.as_fields(varied, MODEL)
    assert (fields.guidance_until, fields.variation_strength, fields.variation_seed) == (
        0.4,
        0.3,
        9,
    )
    assert notes == []


def test_the_settings_of_a_scheduler_are_restored_unchanged():
    made = replace(MADE_HERE, scheduler="tcd", timesteps="999,499", eta=0.25)
    fields, notes = settings.as_fields(made, MODEL)
    assert (fields.scheduler, fields.timesteps, fields.eta) == ("tcd", "999,499", 0.25)
    assert notes == []
    shown = dict(settings.described(made))
    assert (shown["Sampler"], shown["Timesteps"], shown["Eta"]) == ("TCD", "999,499", "0.25")


def test_settings_missing_from_a_picture_have_their_defaults():
    silent = Settings("a star", "")
    fields, notes = settings.as_fields(silent, MODEL)
    assert fields == Fields(
        prompt="a star",
        style=NONE,
        guidance_scale=5.0,
        steps=25,
        randomise=True,
        seed=0,
        several=False,
        guidance_until=1.0,
        variation_strength=0.0,
        variation_seed=0,
        size="",
    )
    assert notes == []


@pytest.mark.parametrize("eta", [None, 0.0, 0.25])
def test_a_number_that_may_be_none_survives_its_component(eta: float | None):
    fields = Fields(prompt="a star", eta=eta)
    assert fields.shown()["eta"] == ("" if eta is None else f"{eta:g}")
    assert Fields.sent(fields.shown()).eta == eta


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"eta": "much"}, "eta is much; expected 0 to 1"),
        ({"scheduler": "deis"}, "scheduler is deis; here it can only be euler or"),
        ({"timesteps": "5,9"}, "timesteps is 5,9; expected up to 50 falling whole numbers"),
        ({"timestep_spacing": "even"}, "timestep_spacing is even; here it can only be linspace"),
    ],
)
def test_unusable_settings_of_a_scheduler_are_refused(sent: dict, said: str):
    fields = Fields(prompt="a star")._replace(**sent)
    with pytest.raises(RequestError, match=re.escape(said)) as refused:
        requests.to_request(MODEL, styles_for(Kind.SDXL), fields, Visitor("", ""))
    assert refused.value.field == next(iter(sent))


@pytest.mark.parametrize(
    ("made_with", "chosen", "note"),
    [
        ({}, ("", ""), ""),
        ({"sigma_schedule": "karras"}, ("euler", "karras"), ""),
        ({"scheduler": "heun"}, ("heun", ""), ""),
        ({"scheduler": "ddim", "sigma_schedule": "default"}, ("ddim", ""), ""),
        (
            {"scheduler": "ddim", "sigma_schedule": "karras"},
            ("ddim", ""),
            "The sampler DDIM Karras isn’t available here, using DDIM.",
        ),
        (
            {"scheduler": None, "sampler": "DPM2 a Karras"},
            ("", ""),
            "The sampler DPM2 a Karras isn’t available here, using Euler.",
        ),
        (
            {"scheduler": "heun", "schedule_type": "SGM Uniform"},
            ("heun", ""),
            "The sampler Heun SGM Uniform isn’t available here, using Heun.",
        ),
        ({"scheduler": "ddim", "schedule_type": "SGM Uniform"}, ("ddim", ""), ""),
        ({"scheduler": "lcm"}, ("", ""), "The sampler LCM isn’t available here, using Euler."),
    ],
)
def test_a_sampler_is_restored(made_with: dict, chosen: tuple[str, str], note: str):
    here = replace(MODEL, schedulers=("euler", "heun", "ddim"))
    fields, notes = settings.as_fields(replace(MADE_HERE, **made_with), here)
    assert (fields.scheduler, fields.sigma_schedule) == chosen
    assert notes == ([note] if note else [])


def test_an_unfinished_picture_names_the_sampler_that_was_used():
    karras = replace(MODEL, sigma_schedule="karras")
    own, other = Request("a star", seed=7), Request("a star", seed=7, scheduler="ddim")
    found = [settings_of(each, 0, karras) for each in (own, other)]
    assert [(each.scheduler, each.sigma_schedule) for each in found] == [
        ("euler", "karras"),
        ("ddim", None),
    ]
    chosen = [settings.as_fields(each, karras)[0] for each in found]
    assert [(each.scheduler, each.sigma_schedule) for each in chosen] == [("", ""), ("ddim", "")]


def test_an_unfinished_picture_has_the_settings_of_its_recipe():
    model = replace(MODEL, loras=(LoraFacts("lcm-lora-sdxl", "LCM"),))
    found = settings_of(Request("a star", recipe="lcm", num_inference_steps=25), 0, model)
    assert (found.recipe, found.scheduler, found.loras) == (None, "lcm", "lcm-lora-sdxl:1")
    assert (found.num_inference_steps, found.guidance_scale) == (4, 1.0)


def test_an_unfinished_picture_has_the_networks_that_were_used():
    bright = replace(MODEL, vae="bright", unet="quick", quantization="int8")
    found = settings_of(Request("a star"), 0, bright)
    assert (found.vae, found.unet, found.quantization) == ("bright", "quick", "int8")
    assert settings.as_fields(found, bright)[1] == []


def test_an_eta_without_effect_is_left_out():
    fields, notes = settings.as_fields(replace(MADE_HERE, eta=0.67), MODEL)
    assert (fields.eta, notes) == (None, [])


@pytest.mark.parametrize(
    ("name", "written_hash", "model", "said"),
    [
        ("Pony V6", "0123456789", "pony", 0),
        ("Pony V6", "0123456789".upper(), "pony", 0),
        ("other", "0123456789", "pony", 0),  # the file may have another name there
        ("pony", "9999999999", "pony", 0),
        ("pony", None, "pony", 0),
        ("Pony V6", "9999999999", "", 1),
        ("Pony V6", "", "", 1),
    ],
)
def test_a_model_is_restored_by_its_hash_and_then_by_its_name(
    name: str, written_hash: str | None, model: str, said: int
):
    known = ModelFacts(name="pony", scheduler=MODEL.scheduler, hash="0123456789abcdef")
    facts = replace(MODEL, models=(known, ModelFacts(name="other", scheduler=MODEL.scheduler)))
    made = replace(MADE_HERE, model=name, model_hash=written_hash)
    fields, notes = settings.as_fields(made, facts)
    assert fields.model == model
    assert len([note for note in notes if "Pony V6" in note]) == said


def test_the_models_own_schedule_is_not_taken_for_another():
    fields, _ = settings.as_fields(MADE_HERE, replace(MODEL, sigma_schedule="karras"))
    assert (fields.scheduler, fields.sigma_schedule) == ("euler", "default")


def test_an_available_size_is_restored_unchanged():
    model = replace(MODEL, more_sizes=((384, 256),))
    wide = replace(MADE_HERE, width=384)
    fields, notes = settings.as_fields(wide, model)
    assert (fields.size, notes) == ("384x256", [])
    _, (note,) = settings.as_fields(replace(wide, width=512), model)
    assert "is 512 × 256, but the size here is 256 × 256 or 384 × 256." in note


@pytest.mark.parametrize(
    ("changes", "field", "value", "said"),
    [
        ({"num_inference_steps": 150}, "steps", 50, "Steps: 150 isn’t possible here, using 50."),
        ({"num_inference_steps": 0}, "steps", 1, "Steps: 0"),
        ({"guidance_scale": 50.0}, "guidance_scale", 20.0, "Guidance scale: 50.0"),
        ({"guidance_scale": float("inf")}, "guidance_scale", 20.0, "Guidance scale: inf"),
        ({"seed": -1}, "seed", 0, "Seed: -1"),
        ({"guidance_until": 2.0}, "guidance_until", 1.0, "Stop guidance at (%): 200 isn’t"),
        ({"variation_strength": -1.0}, "variation_strength", 0.0, "Variation strength: -1.0"),
        ({"variation_seed": 2**32}, "variation_seed", 2**32 - 1, "Variation seed: 4294967296"),
        ({"seed": 10**400}, "seed", 2**32 - 1, "Seed: 1000"),
        ({"prompt": "x" * 3000}, "prompt", "x" * 2000, "the first 2000 characters"),
        (
            {"width": 512, "height": 768},
            "prompt",
            "a star",
            "512 × 768, but the size here",
        ),
        ({"model": "anything-v3"}, "prompt", "a star", "The picture was made with anything-v3"),
        ({"vae": "bright"}, "prompt", "a star", "VAE was bright. Here it’s the model’s own."),
    ],
)
def test_unusable_settings_are_reported(changes: dict, field: str, value: object, said: str):
    fields, notes = settings.as_fields(replace(MADE_HERE, **changes), MODEL)
    assert getattr(fields, field) == value
    assert len(notes) == 1
    assert said in notes[0]


def test_a_vae_is_compared_where_it_is_known():
    here = replace(MODEL, vae="bright")
    (note,) = settings.as_fields(MADE_HERE, here)[1]
    assert note == "The picture’s VAE was the model’s own. Here it’s bright."
    assert settings.as_fields(replace(MADE_HERE, vae="bright"), here)[1] == []
    assert settings.as_fields(replace(MADE_HERE, model=None), here)[1] == []


def test_a_nan_becomes_the_default():
    fields, notes = settings.as_fields(replace(MADE_HERE, guidance_scale=float("nan")), MODEL)
    assert (fields.guidance_scale, notes) == (5.0, [])


def test_shown_as_text_and_copied_whole():
    hostile = replace(MADE_HERE, prompt='<img src=x onerror="alert(1)">', model="<b>model</b>")
    shown = settings.as_html(hostile)
    assert "<img" not in shown
    assert "<b>" not in shown
    assert "&lt;b&gt;model&lt;/b&gt;" in shown
    size = i18n.SETTINGS["size"].label
    assert f'<dt>{size}</dt><dd dir="auto">256 × 256</dd>' in shown
    assert "Negative prompt: dull" in shown  # in the text to copy
    assert metadata.from_text(metadata.to_text(hostile)) == hostile


def test_long_texts_are_not_shown_in_full():
    long = replace(MADE_HERE, prompt="<" * 900_000, model="\ud800" * 900_000)
    shown = settings.as_html(long)
    assert shown == settings.as_html(settings.bounded(long))
    assert shown.count("&lt;") == 2 * (2000 + 1)  # in the shown and the copied text
    shown.encode()
    assert settings.is_shortened(settings.bounded(long))
    assert settings.bounded(MADE_HERE) == MADE_HERE


@pytest.mark.parametrize(("language", "guidance"), [("en", "7.5"), ("de", "7,5"), ("fr", "7,5")])
def test_numbers_are_shown_as_the_visitor_writes_them(language: str, guidance: str):
    with i18n.speaking(language):
        named = replace(MADE_HERE, prompt="7.5 stars", guidance_scale=7.5, model="sdxl-1.0")
        shown = dict(settings.described(named))
        assert shown[i18n.SETTINGS["guidance_scale"].label] == guidance
        assert shown[i18n.SETTINGS["prompt"].label] == "7.5 stars"
        assert shown[i18n.SETTINGS["model"].label] == "sdxl-1.0"
        assert f'<dd dir="auto">{guidance}</dd>' in settings.as_html(named)


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_a_share_is_shown_in_per_cent(language: str):
    with i18n.speaking(language):
        named = replace(MADE_HERE, guidance_until=0.29, variation_strength=0.25)
        shown = dict(settings.described(named))
        assert shown[i18n.SETTINGS["guidance_until"].label] == "29 %"
        assert shown[i18n.SETTINGS["variation_strength"].label] == i18n.written(0.25)
        finer = dict(settings.described(replace(MADE_HERE, guidance_until=0.125)))
        assert finer[i18n.SETTINGS["guidance_until"].label] == f"{i18n.written(12.5)} %"


@pytest.mark.parametrize(("share", "per_cent"), [(0.0, 0), (0.29, 29), (0.35, 35), (1.0, 100)])
def test_the_page_has_a_share_in_per_cent(share: float, per_cent: int):
    shown = Fields(guidance_until=share).shown()
    assert shown["guidance_until"] == per_cent
    assert Fields.sent(shown) == Fields(guidance_until=share)


def test_the_slider_of_a_share_is_in_per_cent():
    slider = field_of(MODEL, "guidance_until")
    assert (slider.minimum, slider.maximum, slider.step, slider.value) == (0, 100, 5, 100)
    assert slider.label == "Stop guidance at (%)"


@pytest.mark.parametrize("tiny_vae", [None, "taesdxl"])
def test_a_decoder_is_offered_only_where_there_are_two(tiny_vae: str | None):
    model = replace(MODEL, tiny_vae=tiny_vae)
    field = field_of(model, "decoder")
    assert field.visible == (tiny_vae is not None)
    found, _ = settings.as_fields(Settings("a star", decoder="tiny"), model)
    assert found.decoder == ("tiny" if tiny_vae else "")


@pytest.mark.parametrize("refiner", [None, "org/refiner"])
def test_the_share_of_a_refiner_is_asked_for_only_where_there_is_one(refiner: str | None):
    model = replace(MODEL, refiner=refiner)
    field = field_of(model, "denoising_end")
    assert field.visible == (refiner is not None)
    found, notes = settings.as_fields(Settings("a star", denoising_end=0.7), model)
    assert found.denoising_end == (0.7 if refiner else None)
    note = "Refiner takes over at: there is no refiner here. Leave this setting out."
    assert (note in notes) == (refiner is None)


@pytest.mark.parametrize("step_cache", [False, True])
def test_step_caching_is_offered_only_where_there_is_a_step_cache(step_cache: bool):
    model = replace(MODEL, step_cache=step_cache)
    slider = field_of(model, "cache_interval")
    assert (slider.visible, slider.value, slider.maximum) == (step_cache, 1, 5)
    found, notes = settings.as_fields(Settings("a star", cache_interval=3), model)
    label = i18n.SETTINGS["cache_interval"].label
    assert found.cache_interval == (3 if step_cache else 1)
    assert notes == ([] if step_cache else [f"{label}: 3 isn’t possible here, using 1."])


def test_missing_settings_are_not_shown():
    silent = Settings("a star", "")
    assert settings.described(silent) == [(i18n.SETTINGS["prompt"].label, "a star")]
