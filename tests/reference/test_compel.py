"""Prompts beside the package compel, which other programs use with diffusers.

The two agree on plain prompts, on how a prompt is padded, on the penultimate states and the pooled
embedding of Stable Diffusion XL, on which tokens have which weight, and on chunks: a long prompt
is cut into chunks of 75 tokens that are encoded alone, and `BREAK` means `("a", "b").and()`.

They differ where AUTOMATIC1111 and compel do:

- A weight above 1 multiplies the states here, which then get their mean back. In compel it
  multiplies their distance from the states of the empty prompt. The tests apply compel's rule to
  this project's states.
- A weight below 1 does the same here. compel mixes in the states of the prompt without these words,
  for which it masks tokens; so such prompts are not compared.
- `-` divides by 1.1 here (`[x]`), and multiplies by 0.9 in compel.
- compel pads the shorter one of prompt and negative prompt by chunks of the empty prompt. Here each
  has its own number of chunks, so both are equally long in the comparison of pictures.
- compel takes the pooled embedding of a prompt with weights or `.and()` from its text with these
  signs, which are left out here. It takes that of a long prompt from the first 75 tokens; here it
  is from the first chunk, which may end earlier, after a comma.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compel import Compel, ReturnedEmbeddingsType
from compel.embeddings_provider import SplitLongTextMode

from pipeline import SDXLPipeline
from pipeline.drawing.planning import placed
from pipeline.families.latent_unet import encode_prompts
from pipeline.text.embeddings import Embeddings, Placement
from pipeline.text.explanation import explain
from tests.checkpoints import EXECUTABLES, GOLDEN
from tests.reference import torch_reference
from tests.reference.tiny_checkpoints import Pipeline, load
from tools import agreement
from tools.agreement import Networks, relative_error

BOUND = 1e-4
NAMES = ("sd_1", "sd_2", "plain", "three_levels")
XL = ("plain", "three_levels")
CHUNKS = 3
PROMPTS = ("a red star on blue, background", "", "A STAR; two: three!")
# Without commas, which end a chunk early here, and with one after every few tokens.
LONG = "a red star on blue background and a ring " * 6
WITH_COMMAS = "a red star, on blue, " * 12


@cache
def torch_pipeline(name: str) -> Pipeline:
    folder = GOLDEN / name / "checkpoint"
    return load(folder, "fp16" if list(folder.glob("unet/*.fp16*")) else None)


@cache
def our_networks(name: str) -> Networks:
    return agreement.load_networks(GOLDEN / name / "checkpoint")


def compel_of(name: str, split: SplitLongTextMode = SplitLongTextMode.BRUTAL) -> Compel:
    """Return compel for a checkpoint, as its documentation says for the checkpoint's kind."""
    pipe = torch_pipeline(name)
    options: dict[str, Any] = {"truncate_long_prompts": False, "split_long_text_mode": split}
    if name not in XL:
        return Compel(pipe.tokenizer, pipe.text_encoder, **options)
    return Compel(
        [pipe.tokenizer, pipe.tokenizer_2],
        [pipe.text_encoder, pipe.text_encoder_2],
        returned_embeddings_type=ReturnedEmbeddingsType.PENULTIMATE_HIDDEN_STATES_NON_NORMALIZED,
        requires_pooled=[False, True],
        **options,
    )


