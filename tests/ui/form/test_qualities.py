"""The choice of quality, which there is where a LoRA draws in few steps."""

from dataclasses import replace

import gradio as gr
import pytest

from pipeline.facts import Facts, LoraFacts
from tests.models import MODEL
from tests.pages import field_of
from ui import i18n


def qualities(facts: Facts) -> gr.Dropdown:
    return field_of(facts, "recipe")


def test_without_a_recipe_there_is_no_choice() -> None:
    assert not qualities(MODEL).visible
    distilled = replace(MODEL, loras=(LoraFacts("lcm-lora-sdxl", "LCM"),), distilled=True)
    assert not qualities(distilled).visible


@pytest.mark.parametrize(
    ("language", "best", "quick"),
    [
        ("en", "Best", "Quick, 4 steps (SDXL Lightning)"),
        ("de", "Beste", "Schnell, 4 Schritte (SDXL Lightning)"),
        ("fr", "Meilleure", "Rapide, 4 étapes (SDXL Lightning)"),
        ("es", "Máxima", "Rápida, 4 pasos (SDXL Lightning)"),
    ],
)
def test_the_choice_names_steps_and_method(language: str, best: str, quick: str) -> None:
    loras = (LoraFacts("pixel", "Pixel"), LoraFacts("sdxl_lightning_4step_lora", "Lightning"))
    with i18n.speaking(language):
        choice = qualities(replace(MODEL, loras=loras))
    assert choice.visible
    assert choice.choices == [(best, ""), (quick, "lightning-4")]
    assert choice.value == ""
