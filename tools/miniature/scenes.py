"""The contents of training pictures, and the ways in which people ask for them.

A scene is one or two simple things in plain colours on a plain background. The grammar is small and
regular on purpose: a model of a few million parameters has to learn all of it.
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

# One pair for each colour that training never shows: the model has to combine them itself. Steps of
# three spread the pairs evenly over the shapes. Starting at the last shape leaves the pairs that
# people think of first, such as a red heart, in training.
HELD_OUT = frozenset(
    (colour, SHAPES[(3 * i - 1) % len(SHAPES)]) for i, colour in enumerate(COLOURS)
)
TRAINED = frozenset((c, s) for c in COLOURS for s in SHAPES) - HELD_OUT

_OPPOSITE = {
    "above": "below",
    "below": "above",
    "left of": "right of",
    "right of": "left of",
}

# All wordings of a word of the grammar; the first is the plain one.
_SAID = {
    "gray": ("gray", "grey"),
    "purple": ("purple", "violet"),
    "cyan": ("cyan", "turquoise"),
    "circle": ("circle", "disc"),
    "diamond": ("diamond", "rhombus"),
    "cross": ("cross", "plus sign"),
    "ring": ("ring", "donut"),
    "moon": ("moon", "crescent", "crescent moon"),
    "small": ("small", "little", "tiny"),
    "medium": ("medium", "medium-sized"),
    "large": ("large", "big", "huge"),
    "glossy": ("glossy", "shiny"),
    "above": ("above", "over"),
    "below": ("below", "under"),
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
    "inside": ("inside", "in", "within"),
    "centre": ("in the centre", "in the center", "in the middle"),
    "left": ("on the left",),
    "right": ("on the right",),
    "top": ("at the top",),
    "bottom": ("at the bottom",),
}
_MEDIA = ("picture", "drawing", "image", "illustration")
_GLUE = ("a", "an", "and", "of", "on", "with", "background")


@dataclass(frozen=True)
class Thing:
    """One object: a word each from `SHAPES`, `COLOURS` and `SIZES`."""

    shape: str
    colour: str
    size: str

    def __post_init__(self) -> None:
        _require(self.shape, SHAPES, "shape")
        _require(self.colour, COLOURS, "colour")
        _require(self.size, SIZES, "size")


@dataclass(frozen=True)
class Scene:
    """One picture's content.

    Attributes:
        background: a word from `BACKGROUNDS`.
        things: one thing, or two of different colours.
        layout: one thing's position, from `POSITIONS`, or the first thing's relation to the second,
            from `RELATIONS`.
        style: a word from `STYLES`, for every thing in the picture.

    Raises:
        ValueError: if the grammar does not have a word, if two colours are the same, or if nothing
            fits inside the second thing.
    """

    background: str
    things: tuple[Thing, ...]
    layout: str
    style: str

    def __post_init__(self) -> None:
        count = len(self.things)
        if count not in (1, 2):
            raise ValueError(f"a scene has one or two things, not {count}")
        _require(self.background, BACKGROUNDS, "background")
        _require(self.layout, POSITIONS if count == 1 else RELATIONS, "layout")
        _require(self.style, STYLES, "style")
        used = [self.background, *(thing.colour for thing in self.things)]
        if len(set(used)) < len(used):
            raise ValueError(f"background and things must differ in colour: {used}")
        if self.layout == "inside" and self.things[1].shape not in CONTAINERS:
            raise ValueError(f"nothing fits inside a {self.things[1].shape}")

    @property
    def is_held_out(self) -> bool:
        """Whether training must not see this scene."""
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
    things = [_phrase(thing, scene.style) for thing in scene.things]
    if len(things) == 2:
        words = f"{things[0]} {_SAID[scene.layout][0]} {things[1]}"
    elif scene.layout == "centre":
        words = things[0]
    else:
        words = f"{things[0]} {_SAID[scene.layout][0]}"
    return f"{words} on {_article(scene.background)} background"


def caption(scene: Scene, rng: np.random.Generator) -> str:
    """Return one of many wordings of a scene, some of which are incomplete.

    Everything that a caption states is true of the scene.
    """
    if len(scene.things) == 2:
        words = _pair_words(scene, rng)
    elif rng.random() < 0.12:
        return _list_words(scene, rng)
    else:
        words = _single_words(scene, rng)
    if rng.random() < 0.08:
        return words
    background = _said(scene.background, rng)
    frames = (
        f"{words} on {_article(background)} background",
        f"{words}, {background} background",
        f"{_article(background)} background with {words}",
    )
    return frames[rng.choice(3, p=(0.7, 0.18, 0.12))]


def vocabulary() -> list[str]:
    """Return every word that `caption` and `prompt` can use, sorted."""
    plain = (*COLOURS, *SHAPES, *SIZES, *STYLES, *_MEDIA, *_GLUE)
    phrases = (*plain, *(said for ways in _SAID.values() for said in ways))
    return sorted({word for phrase in phrases for word in phrase.split()})


def _require(word: str, known: tuple[str, ...] | dict[str, RGB], what: str) -> None:
    if word not in known:
        raise ValueError(f"unknown {what} {word!r}; known: {', '.join(known)}")


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


def _said(word: str, rng: np.random.Generator) -> str:
    """Return a wording of a word: half of the time the plain one."""
    ways = _SAID.get(word, (word,))
    return ways[0] if rng.random() < 0.5 else _pick(ways, rng)


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _phrase(thing: Thing, style: str) -> str:
    size = "" if thing.size == "medium" else thing.size
    style = "" if style == "flat" else style
    return _article(" ".join(w for w in (size, style, thing.colour, thing.shape) if w))


def _random_phrase(thing: Thing, style: str, rng: np.random.Generator, colour_stated: float) -> str:
    """Return a noun phrase that states size, style and colour by chance.

    `style` may be "".
    """
    words = []
    if rng.random() < (0.3 if thing.size == "medium" else 0.6):
        words.append(_said(thing.size, rng))
    if style:
        words.append(_said(style, rng))
    if rng.random() < colour_stated:
        words.append(_said(thing.colour, rng))
    words.append(_said(thing.shape, rng))
    return _article(" ".join(words))


def _style_in_words(style: str, rng: np.random.Generator) -> tuple[str, str]:
    """Return the words for a style: before "picture of ...", and before the thing."""
    stated = rng.random() < (0.3 if style == "flat" else 0.6)
    if rng.random() < 0.2:
        adjective = _said(style, rng) if stated else ""
        return _article(f"{adjective} {_pick(_MEDIA, rng)}".strip()) + " of ", ""
    return "", style if stated else ""


def _single_words(scene: Scene, rng: np.random.Generator) -> str:
    opening, style = _style_in_words(scene.style, rng)
    words = opening + _random_phrase(scene.things[0], style, rng, colour_stated=0.88)
    if rng.random() < (0.12 if scene.layout == "centre" else 0.85):
        words += f" {_said(scene.layout, rng)}"
    return words


def _pair_words(scene: Scene, rng: np.random.Generator) -> str:
    opening, style = _style_in_words(scene.style, rng)
    first, second = (
        _random_phrase(thing, style if i == 0 else "", rng, colour_stated=0.95)
        for i, thing in enumerate(scene.things)
    )
    relation = scene.layout
    if relation != "inside":
        chance = rng.random()
        if chance < 0.2:
            return f"{opening}{first} and {second}"
        if chance < 0.5:
            first, second, relation = second, first, _OPPOSITE[relation]
    return f"{opening}{first} {_said(relation, rng)} {second}"


def _list_words(scene: Scene, rng: np.random.Generator) -> str:
    """Return a list of keywords: "a red star, big, flat, blue background"."""
    thing = scene.things[0]
    head = f"{_said(thing.colour, rng)} {_said(thing.shape, rng)}"
    items = [_article(head) if rng.random() < 0.5 else head]
    for word in (thing.size, scene.style):
        if rng.random() < 0.5:
            items.append(_said(word, rng))
    if scene.layout != "centre":
        items.append(_said(scene.layout, rng))
    items.append(f"{_said(scene.background, rng)} background")
    return ", ".join(items)
