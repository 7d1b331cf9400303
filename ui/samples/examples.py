"""Example prompts for each kind of model."""

from random import Random

from ui.samples.model_kind import Kind

_MINIATURE = (
    "a large red star on a blue background",
    "a small white circle inside a large red heart",
    "a yellow moon above a green triangle",
    "an outlined orange hexagon on a cyan background",
)
_SDXL_HINT = "a lighthouse on a cliff at dusk, long exposure"
_SDXL = (
    "a lighthouse on a cliff at dusk, mist over the sea",
    "portrait of an old fisherman in a yellow raincoat",
    "a bowl of ramen on a wooden counter, steam rising",
    "an astronaut resting in a meadow of wild flowers",
)

# Words that the miniature was trained on, for a single object: it draws one best.
_LOOKS = ("", "flat ", "soft ", "glossy ")
_SIZES = ("small ", "large ", "")
_COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink", "white", "black")
_SHAPES = ("circle", "square", "triangle", "star", "heart", "diamond", "ring", "moon", "hexagon")

_SUBJECTS = (
    "a lighthouse on a cliff",
    "a fox asleep in tall grass",
    "an old fisherman mending a net",
    "a greenhouse full of orchids",
    "a tram in a narrow street",
    "a bowl of cherries on a window sill",
    "a mountain hut in deep snow",
    "a heron in shallow water",
    "a small bakery before opening",
    "a glass teapot with jasmine tea",
)
_TIMES = ("at dawn", "at dusk", "after rain", "in fog", "in late summer light", "on a winter night")
_VIEWS = ("seen from above", "close up", "wide view", "long exposure", "soft focus", "fine detail")


def examples_for(kind: Kind) -> tuple[str, ...]:
    """Return the prompts that stand in the place of pictures until there are some."""
    return _MINIATURE if kind is Kind.MINIATURE else _SDXL


def hint_for(kind: Kind) -> str:
    """Return the example that an empty prompt field shows."""
    return _MINIATURE[0] if kind is Kind.MINIATURE else _SDXL_HINT


def surprise(kind: Kind, random: Random) -> str:
    """Return a random prompt for something that a model of this kind draws well."""
    if kind is Kind.MINIATURE:
        thing, behind = random.sample(_COLOURS, 2)
        looks, size, shape = map(random.choice, (_LOOKS, _SIZES, _SHAPES))
        return f"{_article(f'{size}{looks}{thing}')} {shape} on {_article(behind)} background"
    subject, time, view = map(random.choice, (_SUBJECTS, _TIMES, _VIEWS))
    return f"{subject} {time}, {view}"


def _article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