def theirs(compel: Compel, prompt: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return compel's states `[C * L, D]`, and its pooled embedding `[P]` if there is one."""
    found = compel(prompt)
    states, pooled = found if isinstance(found, tuple) else (found, None)
    return states[0].numpy(), None if pooled is None else pooled[0].numpy()


def ours(
    name: str, prompt: str, syntax: str = "plain"
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return states without weights `[C * L, D]`, pooled `[P]`, and weights `[E, C * L]`."""
    networks = our_networks(name)
    (text,) = explain(prompt, syntax, 1).texts
    tokens = networks.tokenizers.tokens(placed(text.sections, Placement(Embeddings())), CHUNKS)
    used, length = tokens[0].chunks, networks.tokenizers.length
    ids = np.stack([each.input_ids.reshape(CHUNKS, length)[:used] for each in tokens], axis=1)
    zeroed = jnp.zeros((1, used), bool)
    rows = [*jnp.moveaxis(jnp.asarray(ids[None]), 2, 0)]  # of each text encoder
    states, pooled = encode_prompts(networks.text_encoders, rows, zeroed)
    weights = np.stack([each.weights[: used * length] for each in tokens])
    whole = np.asarray(states).reshape(used * length, -1)
    return whole, None if pooled is None else np.asarray(pooled)[0, 0], weights


def by_compels_rule(name: str, states: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return states `[C * L, D]` whose distance from the empty prompt is multiplied by weights."""
    empty, _, _ = ours(name, "")
    empty = np.resize(empty, states.shape)  # once for each chunk
    widths = [each.hidden_size for each in our_networks(name).config.text_encoders.values()]
    factors = np.concatenate(
        [np.repeat(own[:, None], width, 1) for own, width in zip(weights, widths, strict=True)], 1
    )
    return empty + (states - empty) * factors


@pytest.mark.parametrize("name", NAMES)
def test_plain_prompts_agree(name: str) -> None:
    compel = compel_of(name)
    for prompt in PROMPTS:
        states, pooled, _ = ours(name, prompt)
        expected, right = theirs(compel, prompt)
        assert relative_error(states, expected) <= BOUND
        assert (pooled is None) == (right is None) == (name not in XL)
        if pooled is not None and right is not None:
            assert relative_error(pooled, right) <= BOUND


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt", [LONG, WITH_COMMAS])
def test_long_prompts_agree(name: str, prompt: str) -> None:
    mode = SplitLongTextMode.PHRASES if "," in prompt else SplitLongTextMode.BRUTAL
    states, pooled, _ = ours(name, prompt)
    expected, right = theirs(compel_of(name, mode), prompt)
    length = our_networks(name).tokenizers.length
    assert len(states) >= 2 * length
    assert relative_error(states, expected) <= BOUND
    if pooled is not None and right is not None and mode is SplitLongTextMode.BRUTAL:
        assert relative_error(pooled, right) <= BOUND


@pytest.mark.parametrize("name", NAMES)
def test_a_break_is_compels_and(name: str) -> None:
    states, _, _ = ours(name, "a red star BREAK on blue", "a1111")
    expected, _ = theirs(compel_of(name), '("a red star", "on blue").and()')
    assert relative_error(states, expected) <= BOUND


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("prompt", "same"),
    [
        ("a (red:1.4) star on (blue:2)", "a (red)1.4 star on (blue)2"),
        ("a ((red star)) on (blue)", "a (red star)++ on (blue)+"),
        ("a ((red:1.5) star:2) on blue", "a ((red)1.5 star)2 on blue"),
        ("a (red:1) star", "a (red)1 star"),
        (f"(red:1.5) {LONG}(blue:1.2)", f"(red)1.5 {LONG}(blue)1.2"),
        ("a (red:1.3) star BREAK on (blue:1.5)", '("a (red)1.3 star", "on (blue)1.5").and()'),
    ],
)
def test_weights_above_1_are_of_the_same_tokens(name: str, prompt: str, same: str) -> None:
    states, _, weights = ours(name, prompt, "a1111")
    expected, _ = theirs(compel_of(name), same)
    assert relative_error(by_compels_rule(name, states, weights), expected) <= BOUND
    if (weights != 1).any():
        assert relative_error(states, expected) > 10 * BOUND


def test_pictures_of_long_prompts_agree() -> None:
    """diffusers draws from compel's embeddings what this project draws from the prompts."""
    pipe = torch_pipeline("plain")
    drawn = SDXLPipeline.from_pretrained(
        GOLDEN / "plain" / "checkpoint",
        images_per_request=1,
        devices=jax.devices()[:1],
        cache_dir=EXECUTABLES,
        prompt_chunks=2,
    )
    prompt, negative = "a red star on blue and a ring " * 8, "a box on a green background " * 4
    unet = drawn._config.networks["unet"]
    rng = np.random.default_rng(14)
    noise = rng.standard_normal((1, *unet.sample_size, unet.in_channels), dtype=np.float32)
    asked: dict[str, Any] = {"num_inference_steps": 6, "guidance_scale": 5.0}
    found = drawn.generate(prompt, negative, latents=noise, output_type="latent", **asked)
    assert found.truncated == [""]
    embeds, pooled = compel_of("plain")([prompt, negative])
    assert embeds.shape[1] == 2 * drawn._tokenizers.length
    expected = torch_reference._run(
        pipe,
        noise.shape,
        prompt_embeds=embeds[:1],
        negative_prompt_embeds=embeds[1:],
        pooled_prompt_embeds=pooled[:1],
        negative_pooled_prompt_embeds=pooled[1:],
        latents=torch.from_numpy(noise).permute(0, 3, 1, 2),
        height=drawn.facts.height,
        width=drawn.facts.width,
        **asked,
    )
    assert relative_error(found.images, expected.latents) <= BOUND
