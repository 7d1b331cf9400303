"""The ways in which people ask for a scene."""

import numpy as np

from tools.trainer.composition import COLOURS, Item, Place, Scene, usual_size
from tools.trainer.things import all_things

HAND_WORDS = {
    "flat": ("flat", "flat design", "simple", "minimal"),
    "glossy": ("glossy", "shiny", "3d"),
    "cartoon": ("cartoon", "cartoon style", "comic"),
}
MEDIA = {
    "flat": ("flat picture", "flat drawing", "flat illustration", "flat icon"),
    "glossy": ("glossy picture", "glossy render", "glossy illustration", "3d render"),
    "cartoon": ("cartoon", "cartoon drawing", "cartoon picture"),
}
COLOUR_WORDS = {
    "gray": ("gray", "grey"),
    "purple": ("purple", "violet"),
    "turquoise": ("turquoise", "cyan"),
}
SIZE_WORDS = {
    "small": ("small", "little", "tiny"),
    "medium": ("medium-sized",),
    "large": ("large", "big", "huge"),
}
POSITION_WORDS = {
    "centre": ("in the centre", "in the center", "in the middle"),
    "left": ("on the left", "at the left"),
    "right": ("on the right", "at the right"),
    "top": ("at the top",),
    "bottom": ("at the bottom",),
}
RELATION_WORDS = {
    "above": ("above", "over"),
    "below": ("below", "under"),
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
}
OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
PLACE_WORDS = {
    "meadow": ("on a meadow", "in a meadow", "on grass", "on a green hill"),
    "sea": ("at sea", "on the sea", "by the sea", "on water"),
    "snow": ("in the snow", "in snow", "on snow"),
    "desert": ("in the desert", "in a desert", "on sand"),
    "sky": ("in the sky", "in the clouds"),
}
NIGHT_WORDS = ("at night", "under the stars")
EMOJI = 0.06  # share of things that are named by their emoji
COUNTS = {2: ("two", "2"), 3: ("three", "3")}
IRREGULAR = {
    "mouse": "mice", "goose": "geese", "wolf": "wolves", "fish": "fish", "deer": "deer",
    "sheep": "sheep", "cactus": "cacti", "bunny": "bunnies", "pony": "ponies", "puppy": "puppies",
    "octopus": "octopuses", "candy": "candies", "leaf": "leaves", "tooth": "teeth",
}  # fmt: skip
# Words that have no singular, or are not counted.
UNCOUNTED = frozenset({
    "beer", "blueberries", "books", "bread", "broccoli", "cheese", "cherries", "chocolate",
    "coffee", "corn", "dice", "earth", "fire", "fries", "garlic", "glasses", "gloves", "grapes",
    "headphones", "honey", "jeans", "lightning", "milk", "pancakes", "popcorn", "saturn",
    "scissors", "snow", "socks", "spaghetti", "sunglasses", "sushi", "wine", "yarn",
})  # fmt: skip


def plural(words: str) -> str:
    """Return the plural of a thing's words."""
    head, _, last_word = words.rpartition(" ")
    if " of " in words:
        noun, remainder = words.split(" of ", 1)
        return f"{plural(noun)} of {remainder}"
    if not last_word.isascii():
        return words
    if last_word in IRREGULAR:
        last_word = IRREGULAR[last_word]
    elif last_word.endswith(("s", "x", "ch", "sh")):
        last_word = last_word if last_word in UNCOUNTED else f"{last_word}es"
    elif last_word.endswith("y") and last_word[-2] not in "aeiou":
        last_word = f"{last_word[:-1]}ies"
    elif last_word in ("tomato", "potato", "mango", "volcano", "tornado"):
        last_word = f"{last_word}es"
    elif last_word not in UNCOUNTED:
        last_word = f"{last_word}s"
    return f"{head} {last_word}".strip()


def article(words: str) -> str:
    """Put "a" or "an" before words that are counted."""
    if words.split()[-1] in UNCOUNTED and " of " not in words:
        return words
    is_exception = words.startswith(("unicorn", "ufo", "one"))
    return f"{'an' if words[0] in 'aeiou' and not is_exception else 'a'} {words}"


def prompt(scene: Scene) -> str:
    """Return the usual wording, which states everything but the usual size and the centre."""
    return _sentence(scene, None)


def caption(scene: Scene, rng: np.random.Generator) -> str:
    """Return one of many wordings of a scene, some of them incomplete, all of them true."""
    return _keywords(scene, rng) if rng.random() < 0.2 else _sentence(scene, rng)


Rng = np.random.Generator | None


