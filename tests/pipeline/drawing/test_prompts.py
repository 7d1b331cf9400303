"""Prompts in AUTOMATIC1111's syntax: their ids and weights, and the pictures drawn from them."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from pipeline import Cancelled, InputError, SDXLPipeline
from pipeline.drawing.planning import read_prompts, resolved
from pipeline.images import metadata
from pipeline.request import GenerateRequest, check_request
from pipeline.runtime.compiled import CompiledSampler
from pipeline.text.embeddings import Embeddings, Placement
from pipeline.text.wildcards import MAX_LINES
from tests.checkpoints import nothing_compiles, shared_pipeline


@pytest.fixture
def pipe() -> SDXLPipeline:
    return shared_pipeline(1)


def read(pipe: SDXLPipeline, prompt: Any, negative: Any = "", steps: int = 4, images: int = 1):
    asked = GenerateRequest(prompt, negative, prompt_syntax="a1111")
    placement = Placement(Embeddings())
    return read_prompts(check_request(asked, images), steps, pipe._tokenizers, placement)


def latents(pipe: SDXLPipeline, prompt: Any, syntax: str = "a1111", **options: Any) -> np.ndarray:
    given = {"images": 1, "num_inference_steps": 4, "output_type": "latent", **options}
    return pipe.generate(prompt, prompt_syntax=syntax, **given).images


@pytest.mark.slow
def test_tokens_have_the_weights_of_their_words(pipe: SDXLPipeline) -> None:
    found = read(pipe, "a (red star:1.5) on [blue]")
    plain = read(pipe, "a red star on blue")
    np.testing.assert_equal(found.input_ids, plain.input_ids)
    until = [pipe.measure(text).tokens - 1 for text in ("a", "a red star", "a red star on")]
    assert (found.chunks == 1).all()
    expected = np.ones_like(plain.weights[0])
    expected[0, 1, 0, until[0] : until[1]] = 1.5
    expected[0, 1, 0, until[2] : pipe.measure("a red star on blue").tokens - 1] = 1 / 1.1
    for weights, without in zip(found.weights, plain.weights, strict=True):
        np.testing.assert_allclose(weights, expected, rtol=1e-6)
        assert (without == 1).all()


def test_each_step_has_its_texts(pipe: SDXLPipeline) -> None:
    found = read(pipe, ["a [red:blue:2]", "a star"], ["[x:3]", ""], images=2)
    assert found.of_step.tolist() == [[[0, 0], [0, 0], [0, 1], [1, 1]], [[0, 0]] * 4]
    assert found.texts.tolist() == [2, 1]
    assert [ids.shape[:3] for ids in found.input_ids] == [(2, 2, 2)] * 2
    for text, alone in enumerate((read(pipe, "a red"), read(pipe, "a blue"))):
        for ids, expected in zip(found.input_ids, alone.input_ids, strict=True):
            np.testing.assert_array_equal(ids[text, 1, 0], expected[0, 1, 0])
    assert found.blank[:, 0].tolist() == [[True, True], [False, True]]


def test_a_text_that_returns_is_encoded_as_the_first_time(pipe: SDXLPipeline) -> None:
    found = read(pipe, "[a|b]")
    assert found.of_step.tolist() == [[[0, 0], [0, 1], [0, 0], [0, 1]]]
    assert [len(ids) for ids in found.input_ids] == [2, 2]


def test_the_longest_end_is_cut_off(pipe: SDXLPipeline) -> None:
    found = read(pipe, "a [star:" + "a " * 76 + "ring:3]")
    assert found.truncated[0].endswith("a a ring")
    assert found.negative_truncated == [""]


def test_weights_of_1_change_no_bit(pipe: SDXLPipeline) -> None:
    plain = latents(pipe, "a red star", "plain", negative_prompt="a ring")
    written = latents(pipe, "(a red star:1.0)", negative_prompt="a ring")
    np.testing.assert_array_equal(plain, written)


def test_weights_and_changes_compile_nothing(pipe: SDXLPipeline) -> None:
    with nothing_compiles():
        plain, weighted, changed = (
            latents(pipe, prompt) for prompt in ("a star", "a (star:1.5)", "a [star:ring:2]")
        )
    assert np.abs(plain - weighted).max() > 1e-3
    assert np.abs(plain - changed).max() > 1e-3


def test_a_prompt_changes_after_its_step(pipe: SDXLPipeline) -> None:
    def after_each_step(prompt: str) -> list[np.ndarray]:
        seen: list[np.ndarray] = []
        latents(pipe, prompt, scheduler="heun", on_step=lambda *each: seen.append(each[2][0]))
        return seen

    star, ring, changed = map(after_each_step, ("a star", "a ring", "a [star:ring:2]"))
    for step in range(2):  # of two evaluations each
        np.testing.assert_array_equal(star[step], changed[step])
    for step in range(2, 4):
        assert not np.array_equal(star[step], changed[step])
        assert not np.array_equal(ring[step], changed[step])
    np.testing.assert_array_equal(ring, after_each_step("a [star:ring:0]"))


def test_pictures_that_change_are_the_same_beside_others(pipe: SDXLPipeline) -> None:
    prompts = ["a [star|ring]", "a star", "a [ring:(star:1.5):1]"]
    together = latents(pipe, prompts, images=3)
    for index, prompt in enumerate(prompts):
        np.testing.assert_array_equal(together[index], latents(pipe, prompt, seed=index)[0])


@pytest.mark.parametrize("devices", [1, 8])
def test_texts_are_encoded_once_and_switched(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, ran = shared_pipeline(devices), Counter[str]()
    run = CompiledSampler._run

    def count(self: CompiledSampler, program: str, *given: Any) -> Any:
        ran[program] += 1
        return run(self, program, *given)

    monkeypatch.setattr(CompiledSampler, "_run", count)
    held: list[int] = []

    def texts_held() -> int:
        return len(pipe._slots[pipe._compiled].texts)

    def drawn(prompt: str, negative: str = "") -> tuple[int, int]:
        """Return how often the text encoders ran, and how often the context changed."""
        ran.clear()
        held.clear()
        given: dict[str, Any] = {"negative_prompt": negative, "num_inference_steps": 25}
        latents(pipe, prompt, on_step=lambda *_: held.append(texts_held()), **given)
        return ran["encode"], ran["condition"]

    assert drawn("a star") == (1, 1)
    assert {*held} == {1}
    assert drawn("a [star|ring]") == (2, 25)
    assert max(held) == 2
    assert drawn("a [star|ring]", "[x|y|z]") == (3, 25)
    assert drawn("[a|b] in [star:ring:0.5]") == (4, 25)
    assert texts_held() == 1


def test_too_many_texts_are_refused_before_anything_is_drawn(pipe: SDXLPipeline) -> None:
    asked = GenerateRequest("[a|b|c|d|e]", num_inference_steps=25, prompt_syntax="a1111")
    with pytest.raises(InputError, match="5 different texts in 25 steps; expected at most 4"):
        pipe.prepare(asked, 1)


def test_lists_are_resolved_by_each_pictures_seed(pipe: SDXLPipeline, tmp_path: Path) -> None:
    (tmp_path / "shape.txt").write_text("star\nring\ndisc\nbox")
    asked = GenerateRequest(
        "a {(red:1.2)|blue|green} __shape__", "{dark|light}", seed=5, prompt_syntax="a1111"
    )
    checked = check_request(asked, 4)
    found = resolved(checked, tmp_path)
    assert len({*found.prompts}) > 1
    for index, pair in enumerate(zip(found.prompts, found.negative_prompts, strict=True)):
        own = resolved(check_request(replace(asked, seed=5 + index), 1), tmp_path)
        assert pair == (own.prompts[0], own.negative_prompts[0])
    assert resolved(found, tmp_path) == found
    plain = replace(checked, prompt_syntax="plain")
    assert resolved(plain, tmp_path) == plain


def test_parts_without_effect_are_noted_for_each_picture(tmp_path: Path) -> None:
    (tmp_path / "shape.txt").write_text("star <lora:b:1>")
    prompts = ["a __shape__ AND __gone__", "a <hypernet:x:1> fox ${y=__shape__} ${y}", "a"]
    asked = GenerateRequest(prompts, ["", "<lora:b:1> x", ""], prompt_syntax="a1111")
    found = resolved(check_request(asked, 3), tmp_path)
    assert found.prompts == ["a star AND __gone__", "a fox ${y=star} ${y}", "a"]
    assert found.negative_prompts == ["", "x", ""]
    assert found.ignored == (
        ("<lora:b:1>", "AND", "__gone__"),
        ("<hypernet:x:1>", "<lora:b:1>", "${y=star}", "${y}", "<lora:b:1>"),
        (),
    )


def test_results_name_parts_without_effect_and_ends(pipe: SDXLPipeline) -> None:
    given: dict[str, Any] = {"num_inference_steps": 1, "seed": 1, "prompt_syntax": "a1111"}
    prompts = ["a star <lora:gone:1>", "a star", "star " * 80, "__gone__"]
    found = pipe.generate(prompts, **given)
    assert found.ignored[:2] == [("<lora:gone:1>",), ()]
    assert found.ignored[2:] == [(found.truncated[2],), ("__gone__",)]
    assert "star" in found.truncated[2]
    np.testing.assert_array_equal(
        np.asarray(found.images[0]),
        np.asarray(pipe.generate(["a star"] * 4, **given).images[0]),
    )


def test_the_prompts_of_a_request_share_the_lines_that_they_may_take(tmp_path: Path) -> None:
    (tmp_path / "shape.txt").write_text("star")

    def lines(mentions: int) -> GenerateRequest:
        prompt = "__shape__ " * mentions
        return GenerateRequest(prompt, prompt, prompt_syntax="a1111")

    resolved(check_request(lines(MAX_LINES // 16), 8), tmp_path)
    with pytest.raises(
        InputError, match=f"more than {MAX_LINES} lines from files, with the lists in them"
    ):
        resolved(check_request(lines(MAX_LINES // 16 + 1), 8), tmp_path)


def test_lists_in_lines_count_as_lines(tmp_path: Path) -> None:
    (tmp_path / "shape.txt").write_text("{star|" * (MAX_LINES - 1) + "}" * (MAX_LINES - 1))
    for mentions, is_refused in ((1, False), (2, True)):
        request = GenerateRequest("__shape__ " * mentions, prompt_syntax="a1111")
        with pytest.raises(InputError) if is_refused else nullcontext():
            resolved(check_request(request, 1), tmp_path)


class SetLater(Event):
    """An event that is set once somebody has looked at it a few times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize("prompt", ["a star", "__shape__ " * 5])
