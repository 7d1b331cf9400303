"""Pictures drawn with adapters, by this project and by torch's diffusers with PEFT."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline import SDXLPipeline
from tests.checkpoints import EXECUTABLES
from tests.reference.samples import check_sample
from tests.reference.tiny_checkpoints import TINY, Pipeline, load, write
from tools.adapter_files import draw_adapter, is_projection, read_inventory, write_adapter

PROMPTS = ["a red star", "blue"]
NEGATIVE = ["", "on a star"]
GUIDANCE_SCALE = 3.0
STRENGTH = 0.4
FORMATS = {
    "sd_1": ("peft", "diffusers", "diffusers old", "kohya sd"),
    "plain": ("peft", "diffusers", "diffusers old", "kohya sdxl", "kohya sgm"),
}


@dataclass(frozen=True)
class Model:
    """A random checkpoint of one family, loaded by this project."""

    folder: Path
    seed: int
    pipe: SDXLPipeline

    def adapter(self, file: Path, form: str, seed: int) -> Path:
        """Write an adapter of one rank and alpha for all modules, or all projections."""
        inventory = read_inventory(self.folder)
        chosen = is_projection if form == "diffusers old" else lambda _: True
        drawn = draw_adapter(inventory, "lora", self.seed + seed, chosen, ranks=(2,), alpha=2.0)
        return write_adapter(file, drawn, form, inventory)

    def check(self, theirs: Pipeline, loras: dict[str, float]) -> None:
        config = theirs.unet.config
        rng = np.random.default_rng(self.seed)
        shape = (len(PROMPTS), *np.broadcast_to(config.sample_size, 2), config.in_channels)
        noise = rng.standard_normal(shape, dtype=np.float32)
        drawing: Any = _WithLoras(self.pipe, loras)
        check_sample(theirs, drawing, noise, PROMPTS, NEGATIVE, GUIDANCE_SCALE)


@dataclass(frozen=True)
class _WithLoras:
    """A pipeline that draws every request with the same LoRAs."""

    pipe: SDXLPipeline
    loras: dict[str, float]

    def generate(self, *arguments: Any, **others: Any) -> Any:
        return self.pipe.generate(*arguments, loras=self.loras, **others)


@pytest.fixture(scope="module")
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Model]]:
    seed = request.config.getoption("--seed") % 2**31
    found = {}
    for name in FORMATS:
        folder = tmp_path_factory.mktemp("checkpoint")
        write(dataclasses.replace(TINY[name], seed=seed), folder)
        pipe = SDXLPipeline.from_pretrained(
            folder,
            images_per_request=len(PROMPTS),
            devices=jax.devices()[:1],
            cache_dir=EXECUTABLES,
        )
        found[name] = Model(folder, seed, pipe)
    yield found
    jax.clear_caches()


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name, forms in FORMATS.items() for form in forms]
)
def test_pictures(models: dict[str, Model], name: str, form: str, tmp_path: Path) -> None:
    model = models[name]
    file = model.adapter(tmp_path / "drawn.safetensors", form, 0)
    theirs = load(model.folder, None)
    theirs.load_lora_weights(file)
    theirs.fuse_lora(lora_scale=STRENGTH)
    theirs.unload_lora_weights()
    model.pipe.load_lora(file, "drawn")
    try:
        model.check(theirs, {"drawn": STRENGTH})
    finally:
        model.pipe.unload_lora("drawn")


@pytest.mark.parametrize("name", FORMATS)
def test_two_at_once(models: dict[str, Model], name: str, tmp_path: Path) -> None:
    model = models[name]
    theirs = load(model.folder, None)
    strengths = {"first": STRENGTH, "second": -0.2}
    for number, adapter in enumerate(strengths):
        form = FORMATS[name][number]
        file = model.adapter(tmp_path / f"{adapter}.safetensors", form, 1000 * number)
        theirs.load_lora_weights(file, adapter_name=adapter)
        model.pipe.load_lora(file)
    theirs.set_adapters(list(strengths), list(strengths.values()))
    try:
        model.check(theirs, strengths)
    finally:
        for adapter in strengths:
            model.pipe.unload_lora(adapter)
