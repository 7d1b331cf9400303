from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.facts import Facts, LoraFacts, ModelFacts
from pipeline.request import GenerateRequest
from pipeline.resolve import resolve, with_named_loras
from pipeline.schedulers.recipes import find_lora_recipes
from tests.models import MODEL

[RECIPE] = find_lora_recipes(["sdxl_lightning_4step_lora"], "Stable Diffusion XL")


QUICK = replace(MODEL, loras=(LoraFacts(RECIPE.lora, RECIPE.lora),))


def test_the_first_model_has_no_name_in_resolved_requests():
    facts = replace(MODEL, models=(ModelFacts(name="b", num_inference_steps=7),))
    own, other = (GenerateRequest("a", model=name) for name in (facts.name, "b"))
    assert resolve(own, facts, has_image=False).model == ""
    found = resolve(other, facts, has_image=False)
    assert (found.model, found.num_inference_steps) == ("b", 7)
    assert resolve(other, facts.for_model("b"), has_image=False) == found
    both = replace(facts, others=(replace(MODEL, name="c", num_inference_steps=9),))
    third = GenerateRequest("a", model="c")
    found = resolve(third, both, has_image=False)
    assert (found.model, found.num_inference_steps) == ("c", 9)
    assert resolve(third, both.for_model("c"), has_image=False) == found


def test_prompts_name_loras():
    asked = GenerateRequest("a <lora:b:2> fox<lora:a:1:3>", loras="a:2,c:1", prompt_syntax="a1111")
    found = with_named_loras(asked, {"a", "b"})
    assert (found.prompt, found.loras) == ("a fox", "a:3:1,b:2,c:1")
    assert with_named_loras(found, {"a", "b"}) == found
    several = with_named_loras(replace(asked, prompt=("a <lora:b>", "c <lora:b:2>")), {"b"})
    assert (several.prompt, several.loras) == (("a", "c"), "a:2,b:2,c:1")


def test_plain_prompts_name_no_loras():
    asked = GenerateRequest("a <lora:b:2> fox # note", loras="a:2")
    assert with_named_loras(asked, {"b"}) == asked


def test_comments_leave_prompts_before_loras_are_looked_for():
    asked = GenerateRequest("a # <lora:b:2>", "x\n# y", prompt_syntax="a1111")
    found = with_named_loras(asked, {"b"})
    assert (found.prompt, found.negative_prompt, found.loras) == ("a", "x", "")


def test_tags_of_loras_that_are_not_there_stay():
    asked = GenerateRequest("a <lora:gone:2> <lora:b:1>", loras="lost:1", prompt_syntax="a1111")
    found = with_named_loras(asked, {"b"})
    assert (found.prompt, found.loras) == ("a <lora:gone:2>", "b:1,lost:1")


def test_too_many_loras_in_prompts():
    many = ",".join(f"own{i}:1" for i in range(8))
    asked = GenerateRequest("a <lora:b:2> fox", loras=many, prompt_syntax="a1111")
    with pytest.raises(InputError, match="loras and the LoRAs of prompts: 9 LoRAs are too many"):
        with_named_loras(asked, {"b"})


requests = st.builds(
    GenerateRequest,
    prompt=st.sampled_from(["a fox", "a <lora:pixel:0.5> fox", ("a <lora:b:2>", "b")]),
    prompt_syntax=st.sampled_from(["plain", "a1111"]),
    recipe=st.sampled_from(["", RECIPE.name]),
    loras=st.sampled_from(["", "own:1"]),
    num_inference_steps=st.none() | st.integers(1, 50),
    guidance_scale=st.none() | st.floats(0, 50),
    timesteps=st.sampled_from(["", "999,499"]),
    strength=st.sampled_from([None, 0.3]),
    denoising_end=st.sampled_from([None, 0.5, 1.0]),
    enlarge=st.sampled_from(["", "8x8"]),
)
models = st.builds(
    lambda **changes: replace(QUICK, **changes),
    refiner=st.sampled_from([None, "refiner"]),
    distilled=st.booleans(),
    timesteps=st.sampled_from(["", "999,749,499,249"]),
)


@given(requests, models, st.booleans())
def test_a_resolved_request_resolves_to_itself(ask: GenerateRequest, model: Facts, has_image: bool):
    if model.distilled:
        ask = replace(ask, recipe="")
    resolved = resolve(ask, model, has_image=has_image)
    assert resolve(resolved, model, has_image=has_image) == resolved


def test_few_steps_are_not_refined():
    quick, ask = GenerateRequest("a fox", recipe=RECIPE.name), GenerateRequest("a fox")
    refined = replace(QUICK, refiner="refiner")
    assert resolve(quick, refined, has_image=False).denoising_end == 1
    assert resolve(ask, replace(refined, distilled=True), has_image=False).denoising_end == 1
    assert resolve(ask, refined, has_image=False).denoising_end == 0.8
    assert resolve(quick, QUICK, has_image=False).denoising_end is None
    chosen = resolve(replace(quick, denoising_end=0.5), refined, has_image=False)
    assert chosen.denoising_end == 0.5


def test_steps_and_guidance_are_the_models():
    facts = replace(QUICK, num_inference_steps=7, guidance_scale=1.5)
    ask = GenerateRequest("a fox")
    usual = resolve(ask, facts, has_image=False)
    assert (usual.num_inference_steps, usual.guidance_scale) == (7, 1.5)
    chosen = resolve(replace(ask, num_inference_steps=4), facts, has_image=False)
    assert (chosen.num_inference_steps, chosen.guidance_scale) == (4, 1.5)
    quick = resolve(replace(ask, recipe=RECIPE.name), facts, has_image=False)
    assert (quick.num_inference_steps, quick.guidance_scale) == (4, 1.0)


def test_a_distilled_model_has_its_timesteps_in_its_usual_run():
    facts = replace(MODEL, distilled=True, timesteps="999,499")
    usual = GenerateRequest("a fox", num_inference_steps=2)
    assert resolve(usual, facts, has_image=False).timesteps == "999,499"
    for other in (
        replace(usual, num_inference_steps=4),
        replace(usual, scheduler="euler"),
        replace(usual, timesteps="900,100"),
    ):
        assert resolve(other, facts, has_image=False).timesteps == other.timesteps


def test_a_picture_to_start_from_has_a_strength():
    ask = GenerateRequest("a fox")
    assert resolve(ask, QUICK, has_image=True).strength == 0.8
    assert resolve(ask, QUICK, has_image=False).strength is None
    assert resolve(replace(ask, strength=0.3), QUICK, has_image=True).strength == 0.3


@pytest.mark.parametrize(("steps", "strength"), [(1, 1.0), (2, 0.5), (4, 0.35), (25, 0.35)])
def test_a_larger_picture_takes_one_step_at_least(steps: int, strength: float):
    ask = GenerateRequest("a fox", num_inference_steps=steps, enlarge="8x8")
    assert resolve(ask, MODEL, has_image=False).enlarge_strength == strength
