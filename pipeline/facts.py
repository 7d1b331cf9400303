"""Facts about a model: all that a request can name, and what its settings depend on.

Nothing here imports JAX.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pipeline.errors import InputError
from pipeline.request import (
    FULL,
    GUIDANCE_SCALE,
    MAX_CACHE_INTERVAL,
    MIN_DENOISING_END,
    NUM_INFERENCE_STEPS,
    TINY,
    GenerateRequest,
)
from pipeline.schedulers.config import (
    DEFAULT_SIGMAS,
    MAX_INFERENCE_STEPS,
    SCHEDULERS,
    SIGMA_KEYS,
)
from pipeline.schedulers.recipes import Recipe, find_lora_recipes
from pipeline.text.controls import parse_controls
from pipeline.text.prompt_syntax import A1111

LIVE_STEPS = 4  # about as many as a live picture should take


@dataclass(frozen=True)
class LoraFacts:
    """Description of a LoRA that requests can name. The texts are those of its file.

    Attributes:
        name: name in requests.
        title: name for people.
        words: trigger words, which make it work best in prompts.
        digest: equal for equal files; "" if the file could not be read.
        pictured: whether there is a picture of it.
        doubled: paths of the files that share this name, so that none of them is used; empty if
            the name is unique.
    """

    name: str
    title: str
    words: tuple[str, ...] = ()
    digest: str = ""
    pictured: bool = False
    doubled: tuple[str, ...] = ()


@dataclass(frozen=True)
class EmbeddingFacts:
    """Description of a textual inversion that prompts can name.

    Attributes:
        name: name in prompts.
        vectors: the number of tokens that it takes the place of.
        width: the number of elements of a vector, of all text encoders together.
        digest: equal for equal files.
    """

    name: str
    vectors: int
    width: int
    digest: str = ""


@dataclass(frozen=True)
class ControlFacts:
    """Description of a ControlNet that requests can name.

    Attributes:
        name: name in requests.
        digest: 8 hexadecimal digits, equal for equal files.
        types: what a network of the union kind follows, of `pipeline.text.controls.UNION_TYPES`;
            empty for one that follows one kind of map.
    """

    name: str
    digest: str
    types: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CommonFacts:
    """Facts in which models can differ that share programs.

    Attributes:
        name: name in requests: that of a folder or file, or a Hub id.
        revision: the commit on the Hub.
        unet: the name of the network that replaces the checkpoint's own; None if none does.
        scheduler, sigma_schedule: those that draw requests which name none. The scheduler is a key
            of `pipeline.schedulers.config.SCHEDULERS`.
        schedulers: those that requests can name.
        refused_schedulers: the names of the other schedulers, each with the reason why it does not
            fit the model.
        num_train_timesteps: the number of timesteps that the model was trained with.
        num_inference_steps, guidance_scale: the defaults of requests.
        distilled: whether it draws in few steps without a LoRA.
        timesteps: those of a distilled model's usual run, such as "999,749"; "" for spaced ones.
        words: the words and emoji that it was trained with, if its checkpoint lists them.
        guidance_rescale, clip_skip: those of requests that have 0.
    """

    name: str
    revision: str | None = None
    unet: str | None = None
    scheduler: str
    sigma_schedule: str = DEFAULT_SIGMAS
    schedulers: tuple[str, ...] = ()
    refused_schedulers: tuple[tuple[str, str], ...] = ()
    num_train_timesteps: int = 1000
    num_inference_steps: int = NUM_INFERENCE_STEPS
    guidance_scale: float = GUIDANCE_SCALE
    distilled: bool = False
    timesteps: str = ""
    words: tuple[str, ...] = ()
    guidance_rescale: float = 0.0
    clip_skip: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelFacts(CommonFacts):
    """Description of a further model that requests can name, which shares the first one's programs.

    Attributes:
        title: name for people; "" for the name.
        prediction_type: what the network predicts, such as "epsilon" or "v_prediction".
        digest: equal for equal files.
        hash: SHA-256 of its single file in hexadecimal digits; "" if it is not known.
        pictured: whether there is a picture of it.
        text: what the operator says about it.
        fault: the reason why requests cannot name it; "" if they can.
    """

    title: str = ""
    scheduler: str = ""
    prediction_type: str = ""
    digest: str = ""
    hash: str = ""
    pictured: bool = False
    text: str = ""
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts(CommonFacts):
    """Description of the model that draws; the body of `/v1/model`.

    Attributes:
        bundled: whether it is the miniature that comes with this program.
        device, num_devices: the devices in use, such as "NVIDIA H200" and 1.
        height, width: the default size of the pictures, in pixels.
        images_per_request: the most pictures of a request, and the number of slots.
        max_inference_steps: the most steps of a request.
        family: "Stable Diffusion XL", or "Stable Diffusion" for its versions 1 and 2.
        safety_checker: whether the checkpoint's safety checker blurs the pictures that it flags.
        screened: whether the operator's own function checks the pictures.
        sigma_schedules: those that requests can name.
        version: JAX's version, the networks' dtype and their quantisation. If one of these changes,
            so do the pictures.
        more_sizes, coming_sizes: further sizes, (width, height), that requests can ask for, and
            those that are still being compiled.
        loras, embeddings: sorted by name; they may change while the model draws.
        controls: the ControlNets.
        lists: digest of the lists in files that prompts can name; "" for none.
        vae: the name of the network that replaces the checkpoint's own; None if none does.
        tiny_vae: the name of the tiny VAE; None if there is none.
        live: whether it draws live pictures, see `serving.generator.Request`.
        needs_mask: whether it is for inpainting, and draws only from a picture and a mask.
        needs_image: whether it is a refiner, and draws only from a picture or from latents.
        refiner: the name of the refiner that draws the last steps; None if there is none.
        max_clip_skip: the largest `clip_skip` of a request; 0 if the model has none.
        step_cache: whether requests can have a `cache_interval` above 1.
        quantization: "int8" if the UNet multiplies 8-bit whole numbers; None if not.
        models: further models, sorted by name; they may change while the model draws.
        others: models of other architectures, which have programs of their own.
    """

    device: str
    num_devices: int
    height: int
    width: int
    images_per_request: int
    family: str
    safety_checker: bool
    version: str
    bundled: bool = False
    screened: bool = False
    max_inference_steps: int = MAX_INFERENCE_STEPS
    more_sizes: tuple[tuple[int, int], ...] = ()
    coming_sizes: tuple[tuple[int, int], ...] = ()
    loras: tuple[LoraFacts, ...] = ()
    embeddings: tuple[EmbeddingFacts, ...] = ()
    controls: tuple[ControlFacts, ...] = ()
    vae: str | None = None
    schedulers: tuple[str, ...] = tuple(SCHEDULERS)
    sigma_schedules: tuple[str, ...] = (DEFAULT_SIGMAS, *SIGMA_KEYS.values())
    tiny_vae: str | None = None
    live: bool = False
    needs_mask: bool = False
    needs_image: bool = False
    refiner: str | None = None
    max_clip_skip: int = 0
    step_cache: bool = False
    quantization: str | None = None
    lists: str = ""
    models: tuple[ModelFacts, ...] = ()
    others: tuple["Facts", ...] = ()

    def for_model(self, name: str) -> "Facts":
        """Return the facts that hold for a request with a model; "" is the first one.

        The name stays that of the first one.

        Raises:
            InputError: if there is no such model, or it cannot be used.
        """
        if name in ("", self.name):
            return self
        for facts in self.others:
            if name in facts.model_names:
                return replace(facts.for_model(name), name=self.name, others=self.others)
        model_facts = next((model for model in self.models if model.name == name), None)
        if model_facts is None or model_facts.fault:
            names = ", ".join(map(repr, self.model_names))
            reason = f"which cannot be used: {model_facts.fault}; " if model_facts else ""
            raise InputError(f"model is {name!r}; {reason}expected one of {names}")
        return replace(
            self, **{field: getattr(model_facts, field) for field in OF_MODEL - {"name"}}
        )

    def for_known(self, name: str) -> "Facts":
        """Return the facts that hold for a model, or the first one's if it cannot be used."""
        return self.for_model(name) if name in self.model_names else self

    def programs_of(self, name: str) -> str:
        """Return which programs draw with a model; "" for the first one's."""
        names = (facts.name for facts in self.others if name in facts.model_names)
        return next(names, "")

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of the models that requests can name; the first one's comes first."""
        models = (model.name for model in self.models if not model.fault)
        return self.name, *models, *(name for facts in self.others for name in facts.model_names)

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of further models' files by the models' names, as far as they are known."""
        return {model.name: model.hash for model in self.models if model.hash}

    @property
    def lora_names(self) -> frozenset[str]:
        """The names of the LoRAs that requests can name."""
        return frozenset(lora.name for lora in self.loras)

    @property
    def size_names(self) -> tuple[str, ...]:
        """The sizes as texts, such as "1024x768"."""
        return tuple(f"{width}x{height}" for width, height in self.sizes)

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Width and height of the pictures that a request can ask for; the default comes first."""
        return (self.width, self.height), *self.more_sizes

    @property
    def decoders(self) -> tuple[str, ...]:
        """The decoders that requests can name."""
        return (FULL,) if self.tiny_vae is None else (FULL, TINY)

    @property
    def max_cache_interval(self) -> int:
        """The largest `cache_interval` that requests can have."""
        return MAX_CACHE_INTERVAL if self.step_cache else 1

    @property
    def min_denoising_end(self) -> float:
        """The smallest `denoising_end` that requests can have."""
        return 1 if self.refiner is None else MIN_DENOISING_END

    @property
    def usable_loras(self) -> dict[str, LoraFacts]:
        """The LoRAs that can be used, by name."""
        return {lora.name: lora for lora in self.loras if not lora.doubled}

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipes that requests can name, by which a LoRA draws in few steps."""
        return () if self.distilled else find_lora_recipes(self.usable_loras, self.family)

    @property
    def recipe_names(self) -> tuple[str, ...]:
        """The names of the recipes that requests can name."""
        return tuple(recipe.name for recipe in self.recipes)

    @property
    def live_recipe(self) -> str | None:
        """The name of the recipe for live pictures; None if the model needs many steps.

        It is "" for a distilled model, which needs no recipe.
        """
        if self.distilled:
            return ""
        recipes = sorted(self.recipes, key=lambda recipe: abs(recipe.steps[0] - LIVE_STEPS))
        return recipes[0].name if recipes else None


# The attributes in which models differ that share programs.
OF_MODEL = {field.name for field in fields(CommonFacts)}

# The fields that, together with the request, determine the pictures to the bit.
_DRAWN_WITH = (
    "name",
    "revision",
    "vae",
    "unet",
    "tiny_vae",
    "refiner",
    "scheduler",
    "sigma_schedule",
    "version",
    "device",
    "num_devices",
    "height",
    "width",
    "images_per_request",
    "max_inference_steps",
    "safety_checker",
    "screened",
    "step_cache",
    "quantization",
)


def differences(facts: Facts, other_facts: Facts) -> str:
    """Return why two models draw a request differently; "" if the pictures are the same."""
    pairs = [(name, getattr(facts, name), getattr(other_facts, name)) for name in _DRAWN_WITH]
    return ", ".join(
        f"{name} {value!r}, not {other_value!r}"
        for name, value, other_value in pairs
        if value != other_value
    )


def digest_of(request: GenerateRequest, facts: Facts) -> str:
    """Return the digest of what decides a resolved request's pictures beside the request.

    This is the model, with the LoRAs that the request names, and the embeddings and lists that its
    prompts may name. Two instances that have the same draw the same pictures.
    """
    for other_facts in facts.others:
        if request.model in other_facts.model_names:
            return digest_of(request, replace(other_facts, lists=facts.lists))
    texts = request.prompt, request.negative_prompt or ""
    prompts = " ".join(text if isinstance(text, str) else " ".join(text) for text in texts)
    prompts, lora_weights = prompts.casefold(), request.lora_weights
    controls = {control.name for control in parse_controls(request.controls)}
    contents: list[Any] = [
        [getattr(facts, name) for name in _DRAWN_WITH],
        {lora.name: lora.digest for lora in facts.loras if lora.name in lora_weights},
        {
            embedding.name: embedding.digest
            for embedding in facts.embeddings
            if embedding.name.casefold() in prompts
        },
    ]
    if controls:
        contents.append({x.name: x.digest for x in facts.controls if x.name in controls})
    if request.prompt_syntax == A1111 and "__" in prompts:
        contents.append(facts.lists)
    if request.model:
        digests = (model.digest for model in facts.models if model.name == request.model)
        contents.append([request.model, *digests])
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


# The fields that are no property of the model alone: several instances add them up.
_OFFERS: dict[str, Any] = {
    "more_sizes": (),
    "coming_sizes": (),
    "loras": (),
    "embeddings": (),
    "controls": (),
    "lists": "",
    "live": False,
    "models": (),
    "others": (),
}


def without_offers(facts: Facts) -> Facts:
    """Return the facts that are the same for all instances of a model."""
    return replace(facts, **_OFFERS)


def merged(facts: Facts, instances: Sequence[Facts]) -> Facts:
    """Return the facts about a model with what its instances offer together.

    Requests can name what one instance has; prompts, which go to any of them, name the embeddings
    that all have, and the first one's lists. Without instances the facts stay as they are.
    """
    if not instances:
        return facts
    more_sizes = dict.fromkeys(size for instance in instances for size in instance.more_sizes)
    coming_sizes = dict.fromkeys(size for instance in instances for size in instance.coming_sizes)
    first_embeddings, *other_embeddings = (instance.embeddings for instance in instances)
    return replace(
        facts,
        more_sizes=tuple(more_sizes),
        coming_sizes=tuple(size for size in coming_sizes if size not in more_sizes),
        loras=_by_name((lora for instance in instances for lora in instance.loras), "doubled"),
        embeddings=tuple(
            embedding
            for embedding in first_embeddings
            if all(embedding in embeddings for embeddings in other_embeddings)
        ),
        controls=_by_name(
            (control for instance in instances for control in instance.controls), "fault"
        ),
        lists=instances[0].lists,
        models=_by_name((model for instance in instances for model in instance.models), "fault"),
        others=_by_name(
            (other_facts for instance in instances for other_facts in instance.others), "fault"
        ),
        live=all(instance.live for instance in instances),
    )


def _by_name(descriptions: Iterable[Any], fault: str) -> tuple[Any, ...]:
    """Sort descriptions by name; of those with one name, keep the first one without a fault."""
    usable_first = sorted(
        descriptions, key=lambda description: bool(getattr(description, fault, False))
    )
    by_name = {description.name: description for description in reversed(usable_first)}
    return tuple(by_name[name] for name in sorted(by_name))
