"""Prompts of several chunks: each is encoded by itself, and those of one chunk stay the same."""

from functools import cache
from typing import Any

import jax
import numpy as np

from pipeline import SDXLPipeline
from tests.checkpoints import EXECUTABLES, SMALLEST, nothing_compiles, shared_pipeline

LONG = "a star, " * 30  # the tokens of the smallest checkpoint are letters
BREAK = "a star BREAK a ring"


@cache
def long_pipeline() -> SDXLPipeline:
    return SDXLPipeline.from_pretrained(
        SMALLEST,
        num_inference_steps=3,
        devices=jax.devices()[:1],
        cache_dir=EXECUTABLES,
        prompt_chunks=3,
    )


def latents(pipe: SDXLPipeline, prompt: Any, negative: Any = "", **options: Any) -> np.ndarray:
    given = {"images": 1, "output_type": "latent", "prompt_syntax": "a1111", **options}
    return pipe.generate(prompt, negative, **given).images


def test_a_prompt_of_one_chunk_has_the_same_bits() -> None:
    for negative in ("", "a ring"):
        one, three = (
            latents(pipe, "a (star:1.3)", negative)
            for pipe in (shared_pipeline(1), long_pipeline())
        )
        np.testing.assert_array_equal(one, three)


def test_a_long_prompt_is_read_to_its_end() -> None:
    pipe = long_pipeline()
    short = pipe.generate("a star", images=1)  # which fills the slot with other words
    long, cut = (
        each.generate(LONG, images=1, output_type="latent") for each in (pipe, shared_pipeline(1))
    )
    assert short.truncated == long.truncated == [""]
    assert cut.truncated != [""]
    assert np.abs(long.images - cut.images).max() > 1e-3


def test_each_chunk_is_encoded_by_itself() -> None:
    whole, single = long_pipeline(), shared_pipeline(1)
    texts = ["a star", "a ring", "a box"]
    ids = [single._tokenizers.tokenize([text])[0] for text in texts]  # each [1, E, L]
    blank = single._tokenizers.tokenize([""])[0]

    def encoded(pipe: SDXLPipeline, own: np.ndarray, chunks: int) -> Any:
        run = pipe._compiled
        both = np.stack([np.resize(blank, own.shape), own]).repeat(4, axis=1)
        new, zeroed = np.ones(4, bool), np.zeros((2, 4), bool)
        numbers = np.stack([np.ones(4, np.int32), np.full(4, chunks, np.int32)])
        rows = [*np.moveaxis(both, 2, 0)]  # of each text encoder
        embeds = run.encode(run.blank_embeds(), new, rows, zeroed, chunks=numbers)
        chosen, guidance = np.zeros((2, 4), np.int32), np.zeros(4, np.float32)
        return run.condition(run.blank_context(), new, [embeds], chosen, guidance, numbers)

    found = encoded(whole, np.concatenate(ids, axis=-1), 3)
    assert np.asarray(found.chunks).tolist() == [[1] * 4, [3] * 4]
    for chunk, own in enumerate(ids):
        expected = encoded(single, own, 1)
        for ours, right in zip(found.keys_values, expected.keys_values, strict=True):
            np.testing.assert_array_equal(ours[1, :, chunk], right[1])
        if chunk == 0:
            np.testing.assert_array_equal(found.added_embed, expected.added_embed)


def test_pictures_are_the_same_beside_others_of_more_chunks() -> None:
    pipe = long_pipeline()
    prompts, negative = [LONG, "a star", BREAK], ["", LONG, "a ring"]
    with nothing_compiles():
        together = latents(pipe, prompts, negative, images=3)
    for index in range(3):
        alone = latents(pipe, prompts[index], negative[index], seed=index)
        np.testing.assert_array_equal(together[index], alone[0])
    joined = latents(pipe, "a stara ring", "a ring", seed=2)
    assert np.abs(together[2] - joined[0]).max() > 1e-4


def test_a_prompt_switches_between_lengths() -> None:
    def after_each_step(prompt: str) -> list[np.ndarray]:
        seen: list[np.ndarray] = []
        latents(long_pipeline(), prompt, on_step=lambda *each: seen.append(each[2][0]))
        return seen

    text = LONG.strip()
    short, long, changed = map(after_each_step, ("a star", text, f"[a star:{text}:1]"))
    np.testing.assert_array_equal(changed[0], short[0])
    assert not np.array_equal(changed[1], short[1])
    np.testing.assert_array_equal(after_each_step(f"[a star:{text}:0]"), long)
    back = after_each_step(f"[a star|{text}|a star]")
    np.testing.assert_array_equal(back[:2], changed[:2])
    assert not np.array_equal(back[2], changed[2])


def test_the_length_of_a_long_prompt() -> None:
    pipe, one = long_pipeline(), shared_pipeline(1)
    tokens = one.measure("star").tokens - 2
    assert pipe.measure("star") == (tokens, 3 * 75, "", 1)
    found = pipe.measure("star " * (78 // tokens))
    assert (found.tokens, found.chunks) == (78 // tokens * tokens, 2)
    assert pipe.measure("star " * 226).left_out
