"""Styles: words put around a prompt, and words added to the negative prompt.

The prompt comes first wherever the model reads it equally well there: a text that is too long for
the model then loses words of the style before words of the prompt.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ui.samples.model_kind import Kind

NONE = "(none)"


class Typed(NamedTuple):
    """A visitor's own words, and the name of the style whose words are put around them."""

    prompt: str
    negative: str = ""
    style: str = NONE


@dataclass(frozen=True)
class Style:
    """A name and its templates; `{prompt}` in `prompt` stands for the visitor's words."""

    name: str
    prompt: str
    negative: str = ""

    def apply(self, prompt: str, negative: str) -> tuple[str, str]:
        """Return the prompt and the negative prompt for the model."""
        parts = (negative.strip(), self.negative)
        return self.prompt.replace("{prompt}", prompt), ", ".join(filter(None, parts))

    def remove(self, prompt: str, negative: str) -> tuple[str, str] | None:
        """Undo `apply`: return the visitor's words, or None if the prompts lack the style's."""
        before, after = self.prompt.split("{prompt}")
        words = prompt.removeprefix(before).removesuffix(after)
        added = f", {self.negative}" if self.negative else ""
        negative_words = f", {negative}".removesuffix(added).removeprefix(", ")
        return (
            (words, negative_words)
            if self.apply(words, negative_words) == (prompt, negative)
            else None
        )


_PLAIN = Style(NONE, "{prompt}")

_SDXL = (
    _PLAIN,
    Style(
        "Photograph",
        "{prompt}, candid photograph, natural light, 50mm lens, fine detail, true colours",
        "painting, drawing, illustration, render, plastic skin, oversharpened",
    ),
    Style(
        "Film still",
        "{prompt}, still from a feature film, anamorphic lens, dramatic lighting, film grain",
        "cartoon, drawing, flat lighting, watermark, subtitles",
    ),
    Style(
        "Watercolour",
        "{prompt}, watercolour painting, loose brushwork, wet edges, textured cotton paper",
        "photograph, render, hard outlines, glossy, neon colours",
    ),
    Style(
        "Oil painting",
        "{prompt}, oil painting on canvas, visible brush strokes, rich pigment, warm varnish",
        "photograph, render, flat colours, vector art",
    ),
    Style(
        "Pencil sketch",
        "{prompt}, graphite pencil sketch, cross-hatching, soft shading, white paper",
        "colour, photograph, painting, render",
    ),
    Style(
        "Ink and wash",
        "{prompt}, ink and wash on rice paper, few confident strokes, wide empty space",
        "photograph, busy, saturated colours, render",
    ),
    Style(
        "Anime",
        "{prompt}, hand-drawn anime scene, clean line art, cel shading, painted background",
        "photograph, realistic skin, render, rough sketch",
    ),
    Style(
        "Pixel art",
        "{prompt}, pixel art, 16-bit game scene, limited palette, crisp square pixels",
        "photograph, blurry, smooth gradients, anti-aliasing",
    ),
    Style(
        "Paper cut-out",
        "{prompt}, layered paper cut-out, coloured card, soft shadows between layers, studio light",
        "photograph of a person, glossy, painting, metal",
    ),
    Style(
        "3D render",
        "{prompt}, 3D render, clay-like materials, rounded forms, global illumination",
        "photograph, sketch, grainy, flat shading",
    ),
)

# The miniature was trained on four looks and twelve colours, in this wording.
_MINIATURE = (
    _PLAIN,
    Style("Flat", "a flat picture of {prompt}"),
    Style("Outlined", "an outlined picture of {prompt}"),
    Style("Soft", "a soft picture of {prompt}"),
    Style("Glossy", "a glossy picture of {prompt}"),
    Style("Sticker", "an outlined picture of {prompt} on a white background"),
    Style("Poster", "a flat picture of {prompt} on a yellow background"),
    Style("Chalkboard", "an outlined picture of {prompt} on a black background"),
    Style("Sky", "a soft picture of {prompt} on a cyan background"),
    Style("Candy", "a glossy picture of {prompt} on a pink background"),
    Style("Night", "a glossy picture of {prompt} on a black background"),
)


def styles_for(kind: Kind) -> dict[str, Style]:
    """Return the styles for a model of this kind, by name; the one without words is first."""
    return {style.name: style for style in (_MINIATURE if kind is Kind.MINIATURE else _SDXL)}


def typed(styles: Iterable[Style], prompt: str, negative: str) -> Typed:
    """Return the words that were typed for these prompts, and the style around them.

    If the prompts have the words of several styles, the style with most words is returned.
    """
    longest = sorted(styles, key=lambda style: -len(style.prompt + style.negative))
    removals = ((style.remove(prompt, negative), style.name) for style in longest)
    return next((Typed(*words, name) for words, name in removals if words), Typed(prompt, negative))
