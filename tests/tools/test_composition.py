"""Scenes, their captions and their labels, composed of stand-ins for the icons."""

import re
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest

from tools.trainer import composition
from tools.trainer.captions import article, caption, plural, prompt, vocabulary
from tools.trainer.composition import (
    HUES,
    SIDE,
    Item,
    Place,
    Plain,
    Scene,
    boxes,
    draw,
    random_scene,
)
from tools.trainer.icons import HANDS
from tools.trainer.judge import BEHIND, NAMES, NOTHING, UNSURE, Seen, labels_of, score
from tools.trainer.reader import ANSWERS, answers
from tools.trainer.things import all_things
from tools.trainer.train_unet import noised

THINGS = {thing.icon: thing for thing in all_things()}


@pytest.fixture(autouse=True)
def icons(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Draw every thing as a red square."""
    square = np.zeros((64, 64, 4), np.uint8)
    square[...] = (220, 30, 30, 255)
    drawn = {f"{icon} {hand}": square for icon in THINGS for hand in HANDS}
    monkeypatch.setattr(composition, "load_icons", lambda: drawn)
    composition.hue_of.cache_clear()
    yield
    composition.hue_of.cache_clear()


def scenes(count: int) -> list[Scene]:
    rng = np.random.default_rng(5)
    return [random_scene(rng, all_things(), (0.4, 0.3, 0.3)) for _ in range(count)]


def one(icon: str, colour: str = "", size: str = "large", **fields: object) -> Scene:
    item = Item(THINGS[icon], colour, size)
    values = {"hand": "flat", "background": Plain("blue"), "items": (item,), "layout": "centre"}
    return Scene(**(values | fields))  # type: ignore[arg-type]


def test_names_are_different_things():
    words = [word for thing in all_things() for word in thing.words]
    assert len(THINGS) == len(all_things())
    assert not {word for word in words if words.count(word) > 1}


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        (one("fox"), "a fox on a blue background, flat"),
        (
            one("red-apple", size="small", hand="glossy"),
            "a small apple on a blue background, glossy",
        ),
        (one("fox", background=Place("snow", "day")), "a fox in the snow, flat"),
        (
            one("rocket", "green", "medium", background=Place("sea", "night"), layout="left"),
            "a green rocket on the left at sea at night, flat",
        ),
        (
            one("fox", items=(Item(THINGS["fox"], "", "small"),) * 3, layout="row"),
            "three foxes on a blue background, flat",
        ),
        (
            one(
                "cat",
                items=(Item(THINGS["cat"], "", "small"), Item(THINGS["bed"], "red", "medium")),
                layout="above",
                background=Plain("pink", "white"),
            ),
            "a small cat above a red bed on a background from pink to white, flat",
        ),
    ],
)
def test_prompts_state_everything(scene: Scene, words: str):
    assert prompt(scene) == words


@pytest.mark.parametrize(
    ("words", "several"),
    [
        ("fox", "foxes"),
        ("wolf", "wolves"),
        ("strawberry", "strawberries"),
        ("monkey", "monkeys"),
        ("glass of milk", "glasses of milk"),
        ("grapes", "grapes"),
        ("tomato", "tomatoes"),
        ("pine tree", "pine trees"),
    ],
)
def test_plurals(words: str, several: str):
    assert plural(words) == several


def test_articles():
    said = [article(words) for words in ("fox", "apple", "unicorn", "ufo", "corn", "bowl of corn")]
    assert said == ["a fox", "an apple", "a unicorn", "a ufo", "corn", "a bowl of corn"]


def test_captions_use_known_words_alone():
    known = {word for said in vocabulary() for word in re.findall("[a-z]+", said)}
    rng = np.random.default_rng(0)
    for scene in scenes(1000):
        for said in (prompt(scene), caption(scene, rng)):
            assert set(re.findall("[a-z]+", said)) <= known, said


def test_answers_are_what_was_drawn():
    scene = one("cat", "red", items=(Item(THINGS["cat"], "red", "small"),) * 2, layout="row")
    said = [words[i] for words, i in zip(ANSWERS, answers(scene), strict=True)]
    assert said == ["flat", "blue", "", "", "", "2 in a row", "cat", "red", "small", "", "", ""]


def test_opposite_relations_have_the_same_answers():
    cat, bed = (Item(THINGS[icon], "", "small") for icon in ("cat", "bed"))
    one_way = one("cat", items=(cat, bed), layout="below")
    other = one("cat", items=(bed, cat), layout="above")
    assert answers(one_way) == answers(other)


def test_things_are_drawn_in_their_places_and_hues():
    for colour, channel in (("red", 0), ("green", 1), ("blue", 2)):
        scene = one("fox", colour, size="medium", background=Plain("black"), layout="left")
        picture = draw(scene, np.random.default_rng(1)).astype(int)
        ((x, y, size),) = boxes(scene)
        middle = picture[round(y * SIDE), round(x * SIDE)]
        assert middle.argmax() == channel
        assert picture[round(y * SIDE), round((x + 0.6 * size) * SIDE)].max() < 60


def test_every_scene_can_be_drawn_and_labelled():
    rng = np.random.default_rng(2)
    for scene in scenes(60):
        assert draw(scene, rng).shape == (SIDE, SIDE, 3)
        places = boxes(scene)
        assert all(
            at - size / 2 >= 0 and at + size / 2 <= 1 for x, y, size in places for at in (x, y)
        )
        labels = labels_of(scene, places)
        named = set(labels.things.ravel().tolist()) - {NOTHING, UNSURE}
        assert {NAMES[i] for i in named} == {item.thing.icon for item in scene.items}
        assert 0 <= labels.top < len(BEHIND)
        hues = set(labels.hues.ravel().tolist()) - {UNSURE}
        assert {[*HUES, ""][i] for i in hues} == {item.colour for item in scene.items}


def test_a_velocity_gives_back_what_it_was_made_of():
    rng = np.random.default_rng(0)
    latents, noise = (jnp.asarray(rng.normal(size=(3, 4, 4, 4)), jnp.float32) for _ in range(2))
    sigma = jnp.asarray([0.03, 1.0, 14.6])[:, None, None, None]
    noisy, velocity = noised(latents, noise, sigma)
    scale = jnp.sqrt(sigma**2 + 1)
    np.testing.assert_allclose((noisy - sigma * velocity) / scale, latents, atol=1e-5)
    np.testing.assert_allclose((sigma * noisy + velocity) / scale, noise, atol=1e-5)


def as_seen(scene: Scene) -> Seen:
    """Return the answers of a judge that is always right."""
    labels = labels_of(scene, boxes(scene))
    things = np.where(labels.things == UNSURE, NOTHING, labels.things)
    behind = BEHIND[labels.top], BEHIND[labels.bottom]
    return Seen(things, labels.hues, HANDS[labels.hand], behind)


def test_a_judge_that_is_right_about_everything_gives_full_marks():
    asked = scenes(100)
    kinds = {"thing", "both of two things", "style", "background", "colour"}
    assert score(asked, [*map(as_seen, asked)]) == dict.fromkeys(sorted(kinds), 100.0)


def test_other_pictures_than_those_asked_for_get_few_marks():
    asked = scenes(100)
    marks = score(asked, [*map(as_seen, asked[1:] + asked[:1])])
    assert max(marks.values()) < 50
    assert marks["thing"] < 10