def test_a_cancelled_request_is_resolved_no_further(tmp_path: Path, prompt: str) -> None:
    (tmp_path / "shape.txt").write_text("star")
    checked = check_request(GenerateRequest(prompt, prompt_syntax="a1111"), 4)
    with pytest.raises(Cancelled):
        resolved(checked, tmp_path, SetLater(4))
    mentions = prompt.count("__shape__")
    resolved(checked, tmp_path, enough := SetLater(100))
    assert 100 - enough.looks == 4 * (1 + mentions) + 4  # negative prompts are blank


def test_a_cancelled_request_is_prepared_no_further(pipe: SDXLPipeline) -> None:
    for looks in (0, 2, 4):
        with pytest.raises(Cancelled):
            pipe.prepare(GenerateRequest("a star", "a ring"), 1, cancelled=SetLater(looks))


def test_a_picture_has_the_resolved_prompt_in_its_settings(pipe: SDXLPipeline) -> None:
    asked: dict[str, Any] = {"images": 1, "seed": 3, "num_inference_steps": 1}
    image = pipe.generate("a {red|blue} (star:1.2)", prompt_syntax="a1111", **asked).images[0]
    settings = metadata.from_text(image.info["parameters"])
    assert settings.prompt in ("a red (star:1.2)", "a blue (star:1.2)")
    assert settings.prompt_syntax == "a1111"
    again = pipe.generate(settings.prompt, prompt_syntax="a1111", **asked).images[0]
    np.testing.assert_array_equal(np.asarray(again), np.asarray(image))
    assert again.info == image.info


def test_a_list_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "colour.txt").write_text("# no line")
    asked = check_request(GenerateRequest("a __colour__ fox", prompt_syntax="a1111"), 1)
    with pytest.raises(InputError, match=r"colour.txt of the list __colour__ has no lines"):
        resolved(asked, tmp_path)
