"""Resolution of a request: every value that depends on what the model has.

The page, HTTP, batches and Python all call `resolve`, so that they draw the same. Nothing here
imports JAX.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, TypeVar

from pipeline.errors import InputError
from pipeline.facts import Facts
from pipeline.request import DENOISING_END, ENLARGE_STRENGTH, STRENGTH, GenerateRequest
from pipeline.schedulers.recipes import Recipe
from pipeline.text.loras import format_loras, parse_loras, take_tags
from pipeline.text.prompt_syntax import A1111, after_run, without_comments

R = TypeVar("R", bound=GenerateRequest)


def resolve(ask: R, facts: Facts, *, has_image: bool) -> R:
    """Decide what a request leaves to the model.

    This is its recipe, LoRAs, steps, guidance scale, timesteps, strengths and refiner. The first
    model gets the name "".

    A resolved request resolves to itself. The request may have any other faults.

    Args:
        ask: the request.
        facts: those of all models.
        has_image: whether it starts from a picture.

    Raises:
        InputError: if the model or the recipe is not available, or there are too many LoRAs.
    """
    facts = facts.for_model(ask.model)
    ask = dataclasses.replace(ask, model="" if ask.model == facts.name else ask.model)
    few_steps = facts.distilled or ask.recipe != ""
    request = with_recipe(with_named_loras(ask, facts.lora_names), facts.recipes)
    defaults = {
        "num_inference_steps": facts.num_inference_steps,
        "guidance_scale": facts.guidance_scale,
    }
    settings = {name: value for name in defaults if (value := getattr(request, name)) is not None}
    request = dataclasses.replace(request, **defaults | settings)
    is_usual = request.steps == facts.timesteps.count(",") + 1 and not request.scheduler
    if facts.timesteps and is_usual and not request.timesteps:
        request = dataclasses.replace(request, timesteps=facts.timesteps)
    unset = [name for name in ("guidance_rescale", "clip_skip") if not getattr(request, name)]
    request = dataclasses.replace(request, **{name: getattr(facts, name) for name in unset})
    if has_image and request.strength is None:
        request = dataclasses.replace(request, strength=STRENGTH)
    if request.enlarge and request.enlarge_strength is None:
        steps = request.enlarge_steps or request.steps
        request = dataclasses.replace(request, enlarge_strength=enlarging_strength(steps))
    if facts.refiner is not None and request.denoising_end is None:
        share = 1.0 if few_steps else DENOISING_END  # 1: the base model alone
        request = dataclasses.replace(request, denoising_end=share)
    return dataclasses.replace(request, num_inference_steps=request.steps)


def enlarging_strength(steps: int) -> float:
    """Return how far to redraw a picture in a larger size, so that one step at least is taken."""
    return max(ENLARGE_STRENGTH, math.ceil(1000 / max(steps, 1)) / 1000)


def second_run(request: R) -> R:
    """Return the request that draws the finished pictures of a resolved request larger.

    Prompts that change go on where the first run ended. A recipe's or a model's own number of
    steps is the second run's too, unless the request has another.
    """
    enlarge_steps = request.enlarge_steps
    later = partial(after_run, syntax=request.prompt_syntax, steps=request.steps)
    steps = {} if enlarge_steps is None else {"num_inference_steps": enlarge_steps, "timesteps": ""}
    return dataclasses.replace(
        request,
        prompt=_mapped(later, request.prompt),
        negative_prompt=_mapped(later, request.negative_prompt),
        strength=request.enlarge_strength,
        padding=None,
        # Any other share may leave no step for one of the models.
        denoising_end=DENOISING_END if request.ends_early else request.denoising_end,
        enlarge="",
        **steps,
    )


def with_recipe(request: R, available: Iterable[Recipe]) -> R:
    """Return a request in which the settings of its recipe stand in place of the recipe's name.

    A number of steps that the recipe was made for is kept, and so is a weight of its LoRA.

    Raises:
        InputError: if the recipe is not available, or there are too many LoRAs.
    """
    if not request.recipe:
        return request
    recipes = {recipe.name: recipe for recipe in available}
    if request.recipe not in recipes:
        names = f"one of {', '.join(map(repr, recipes))}" if recipes else "none, without its LoRA"
        raise InputError(f"recipe is {request.recipe!r}; expected {names}")
    recipe = recipes[request.recipe]
    settings = dict(recipe.settings)
    if request.num_inference_steps in recipe.steps:
        del settings["num_inference_steps"]
    try:
        loras = format_loras({recipe.lora: 1.0, **parse_loras(request.loras)})
    except ValueError as error:
        raise InputError(f"loras and recipe {request.recipe!r}: {error}") from error
    return dataclasses.replace(request, **settings, loras=loras, recipe="")


def with_named_loras(request: R, lora_names: Collection[str] | None = None) -> R:
    """Return a request in AUTOMATIC1111's syntax with the LoRAs that its prompts name.

    Their tags, such as `<lora:pixel:0.8>`, leave the prompts, and so do comments. The weight in a
    tag counts more than that in `loras`. Tags of LoRAs outside `lora_names`, if these are known,
    stay and will have no effect. A request in plain syntax stays as it is.

    Raises:
        InputError: if there are too many LoRAs.
    """
    if request.prompt_syntax != A1111:
        return request
    request = dataclasses.replace(
        request,
        prompt=_mapped(without_comments, request.prompt),
        negative_prompt=_mapped(without_comments, request.negative_prompt),
    )
    try:
        loras = format_loras(all_loras(request, lora_names))
    except ValueError as error:
        raise InputError(f"loras and the LoRAs of prompts: {error}") from error
    prompt = _mapped(lambda text: take_tags(text, lora_names)[0], request.prompt)
    return dataclasses.replace(request, prompt=prompt, loras=loras)


def all_loras(
    request: GenerateRequest, lora_names: Collection[str] | None = None
) -> dict[str, tuple[float, float]]:
    """Return the weights of the LoRAs of `loras` and of the tags in prompts, by name.

    Tags of LoRAs outside `lora_names`, if these are known, are left out.
    """
    texts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    tags = [take_tags(text, lora_names)[1] for text in texts]
    tag_weights = {name: weights for text in tags for name, weights in parse_loras(text).items()}
    return {**request.lora_weights, **tag_weights}


def _mapped(change: Callable[[str], str], texts: Any) -> Any:
    """Return one text changed, or each of several; None stays."""
    if texts is None or isinstance(texts, str):
        return texts and change(texts)
    return tuple(map(change, texts))
