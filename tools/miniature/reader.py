"""Training of the text encoders alone, before the UNet needs them.

Linear heads on the two encoders' end-of-text states predict everything that a caption states:
shapes, colours, sizes, layout, style, background. A minute of it spares the UNet the slow start in
which prompts have no meaning yet. The heads are discarded.
"""

from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.layers import linear
from pipeline.text.tokenizer import Tokenizers
from tools.miniature.scenes import (
    COLOURS,
    POSITIONS,
    RELATIONS,
    SHAPES,
    SIZES,
    STYLES,
    Scene,
    caption,
)
from tools.miniature.training import minimise, parameters, with_parameters
from tools.miniature.work import Run, Tree

BATCH = 64
NOTHING = "nothing"
Answers: TypeAlias = tuple[tuple[str, ...], ...]  # the words of each head
# "b below a" means "a above b", so one of each pair of opposites is enough.
TURNED = {"below": "above", "right of": "left of"}
THING = (("shape", SHAPES), ("colour", tuple(COLOURS)), ("size", SIZES))
ANSWERS: Answers = (
    tuple(COLOURS),
    STYLES,
    (*POSITIONS, *RELATIONS),
    *(words for _, words in THING),
    *((*words, NOTHING) for _, words in THING),
)


def answers(scene: Scene) -> list[int]:
    """Return each head's label for a scene, as indices into `ANSWERS`."""
    layout, things = scene.layout, scene.things
    if layout in TURNED:
        layout, things = TURNED[layout], things[::-1]
    said = [scene.background, scene.style, layout]
    said += [getattr(things[0], name) for name, _ in THING]
    said += [getattr(things[1], name) if len(things) > 1 else NOTHING for name, _ in THING]
    return [words.index(word) for words, word in zip(ANSWERS, said, strict=True)]


class TextEncoders(NamedTuple):
    """Both of SDXL's text encoders."""

    first: CLIPTextEncoder
    second: CLIPTextEncoder


class Reader(nnx.Module):
    """Both text encoders and the heads, one for each question of `answers`."""

    def __init__(
        self, first: CLIPTextEncoder, second: CLIPTextEncoder, answers: Answers, rngs: nnx.Rngs
    ):
        self.text_encoder = first
        self.text_encoder_2 = second
        outputs = sum(len(words) for words in answers)
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
    reader: Reader,
    answers: Answers,
    params: Tree,
    ids: jax.Array,
    ends: jax.Array,
    labels: jax.Array,
) -> jax.Array:
    """Return the cross-entropy of both heads, with `params` in place of the reader's parameters.

    `labels`, `[B, heads]`, are indices into `answers`; see `Reader` for the others.
    """
    pooled, states = with_parameters(reader, params)(ids, ends)
    return _loss(pooled, labels, answers) + _loss(states, labels, answers)


def _loss(logits: jax.Array, labels: jax.Array, answers: Answers) -> jax.Array:
    """Return the mean cross-entropy over the heads; labels are `[B, heads]`."""
    splits = np.cumsum([len(words) for words in answers])[:-1]
    parts = jnp.split(logits, splits, axis=-1)
    losses = [
        optax.softmax_cross_entropy_with_integer_labels(part, labels[:, i]).mean()
        for i, part in enumerate(parts)
    ]
    return sum(losses, jnp.zeros(())) / len(losses)


def teach(
    encoders: TextEncoders,
    tokenizers: Tokenizers,
    scenes: list[Scene],
    run: Run,
    steps: int,
    seed: int,
) -> TextEncoders:
    """Train both encoders, or resume their training, on captions of the scenes."""
    reader = Reader(*encoders, ANSWERS, nnx.Rngs(seed))
    objective = partial(reading_loss, reader, ANSWERS)

    def batch(i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng((seed, 1, i))
        chosen = [scenes[k] for k in rng.integers(len(scenes), size=BATCH)]
        ids, _ = tokenizers.tokenize([caption(scene, rng) for scene in chosen])
        ends = np.argmax(ids[:, 0] == encoders.first.config.eos_token_id, axis=-1)
        return ids, ends, np.array([answers(scene) for scene in chosen], np.int32)

    state = minimise(run, objective, parameters(reader), batch, steps, warmup=30)
    run.plot({"loss": "cross-entropy, both heads"})
    trained = with_parameters(reader, state["params"])
    return TextEncoders(trained.text_encoder, trained.text_encoder_2)
