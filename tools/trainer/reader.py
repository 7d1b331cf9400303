"""Training of the text encoders alone, before the UNet needs them.

Linear heads on the two encoders' end-of-text states predict everything that a caption states:
things, colours, sizes, layout, hand, background. The heads are discarded.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.layers import linear
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
from tools.trainer.training import Pace, Run, Tree, minimise, parameters, with_parameters

TOKENS = 32  # the most of a caption; what comes after the end does not change what comes before
NOTHING = ""
# "b below a" means "a above b", so one of each pair of opposites is enough.
TURNED = {"below": "above", "right of": "left of"}
NAMES = tuple(thing.icon for thing in all_things())
ITEM = (NAMES, (NOTHING, *HUES), tuple(SIZES))
ANSWERS: tuple[tuple[str, ...], ...] = (  # the words of each head
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


class TextEncoders(NamedTuple):
    """Both of SDXL's text encoders."""

    first: CLIPTextEncoder
    second: CLIPTextEncoder


class Reader(nnx.Module):
    """Both text encoders and the heads, one for each question of `answers`."""

    def __init__(self, first: CLIPTextEncoder, second: CLIPTextEncoder, rngs: nnx.Rngs):
        self.text_encoder = first
        self.text_encoder_2 = second
        outputs = sum(len(words) for words in ANSWERS)
        projection = second.config.projection_dim
        assert projection is not None
        width = first.config.hidden_size + second.config.hidden_size
        self.pooled_head = linear(projection, outputs, dtype=jnp.float32, rngs=rngs)
        self.state_head = linear(width, outputs, dtype=jnp.float32, rngs=rngs)

    def __call__(self, input_ids: jax.Array, ends: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the logits of both heads.

        Args:
            input_ids: `[B, 2, L]`.
            ends: `[B]`, where each text ends.
        """
        first, _ = self.text_encoder(input_ids[:, 0])
        second, pooled = self.text_encoder_2(input_ids[:, 1])
        assert pooled is not None
        states = jnp.concatenate([first, second], axis=-1)[jnp.arange(len(ends)), ends]
        return self.pooled_head(pooled), self.state_head(states)


def reading_loss(
    reader: Reader, params: Tree, ids: jax.Array, ends: jax.Array, labels: jax.Array
) -> jax.Array:
    """Return the cross-entropy of both heads, with `params` in place of the reader's parameters.

    `labels`, `[B, heads]`, are indices into `ANSWERS`; see `Reader` for the others.
    """
    pooled, states = with_parameters(reader, params)(ids, ends)
    return _loss(pooled, labels) + _loss(states, labels)


def _loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy over the heads; labels are `[B, heads]`."""
    splits = np.cumsum([len(words) for words in ANSWERS])[:-1]
    parts = jnp.split(logits, splits, axis=-1)
    losses = [
        optax.softmax_cross_entropy_with_integer_labels(part, labels[:, i]).mean()
        for i, part in enumerate(parts)
    ]
    return sum(losses, jnp.zeros(())) / len(losses)


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
    reader = Reader(*encoders, nnx.Rngs(seed))
    objective = partial(reading_loss, reader)
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
