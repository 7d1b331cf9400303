"""The contents of the pictures that the bundled miniature knows, and how people ask for them.

A scene is one or two simple things in plain colours on a plain background. The grammar is small and
regular on purpose: a model of a few million parameters had to learn all of it.
"""

from dataclasses import dataclass

import numpy as np

RGB = tuple[int, int, int]

# No two of these are closer than 30 in CIE L*a*b*, so that their names stay unambiguous in soft,
# shaded or slightly wrong pictures.
COLOURS: dict[str, RGB] = {
    "red": (222, 38, 48),
    "orange": (250, 138, 22),
    "yellow": (252, 218, 50),
    "green": (46, 160, 72),
    "cyan": (64, 206, 214),
    "blue": (38, 84, 214),
    "purple": (140, 50, 172),
    "pink": (250, 150, 196),
    "brown": (118, 70, 38),
    "white": (250, 250, 248),
    "black": (26, 26, 32),
    "gray": (140, 143, 148),
}


def _softened(colour: RGB, amount: float = 0.12) -> RGB:
    red, green, blue = (round(c + amount * (244 - c)) for c in colour)
    return red, green, blue


# The same names with slightly lighter and calmer colours, so that things stand out.
BACKGROUNDS: dict[str, RGB] = {name: _softened(colour) for name, colour in COLOURS.items()}

SHAPES = (
    "circle",
    "square",
    "triangle",
    "star",
    "heart",
    "diamond",
    "cross",
    "ring",
    "moon",
    "hexagon",
)
SIZES = ("small", "medium", "large")
STYLES = ("flat", "outlined", "soft", "glossy")
POSITIONS = ("centre", "left", "right", "top", "bottom")
RELATIONS = ("above", "below", "left of", "right of", "inside")

# Shapes with enough room for another thing inside them.
CONTAINERS = ("circle", "square", "heart", "diamond", "hexagon")

# One pair for each colour that training never showed: the model combines them itself. Steps of
# three spread the pairs evenly over the shapes. Starting at the last shape left the pairs that
# people think of first, such as a red heart, in training.
HELD_OUT = frozenset(
    (colour, SHAPES[(3 * i - 1) % len(SHAPES)]) for i, colour in enumerate(COLOURS)
)
TRAINED = frozenset((c, s) for c in COLOURS for s in SHAPES) - HELD_OUT

# The words for a layout in a prompt, where they are not its own name.
_LAYOUT_WORDS = {
    "centre": "",
    "left of": "to the left of",
    "right of": "to the right of",
    "left": "on the left",
    "right": "on the right",
    "top": "at the top",
    "bottom": "at the bottom",
}


@dataclass(frozen=True)
class Thing:
    """One object: a word each from `SHAPES`, `COLOURS` and `SIZES`."""

    shape: str
    colour: str
    size: str


@dataclass(frozen=True)
class Scene:
    """One picture's content.

    Attributes:
        background: a word from `BACKGROUNDS`.
        things: one thing, or two; they and the background differ in colour.
        layout: one thing's position, from `POSITIONS`, or the first thing's relation to the second,
            from `RELATIONS`. Only things of `CONTAINERS` have another one inside.
        style: a word from `STYLES`, for every thing in the picture.
    """

    background: str
    things: tuple[Thing, ...]
    layout: str
    style: str

    @property
    def is_held_out(self) -> bool:
        """Whether training never showed a thing of this scene."""
        return any((thing.colour, thing.shape) in HELD_OUT for thing in self.things)


def random_scene(rng: np.random.Generator, *, held_out: bool = False) -> Scene:
    """Draw a random scene: one thing in 60 % of cases, two in the others.

    Args:
        rng: the only source of randomness.
        held_out: whether at least one colour/shape pair is from `HELD_OUT`; otherwise none is.
    """
    pairs = sorted(HELD_OUT if held_out else TRAINED)
    while True:
        scene = _scene_with(pairs[rng.integers(len(pairs))], rng)
        if scene.is_held_out == held_out:
            return scene


def prompt(scene: Scene) -> str:
    """Return the plain wording, which states everything but a medium size and a flat style.

    For example "a large red star on a blue background".
    """
    phrases = [_phrase(thing, scene.style) for thing in scene.things]
    phrases.insert(1, _LAYOUT_WORDS.get(scene.layout, scene.layout))
    words = " ".join(filter(None, phrases))
    return f"{words} on {_article(scene.background)} background"


def _pick(words: tuple[str, ...] | list[str], rng: np.random.Generator) -> str:
    return words[rng.integers(len(words))]


def _scene_with(pair: tuple[str, str], rng: np.random.Generator) -> Scene:
    """Draw a random scene in which one thing has the given colour and shape."""
    first, shape = pair
    others = rng.permutation([colour for colour in COLOURS if colour != first])
    background, second = str(others[0]), str(others[1])
    style = _pick(STYLES, rng)
    if rng.random() < 0.6:
        centred = rng.random() < 0.64
        layout = "centre" if centred else _pick(POSITIONS[1:], rng)
        # A large thing fills the picture, so it can only be in the centre.
        size = _pick(SIZES if centred else SIZES[:2], rng)
        return Scene(background, (Thing(shape, first, size),), layout, style)
    relation = _pick(RELATIONS, rng)
    if relation == "inside":
        things = [Thing(shape, first, "small"), Thing(_pick(CONTAINERS, rng), second, "large")]
    else:
        things = [
            Thing(shape, first, _pick(SIZES, rng)),
            Thing(_pick(SHAPES, rng), second, _pick(SIZES, rng)),
        ]
        if rng.random() < 0.5:
            things.reverse()
    return Scene(background, tuple(things), relation, style)


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _phrase(thing: Thing, style: str) -> str:
    size = "" if thing.size == "medium" else thing.size
    style = "" if style == "flat" else style
    return _article(" ".join(w for w in (size, style, thing.colour, thing.shape) if w))
