"""The contents of training pictures, and how they are composed of icons.

A scene is one thing, two things with a relation, or two or three of a kind, on a background.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import numpy as np
from PIL import Image, ImageDraw

from tools.trainer.icons import HANDS, load_icons
from tools.trainer.things import Thing, all_things

RGB = tuple[int, int, int]
T = TypeVar("T")
Box = tuple[float, float, float]  # middle and size, in picture sides

SIDE = 256  # pixels
# Things stand on a grid, so that the UNet's two upper levels see the same pixels wherever they are.
GRID = 16 / SIDE
COLOURS: dict[str, RGB] = {
    "white": (250, 250, 250),
    "black": (28, 28, 32),
    "gray": (150, 152, 158),
    "red": (224, 60, 52),
    "orange": (245, 148, 48),
    "yellow": (250, 214, 70),
    "green": (82, 176, 92),
    "turquoise": (72, 200, 200),
    "blue": (70, 118, 216),
    "purple": (148, 92, 200),
    "pink": (244, 160, 192),
    "brown": (128, 88, 60),
}
# The hues, in degrees, to which things can be turned.
HUES = {"red": 2, "orange": 30, "yellow": 48, "green": 125, "blue": 215, "purple": 275, "pink": 330}
PLACES = ("meadow", "sea", "snow", "desert", "sky")
TIMES = ("day", "night")
FAMILIAR = 160  # things that are learnt first
SIZES = {"small": 80 / SIDE, "medium": 128 / SIDE, "large": 192 / SIDE}
POSITIONS = {
    "centre": (0.5, 0.5),
    "left": (0.27, 0.5),
    "right": (0.73, 0.5),
    "top": (0.5, 0.27),
    "bottom": (0.5, 0.73),
}
RELATIONS = ("above", "below", "left of", "right of")


@dataclass(frozen=True)
class Plain:
    """A background of one colour, or of two, the second at the bottom."""

    colour: str
    to: str = ""


@dataclass(frozen=True)
class Place:
    """A background that shows a place from `PLACES` at a time from `TIMES`."""

    name: str
    time: str


@dataclass(frozen=True)
class Item:
    """A thing in a scene; `colour` is "" for its own colours, otherwise a word from `HUES`."""

    thing: Thing
    colour: str
    size: str


@dataclass(frozen=True)
class Scene:
    """One picture's content.

    Attributes:
        hand: who draws everything in it, a word from `HANDS`.
        background: what is behind the things.
        items: one thing, two different ones, or two or three of a kind.
        layout: one thing's position, from `POSITIONS`; the first thing's relation to the second,
            from `RELATIONS`; or "row".
    """

    hand: str
    background: Plain | Place
    items: tuple[Item, ...]
    layout: str


def random_scene(
    rng: np.random.Generator, things: Sequence[Thing], shares: tuple[float, float, float]
) -> Scene:
    """Draw a random scene; `shares` are those of one thing, of two, and of several of a kind."""
    kind = ("one", "two", "row")[rng.choice(3, p=shares)]
    hand = _any(rng, HANDS)
    first_item = _random_item(rng, _any(rng, things), hand)
    background = _random_background(rng)
    if kind == "two":
        second_thing = first_item.thing
        while second_thing == first_item.thing:
            second_thing = _any(rng, things)
        items = tuple(
            replace(item, size=_size(rng, "medium"))
            for item in (first_item, _random_item(rng, second_thing, hand))
        )
        return Scene(hand, background, items, _any(rng, RELATIONS))
    if kind == "row":
        return Scene(
            hand, background, (replace(first_item, size="small"),) * rng.integers(2, 4), "row"
        )
    position = "centre" if rng.random() < 0.7 else _any(rng, tuple(POSITIONS)[1:])
    item = replace(first_item, size=_size(rng, usual_size(position)))
    return Scene(hand, background, (item,), position)


def make_scene(names: int, plain: bool, rng: np.random.Generator) -> Scene:
    """Draw a random scene of the first `names` things, or of one on a background of one colour.

    Half of the scenes have things from the first `FAMILIAR`.
    """
    shares = (1.0, 0.0, 0.0) if plain else (0.6, 0.25, 0.15)
    things = all_things()[: min(names, FAMILIAR) if rng.random() < 0.5 else names]
    scene = random_scene(rng, things, shares)
    while plain and (isinstance(scene.background, Place) or scene.background.to):
        scene = random_scene(rng, things, shares)
    return scene


def usual_size(layout: str) -> str:
    """Return the size of things that captions need not state."""
    return {"centre": "large", "row": "small"}.get(layout, "medium")


def _size(rng: np.random.Generator, usual: str) -> str:
    return usual if rng.random() < 0.8 else "small"


def _any(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def _random_item(rng: np.random.Generator, thing: Thing, hand: str) -> Item:
    colour = ""
    named_colours = set(COLOURS) & set(" ".join(thing.words).split())
    if rng.random() < 0.3 and not named_colours and hue_of(thing, hand) is not None:
        colour = _any(rng, tuple(HUES))
    return Item(thing, colour, "medium")


def _random_background(rng: np.random.Generator) -> Plain | Place:
    chance = rng.random()
    if chance < 0.45:
        return Plain(_any(rng, tuple(COLOURS)))
    if chance < 0.55:
        top, bottom = rng.permutation(list(COLOURS))[:2]
        return Plain(str(top), str(bottom))
    return Place(_any(rng, PLACES), "night" if rng.random() < 0.3 else "day")


def draw(scene: Scene, rng: np.random.Generator, side: int = SIDE) -> np.ndarray:
    """Draw a scene, uint8 [side, side, 3]; places vary a little."""
    return draw_at(boxes(scene), scene, rng, side)


def draw_at(
    places: Sequence[Box], scene: Scene, rng: np.random.Generator, side: int = SIDE
) -> np.ndarray:
    """Draw a scene with its things in the places that `boxes` returns."""
    picture = _background(scene, rng, side)
    for item, (x, y, size) in zip(scene.items, places, strict=True):
        pixels = max(8, round(size * side))
        icon = _icon(item, scene.hand, pixels)
        left, top = round(x * side - pixels / 2), round(y * side - pixels / 2)
        picture.paste(icon, (left, top), icon)
    return np.asarray(picture)


def boxes(scene: Scene) -> list[Box]:
    """Return the middle and the size of every item, in picture sides."""
    sizes = [SIZES[item.size] for item in scene.items]
    count = len(scene.items)
    if scene.layout == "row":
        places = [
            ((i + 0.5) / count + (0.5 - (i + 0.5) / count) * 0.08, 0.54) for i in range(count)
        ]
    elif count == 1:
        places = [POSITIONS[scene.layout]]
    else:
        places = _beside(scene.layout, *sizes)
    grid_boxes = []
    for place, size in zip(places, sizes, strict=True):
        corner = np.round((np.array(place) - size / 2) / GRID) * GRID
        x, y = np.clip(corner, 0, 1 - size) + size / 2
        grid_boxes.append((float(x), float(y), size))
    return grid_boxes


def _beside(relation: str, first_size: float, second_size: float) -> list[tuple[float, float]]:
    """Return the middles of two things of the given sizes, next to each other."""
    gap = max(0.02, (1 - first_size - second_size) / 3)
    first_middle, second_middle = (
        0.5 - (first_size + second_size + gap) / 2 + first_size / 2,
        0.5 + (first_size + gap + second_size) / 2,
    )
    second_middle -= second_size / 2
    if relation in ("below", "right of"):
        first_middle, second_middle = 1 - first_middle, 1 - second_middle
    if relation in ("above", "below"):
        return [(0.5, first_middle), (0.5, second_middle)]
    return [(first_middle, 0.52), (second_middle, 0.52)]


def _icon(item: Item, hand: str, pixels: int) -> Image.Image:
    icon = Image.fromarray(load_icons()[f"{item.thing.icon} {hand}"])
    icon = icon.resize((pixels, pixels), Image.Resampling.BICUBIC)
    if not item.colour:
        return icon
    hue = hue_of(item.thing, hand)
    assert hue is not None
    return turned(icon, HUES[item.colour] - hue)


def turned(icon: Image.Image, degrees: float) -> Image.Image:
    """Turn the hue of a picture with transparency."""
    hsv = np.array(icon.convert("RGB").convert("HSV"))
    hsv[..., 0] = ((hsv[..., 0].astype(float) + degrees * 256 / 360) % 256).astype(np.uint8)
    picture = Image.fromarray(hsv, "HSV").convert("RGB")
    picture.putalpha(icon.getchannel("A"))
    return picture


@cache
def hue_of(thing: Thing, hand: str) -> float | None:
    """Return the hue of most of a thing, in degrees, or None if it has no single one."""
    icon = load_icons()[f"{thing.icon} {hand}"].astype(float) / 255
    solid_pixels = icon[icon[..., 3] > 0.5][:, :3]
    hsv = np.array(
        Image.fromarray((solid_pixels[None] * 255).astype(np.uint8)).convert("HSV"), float
    )[0]
    is_vivid = (hsv[:, 1] > 90) & (hsv[:, 2] > 90)
    angles = np.radians(hsv[is_vivid, 0] * 360 / 256)
    if is_vivid.mean() < 0.6:
        return None
    mean = np.exp(1j * angles).mean()
    return float(np.degrees(np.angle(mean)) % 360) if abs(mean) > 0.85 else None


def _background(scene: Scene, rng: np.random.Generator, side: int) -> Image.Image:
    if isinstance(scene.background, Plain):
        top = COLOURS[scene.background.colour]
        return _fade(side, side, top, COLOURS[scene.background.to or scene.background.colour])
    return _place(scene.background, scene.hand, rng, side)


# The colours of the sky at the top and at the horizon, and of the ground, near and far.
_DAY: dict[str, tuple[RGB, RGB, RGB, RGB]] = {
    "meadow": ((138, 196, 246), (224, 240, 252), (96, 172, 76), (134, 200, 104)),
    "sea": ((138, 196, 246), (224, 240, 252), (36, 98, 176), (74, 146, 214)),
    "snow": ((176, 206, 232), (226, 236, 244), (250, 252, 255), (228, 238, 248)),
    "desert": ((250, 196, 120), (254, 232, 180), (222, 168, 96), (238, 194, 124)),
    "sky": ((96, 168, 240), (196, 226, 250), (255, 255, 255), (240, 246, 252)),
}
_NIGHT: dict[str, tuple[RGB, RGB, RGB, RGB]] = {
    "meadow": ((20, 24, 66), (48, 58, 112), (26, 76, 52), (38, 96, 66)),
    "sea": ((20, 24, 66), (48, 58, 112), (16, 40, 92), (30, 64, 124)),
    "snow": ((20, 24, 66), (60, 70, 126), (176, 190, 226), (150, 166, 210)),
    "desert": ((20, 24, 66), (72, 58, 110), (120, 88, 84), (142, 106, 96)),
    "sky": ((14, 16, 50), (36, 42, 96), (70, 78, 130), (60, 66, 118)),
}


def _place(place: Place, hand: str, rng: np.random.Generator, side: int) -> Image.Image:
    high, low, near, far = (_NIGHT if place.time == "night" else _DAY)[place.name]
    if hand == "flat":
        high = low = _mix(high, low, 0.5)
        near = far = _mix(near, far, 0.4)
    picture = _fade(side, side, high, low)
    pen = ImageDraw.Draw(picture)
    if place.time == "night":
        for x, y in rng.uniform(0, side, (26, 2)):
            size = rng.uniform(0.6, 1.4) * side / 256
            pen.ellipse((x - size, y - size, x + size, y + size), fill=(244, 244, 216))
    if place.name == "sky":
        if place.time == "day":
            _clouds(picture, hand, rng)
        return picture
    horizon = side * rng.uniform(0.6, 0.68)
    lift = {"sea": 0.0, "desert": 0.05, "snow": 0.035, "meadow": 0.03}[place.name] * side
    x = np.arange(side + 1)
    line = horizon - lift * np.sin(2 * np.pi * (x / side * rng.uniform(0.6, 1.1) + rng.random()))
    mask = Image.new("L", (side, side))
    outline = [(float(a), float(b)) for a, b in zip(x, line, strict=True)]
    ImageDraw.Draw(mask).polygon([*outline, (side, side), (0, side)], fill=255)
    picture.paste(_fade(side, side, far, near, start=horizon / side), (0, 0), mask)
    if hand == "cartoon":
        ImageDraw.Draw(picture).line(outline, fill=_mix(near, (20, 20, 40), 0.35), width=3)
    return picture


def _clouds(picture: Image.Image, hand: str, rng: np.random.Generator) -> None:
    side = picture.width
    pen = ImageDraw.Draw(picture)
    for x, y in ((rng.uniform(0.08, 0.3), rng.uniform(0.1, 0.3)),
                 (rng.uniform(0.7, 0.92), rng.uniform(0.62, 0.88))):  # fmt: skip
        for dx, dy, radius in ((-0.09, 0.02, 0.05), (0, -0.01, 0.075), (0.09, 0.02, 0.055)):
            box = [(x + dx - radius) * side, (y + dy - radius) * side]
            box += [(x + dx + radius) * side, (y + dy + radius) * side]
            pen.ellipse(box, fill=(250, 252, 255))


def _mix(start: RGB, end: RGB, share: float) -> RGB:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(start, end, strict=True))
    return red, green, blue


def _fade(width: int, height: int, top: RGB, bottom: RGB, start: float = 0.0) -> Image.Image:
    """Return a picture that changes from one colour at `start` of its height to another."""
    share = np.clip((np.linspace(0, 1, height) - start) / (1 - start), 0, 1)[:, None]
    rows = np.array(top) + (np.array(bottom) - np.array(top)) * share
    picture = np.broadcast_to(rows[:, None], (height, width, 3))
    return Image.fromarray((picture + 0.5).astype(np.uint8))
