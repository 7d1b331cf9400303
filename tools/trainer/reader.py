"""Training of the text encoders alone, before the UNet needs them.

Linear heads on the two encoders' end-of-text states predict everything that a caption states:
things, colours, sizes, layout, hand, background. The heads are discarded.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from flax import nnx

from tools.miniature.reader import TURNED, Answers, Reader, TextEncoders, reading_loss
from tools.miniature.training import Pace, minimise, parameters, with_parameters
from tools.miniature.work import Run
from tools.trainer.composition import (
    COLOURS,
    HUES,
    PLACES,
    POSITIONS,
    RELATIONS,
    SIZES,
    TIMES,
    Item,
    Place,
    Plain,
    Scene,
)
from tools.trainer.icons import HANDS
from tools.trainer.things import all_things

TOKENS = 32  # the most of a caption; what comes after the end does not change what comes before
NOTHING = ""
NAMES = tuple(thing.icon for thing in all_things())
ITEM = (NAMES, (NOTHING, *HUES), tuple(SIZES))
ANSWERS: Answers = (
    HANDS,
    (NOTHING, *COLOURS),
    (NOTHING, *COLOURS),
    (NOTHING, *PLACES),
    (NOTHING, *TIMES),
    (*POSITIONS, *(word for word in RELATIONS if word not in TURNED), "2 in a row", "3 in a row"),
    *ITEM,
    *((NOTHING, *words) for words in ITEM),
)


def answers(scene: Scene) -> list[int]:
    """Return each head's label for a scene, as indices into `ANSWERS`."""
    layout, items = scene.layout, scene.items
    if layout in TURNED:
        layout, items = TURNED[layout], items[::-1]
    if layout == "row":
        layout, items = f"{len(items)} in a row", items[:1]
    scene_words = [scene.hand, *_behind(scene.background), layout]
    scene_words += _words(items[0])
    scene_words += _words(items[1]) if len(items) > 1 else [NOTHING] * len(ITEM)
    return [words.index(word) for words, word in zip(ANSWERS, scene_words, strict=True)]


def _behind(background: Plain | Place) -> tuple[str, str, str, str]:
    if isinstance(background, Plain):
        return background.colour, background.to, NOTHING, NOTHING
    return NOTHING, NOTHING, background.name, background.time


def _words(item: Item) -> tuple[str, str, str]:
    return item.thing.icon, item.colour, item.size


def teach(
    encoders: TextEncoders,
    scenes: Sequence[Scene],
    captions: np.ndarray,
    size: int,
    run: Run,
    pace: Pace,
    seed: int,
) -> TextEncoders:
    """Train both encoders, or resume their training, on batches of captions.

    `captions` are the token ids of some of each scene, `[n, captions, 2, L]`.
    """
    reader = Reader(*encoders, ANSWERS, nnx.Rngs(seed))
    objective = partial(reading_loss, reader, ANSWERS)
    labels = np.array([answers(scene) for scene in scenes], np.int32)

    def batch(i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng((seed, 1, i))
        scene_indices = rng.integers(len(scenes), size=size)
        caption_indices = rng.integers(captions.shape[1], size=size)
        ids = captions[scene_indices, caption_indices].astype(np.int32)
        ends = np.argmax(ids[:, 0] == encoders.first.config.eos_token_id, axis=-1)
        return ids[:, :, :TOKENS], np.minimum(ends, TOKENS - 1), labels[scene_indices]

    state = minimise(run, objective, parameters(reader), batch, pace, warmup=50)
    run.plot({"loss": "cross-entropy, both heads"})
    trained_reader = with_parameters(reader, state["average"])
    return TextEncoders(trained_reader.text_encoder, trained_reader.text_encoder_2)