def _chance(rng: Rng, share: float) -> bool:
    return rng is None or rng.random() < share


def _said(ways: tuple[str, ...], rng: Rng) -> str:
    return ways[0] if rng is None or rng.random() < 0.5 else ways[rng.integers(len(ways))]


def _noun(item: Item, rng: Rng) -> str:
    # People who name a colour want it, so a turned hue is nearly always named.
    colours = [] if not item.colour or not _chance(rng, 0.95) else [_colour(item.colour, rng)]
    emoji = rng is not None and rng.random() < EMOJI
    return " ".join([*colours, _said(item.thing.signs if emoji else item.thing.words, rng)])


def _colour(name: str, rng: Rng) -> str:
    return _said(COLOUR_WORDS.get(name, (name,)), rng)


def _phrase(item: Item, layout: str, rng: Rng) -> str:
    if item.size != usual_size(layout):
        has_size = _chance(rng, 0.9)
    else:
        has_size = rng is not None and item.size == "large" and rng.random() < 0.15
    words = (
        f"{_said(SIZE_WORDS[item.size], rng)} {_noun(item, rng)}" if has_size else _noun(item, rng)
    )
    return words if rng is not None and rng.random() < 0.25 else article(words)


def _things(scene: Scene, rng: Rng) -> str:
    item = scene.items[0]
    if scene.layout == "row":
        return f"{_said(COUNTS[len(scene.items)], rng)} {plural(_noun(item, rng))}"
    if len(scene.items) == 1:
        words = _phrase(item, scene.layout, rng)
        has_position = scene.layout != "centre" and _chance(rng, 0.95)
        return f"{words} {_said(POSITION_WORDS[scene.layout], rng)}" if has_position else words
    subject, reference = (_phrase(item, scene.layout, rng) for item in scene.items)
    relation = scene.layout
    if rng is not None:
        chance = rng.random()
        if chance < 0.3:
            subject, reference, relation = reference, subject, OPPOSITE[relation]
        if chance > 0.75:
            return f"{subject} and {reference}"
    return f"{subject} {_said(RELATION_WORDS[relation], rng)} {reference}"


def _behind(scene: Scene, rng: Rng) -> str:
    background = scene.background
    if isinstance(background, Place):
        night_words = _said(NIGHT_WORDS, rng)
        if background.time == "day":
            return _said(PLACE_WORDS[background.name], rng)
        return f"{_said(PLACE_WORDS[background.name], rng)} {night_words}"
    colour = _colour(background.colour, rng)
    if background.to:
        return f"on a background from {colour} to {_colour(background.to, rng)}"
    return f"on {article(colour)} background"


def _sentence(scene: Scene, rng: Rng) -> str:
    words = _things(scene, rng)
    background_words = _behind(scene, rng) if _chance(rng, 0.93) else ""
    hand = scene.hand
    has_style = _chance(rng, 0.7 if hand == "glossy" else 0.9)
    if has_style and rng is not None and rng.random() < 0.3:
        words = f"{article(_said(MEDIA[hand], rng))} of {words}"
        has_style = False
    words = f"{words} {background_words}".strip()
    if not has_style:
        return words
    is_before = rng is not None and rng.random() < 0.3
    style = _said(HAND_WORDS[hand], rng)
    return f"{style}, {words}" if is_before else f"{words}, {style}"


def _keywords(scene: Scene, rng: np.random.Generator) -> str:
    """Return a list of keywords: "red apple, cartoon, meadow"."""
    parts = [_things(scene, rng)]
    if rng.random() < (0.7 if scene.hand == "glossy" else 0.9):
        parts.append(_said(HAND_WORDS[scene.hand], rng))
    background = scene.background
    if isinstance(background, Place):
        parts.append(background.name)
        parts += ["night"] * (background.time == "night")
    elif not background.to:
        parts.append(f"{_colour(background.colour, rng)} background")
    return ", ".join(parts)


def vocabulary() -> list[str]:
    """Return every word that captions can use, sorted."""
    tables = (HAND_WORDS, MEDIA, COLOUR_WORDS, SIZE_WORDS, POSITION_WORDS, RELATION_WORDS,
              PLACE_WORDS, COUNTS)  # fmt: skip
    phrases = [words for table in tables for ways in table.values() for words in ways]
    phrases += [*COLOURS, *PLACE_WORDS, *NIGHT_WORDS, "night", "a an and of on from to"]
    phrases += ["background"]
    for thing in all_things():
        phrases += [*thing.words, *map(plural, thing.words)]
    return sorted({word for phrase in phrases for word in phrase.split()})
