"""Recipes of distilled models: recognition by name and contents, and the settings they give."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline import SDXLPipeline
from pipeline.checkpoints.source import fetch, fetch_component
from pipeline.errors import InputError
from pipeline.families import FamilyReader
from pipeline.families.family import Config, image_size
from pipeline.families.single_files import UNET_FILE
from pipeline.images import metadata
from pipeline.request import GenerateRequest, faults, misfits
from pipeline.resolve import with_recipe
from pipeline.schedulers.config import SCHEDULERS
from pipeline.schedulers.recipes import (
    LORAS,
    MODELS,
    SDXL,
    STABLE_DIFFUSION,
    Recipe,
    find_lora_recipes,
    find_model_recipe,
)
from tests.checkpoints import EXECUTABLES, GOLDEN, change_json, copy_checkpoint

CONSISTENCY = GOLDEN / "consistency/checkpoint"
SD_1 = GOLDEN / "sd_1/checkpoint"
XL = GOLDEN / "plain/checkpoint"


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("stabilityai/sdxl-turbo", "sdxl-turbo"),
        ("sd_xl_turbo_1.0_fp16.safetensors", "sdxl-turbo"),
        ("stabilityai/sd-turbo/sd_turbo.safetensors", "sd-turbo"),
        ("ByteDance/SDXL-Lightning/sdxl_lightning_4step_unet.safetensors", "lightning-4"),
        ("/models/sdxl_lightning_8step.safetensors", "lightning-8"),
        ("sdxl_lightning_1step_unet_x0", "lightning-1"),
        ("ByteDance/Hyper-SD/Hyper-SDXL-1step-Unet.safetensors", "hyper-1"),
        ("Hyper-SDXL-1step-Unet-Comfyui.fp16.safetensors", "hyper-1"),
        ("latent-consistency/lcm-sdxl", "lcm"),
        ("latent-consistency/lcm-ssd-1b", "lcm"),
        ("SimianLuo/LCM_Dreamshaper_v7", "lcm"),
        ("dmd2_sdxl_4step_unet_fp16", "dmd2-4"),
        ("dmd2_sdxl_1step_unet", "dmd2-1"),
        ("stabilityai/stable-diffusion-xl-base-1.0", None),
        ("DreamShaperXL_Lightning.safetensors", None),
        ("sdxl_lightning_4step_lora.safetensors", None),
        ("sdxl-turbo-merged", None),
    ],
)
def test_models_are_recognised_by_name(name: str, recipe: str | None) -> None:
    found = find_model_recipe([name])
    assert (found and found.name) == recipe


@pytest.mark.parametrize(
    ("lora", "family", "recipe"),
    [
        ("sdxl_lightning_4step_lora", SDXL, "lightning-4"),
        ("Hyper-SDXL-8steps-lora", SDXL, "hyper-8"),
        ("Hyper-SDXL-1step-lora", SDXL, "hyper-unified"),
        ("Hyper-SD15-2steps-lora", STABLE_DIFFUSION, "hyper-2"),
        ("lcm-lora-sdxl", SDXL, "lcm"),
        ("lcm-lora-ssd-1b", SDXL, "lcm"),
        ("lcm-lora-sdv1-5", STABLE_DIFFUSION, "lcm"),
        ("TCD-SDXL-LoRA", SDXL, "tcd"),
        ("TCD-SD15-LoRA", STABLE_DIFFUSION, "tcd"),
        ("dmd2_sdxl_4step_lora_fp16", SDXL, "dmd2-4"),
        ("lcm-lora-sdxl", STABLE_DIFFUSION, None),
        ("Hyper-SDXL-8steps-CFG-lora", SDXL, None),
        ("my-lcm-lora-sdxl", SDXL, None),
    ],
)
def test_loras_are_recognised_by_name(lora: str, family: str, recipe: str | None) -> None:
    found = find_lora_recipes(["pixel", lora], family)
    assert [(each.name, each.lora) for each in found] == ([(recipe, lora)] if recipe else [])


def test_of_several_loras_with_a_recipe_the_first_is_used() -> None:
    [found] = find_lora_recipes(["lcm-lora-ssd-1b", "lcm-lora-sdxl"], SDXL)
    assert found.lora == "lcm-lora-sdxl"


@pytest.mark.parametrize("recipe", [*MODELS, *LORAS], ids=lambda recipe: recipe.pattern)
def test_every_recipe_can_be_drawn(recipe: Any) -> None:
    own = SCHEDULERS[recipe.scheduler]
    assert recipe.prediction_type in (None, *own.predictions)
    assert not recipe.timesteps or own.own_timesteps
    assert not recipe.timesteps or {len(recipe.timesteps)} == {*recipe.steps}
    assert recipe.eta is None or own.eta is not None
    assert (recipe.timestep_spacing is None) == (recipe.scheduler in ("lcm", "tcd"))
    known = {
        name: value
        for name, value in recipe.settings.items()
        if name in ("num_inference_steps", "guidance_scale")
    }
    assert not [*faults(GenerateRequest(prompt="", **known))]


def read(model: Path, unet: Path | None = None, **options: Any) -> Config:
    other = None if unet is None else fetch_component(str(unet), "unet", UNET_FILE)
    reader = FamilyReader(unet=other, **options).for_model(str(model))
    return fetch(str(model), None, reader).config


def test_a_models_name_gives_its_scheduler_and_size(tmp_path: Path) -> None:
    named = shutil.copytree(XL, tmp_path / "sdxl-turbo")
    turbo, plain = read(named), read(XL)
    assert plain.recipe is None
    assert (turbo.scheduler.name, turbo.scheduler.timestep_spacing) == (
        "euler-ancestral",
        "trailing",
    )
    assert turbo.scheduler.betas.end == plain.scheduler.betas.end
    assert image_size(turbo, None, None) == (512, 512)
    assert image_size(turbo, 64, None) == (64, 512)


def test_the_operators_scheduler_comes_first(tmp_path: Path) -> None:
    named = shutil.copytree(XL, tmp_path / "sdxl_lightning_1step_x0")
    config = read(named, scheduler="heun")
    # The type of prediction is a property of the weights, and the spacing suits all schedulers.
    assert (config.scheduler.name, config.scheduler.prediction_type) == ("heun", "sample")
    assert config.scheduler.timestep_spacing == "trailing"


def test_a_recipe_of_another_family_is_ignored(tmp_path: Path) -> None:
    assert read(shutil.copytree(SD_1, tmp_path / "sdxl-turbo")).recipe is None


def test_a_unet_that_takes_the_guidance_scale_is_an_lcm_of_any_name(tmp_path: Path) -> None:
    config = read(copy_checkpoint(tmp_path, CONSISTENCY))
    assert config.recipe is not None
    assert (config.recipe.name, config.scheduler.name) == ("lcm", "lcm")
    plain = copy_checkpoint(tmp_path / "plain", SD_1)
    assert read(plain).recipe is None


def test_the_pipeline_class_of_latent_consistency_models(tmp_path: Path) -> None:
    folder = copy_checkpoint(tmp_path, CONSISTENCY)
    change_json(folder / "model_index.json", _class_name="LatentConsistencyModelPipeline")
    assert read(folder).family.name == STABLE_DIFFUSION


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_a_lone_unet_file_gives_its_recipe(prefix: str, tmp_path: Path) -> None:
    weights = load_file(XL / "unet/diffusion_pytorch_model.safetensors")
    file = tmp_path / "sdxl_lightning_4step_unet.safetensors"
    save_file({prefix + name: tensor for name, tensor in weights.items()}, file)
    config = read(XL, file)
    assert config.recipe is not None
    assert config.recipe.name == "lightning-4"
    assert (config.scheduler.name, config.scheduler.timestep_spacing) == ("euler", "trailing")
    assert config.networks["unet"] == read(XL).networks["unet"]


def test_the_name_of_a_replaced_unet_does_not_count(tmp_path: Path) -> None:
    model = shutil.copytree(XL, tmp_path / "sdxl-turbo")
    assert read(model, XL / "unet").recipe is None


def test_a_consistency_unet_over_another_model(tmp_path: Path) -> None:
    """The layer that only such UNets have is found in a file without a configuration."""
    weights = load_file(XL / "unet/diffusion_pytorch_model.safetensors")
    channels = len(weights["conv_in.bias"])
    weights["time_embedding.cond_proj.weight"] = np.zeros((channels, 12), np.float32)
    save_file(weights, tmp_path / "mine.safetensors")
    config = read(XL, tmp_path / "mine.safetensors")
    assert config.networks["unet"].time_cond_proj_dim == 12
    assert config.recipe is not None
    assert (config.recipe.name, config.scheduler.name) == ("lcm", "lcm")


def with_lightning(**given: Any) -> GenerateRequest:
    available = find_lora_recipes(["sdxl_lightning_4step_lora", "lcm-lora-sdxl"], SDXL)
    return with_recipe(GenerateRequest(prompt="a star", **given), available)


def test_a_recipe_sets_the_lora_and_its_settings() -> None:
    request = with_lightning(recipe="lightning-4", loras="pixel:0.5", sigma_schedule="karras")
    assert request == GenerateRequest(
        prompt="a star",
        guidance_scale=1.0,
        num_inference_steps=4,
        loras="pixel:0.5,sdxl_lightning_4step_lora:1",
        scheduler="euler",
        sigma_schedule="default",
        timestep_spacing="trailing",
    )
    # It was made for these sigmas, whatever the model or the request would use otherwise.
    assert with_lightning(recipe="lcm", sigma_schedule="karras").sigma_schedule == "default"
    assert with_lightning() == GenerateRequest(prompt="a star")


def test_steps_and_a_weight_that_the_recipe_allows_are_kept() -> None:
    request = with_lightning(recipe="lcm", num_inference_steps=6, loras="lcm-lora-sdxl:0.7")
    assert (request.num_inference_steps, request.loras) == (6, "lcm-lora-sdxl:0.7")
    assert with_lightning(recipe="lcm", num_inference_steps=30).num_inference_steps == 4


@pytest.mark.parametrize("recipe", LORAS, ids=lambda recipe: recipe.title)
def test_a_sigma_schedule_does_not_stand_in_a_recipes_way(recipe: Recipe) -> None:
    request = GenerateRequest(prompt="a star", sigma_schedule="karras")
    assert not list(misfits(replace(request, **recipe.settings), "euler"))


def test_a_recipe_whose_lora_is_missing() -> None:
    with pytest.raises(InputError, match=r"recipe is 'tcd'; expected one of 'lightning-4', 'lcm'"):
        with_lightning(recipe="tcd")
    with pytest.raises(InputError, match=r"recipe is 'tcd'; expected none, without its LoRA"):
        with_recipe(GenerateRequest(prompt="a star", recipe="tcd"), ())


def test_too_many_loras_beside_a_recipe() -> None:
    loras = ",".join(f"{name}:1" for name in "abcdefgh")
    with pytest.raises(InputError, match=r"recipe 'lcm': 9 LoRAs are too many"):
        with_lightning(recipe="lcm", loras=loras)


@pytest.mark.slow
def test_a_models_recipe_gives_the_defaults(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unet = tmp_path / "dmd2_sdxl_4step_unet.safetensors"
    shutil.copy(XL / "unet/diffusion_pytorch_model.safetensors", unet)
    with caplog.at_level("INFO", "pipeline"):
        pipe = SDXLPipeline.from_pretrained(
            XL, images_per_request=2, devices=jax.devices()[:1], cache_dir=EXECUTABLES, unet=unet
        )
    assert "recognised DMD2" in caplog.text
    assert (pipe.facts.unet, pipe.facts.scheduler) == (unet.name, "lcm")
    assert (pipe.facts.num_inference_steps, pipe.facts.guidance_scale) == (4, 1.0)
    assert pipe.facts.recipes == ()

    def settings(**options: Any) -> metadata.Settings:
        [image] = pipe.generate("a red star", images=1, **options).images
        return metadata.from_text(image.info[metadata.KEY])

    own = settings()
    assert (own.unet, own.scheduler, own.timesteps) == (unet.name, "lcm", "999,749,499,249")
    assert settings(num_inference_steps=2).timesteps is None
    assert settings(scheduler="euler").timesteps is None


# --- the documentation

DOCS = Path(__file__).parents[3] / "docs/models.md"


def described(recipe: Recipe) -> list[str]:
    """Return the last three columns of a recipe's row in the documentation."""
    default, low, high = recipe.steps[0], min(recipe.steps), max(recipe.steps)
    steps = f"{default}; {low} to {high}" if len(recipe.steps) > 1 else f"{default}"
    details = [
        recipe.timestep_spacing,
        recipe.timesteps and f"timesteps {','.join(map(str, recipe.timesteps))}",
        recipe.eta is not None and f"eta {recipe.eta:g}",
    ]
    scheduler = ", ".join([f"`{recipe.scheduler}`", *filter(None, details)])
    return [steps, scheduler, f"{recipe.guidance_scale:g}"]


def test_the_documentation_lists_every_recipe() -> None:
    section = DOCS.read_text().partition("## Models of few steps")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if "| `" in line]
    missing = [*MODELS, *LORAS]
    for names, *columns in rows:
        for name in re.findall(r"`([^`]+)`", names):
            found = [recipe for recipe in (*MODELS, *LORAS) if recipe.matches(name)]
            assert len(found) == 1, name
            named = [f"`{found[0].name}`"] if found[0] in LORAS else []
            assert columns == [*named, *described(found[0])], name
            missing = [recipe for recipe in missing if recipe is not found[0]]
    assert not missing
