"""The same ask through every entrance: pictures of the same bits, drawn by tiny networks."""

import asyncio
import base64
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from pipeline import SDXLPipeline
from pipeline.batch.drawing import run
from pipeline.batch.prompts import read_batch
from pipeline.request import SETTINGS, STRENGTH, GenerateRequest
from pipeline.resolve import with_recipe
from serving.generators.local import Folders
from serving.generators.watched import LoraFolder
from serving.http.a1111 import bodies
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.registry import Limits
from tests.calls import generate, post
from tests.checkpoints import EXECUTABLES, GOLDEN, PLAIN, SMALLEST
from tests.generators import local_generator
from tests.pages import SENDER, uploaded
from tests.pictures import saved
from tests.web import Site, serve
from tools.adapter_files import draw_adapter, write_adapter
from ui.form.fields import Fields
from ui.page.generation import Drawing
from ui.samples.model_kind import Kind
from ui.wiring import Call

Ask = dict[str, Any]
Picture = Image.Image | None
Pictures = list[Image.Image]

COUNT = 2  # of pictures, as many as are drawn at once
# The recipes, each with the name of the LoRA by which it is recognised.
RECIPES = {
    "lightning-2": "sdxl_lightning_2step_lora",
    "lightning-4": "sdxl_lightning_4step_lora",
    "lightning-8": "sdxl_lightning_8step_lora",
    "hyper-unified": "Hyper-SDXL-1step-lora",
    "hyper-2": "Hyper-SDXL-2steps-lora",
    "hyper-4": "Hyper-SDXL-4steps-lora",
    "hyper-8": "Hyper-SDXL-8steps-lora",
    "lcm": "lcm-lora-sdxl",
    "tcd": "TCD-SDXL-LoRA",
    "dmd2-4": "dmd2_sdxl_4step_lora_fp16",
    "quick": "miniature-quick",
}
A1111 = {"prompt_syntax": "a1111"}
PROMPT = "a [red:blue:0.5] {star|ring|moon} <lora:one:0.5>"
ASKS: dict[str, Ask] = {
    "plain": {},
    "settings": {"negative_prompt": "blue", "guidance_scale": 7.5, "num_inference_steps": 6},
    "variations": {"variation_strength": 0.25, "variation_seed": 9},
    "syntax": A1111 | {"prompt": PROMPT},
    "scheduler": {"scheduler": "DPM++ 2M Karras"},
    "picture": {},
    "larger": A1111
    | {"prompt": PROMPT, "enlarge": "24x24", "enlarge_strength": STRENGTH, "enlarge_steps": 8},
    **{name: {"recipe": name} for name in RECIPES},
    "steps": {"recipe": "hyper-unified", "num_inference_steps": 2},
    "all": A1111 | {"prompt": PROMPT, "recipe": "lightning-8"},
}
ASKS = {name: {"prompt": "a red star", "seed": 7} | ask for name, ask in ASKS.items()}
NOISE = np.random.default_rng(0).integers(0, 256, (40, 50, 4), np.uint8)
# One is reduced and one enlarged; both are cut, and have transparent parts.
STARTS = {"picture": Image.fromarray(NOISE), "all": Image.fromarray(NOISE[:9, :14])}


@dataclass
class Here:
    """A server of a tiny model.

    `drawn` has the pictures that its pipeline drew before, by entrance and ask.
    """

    site: Site
    generator: RequestLifecycle
    folder: Path
    drawn: dict[str, dict[str, Pictures]]

    def run(self, work: Any) -> Any:
        """Return what a coroutine returns on the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.site.loop).result(60)

    def upload(self, image: Picture) -> Any:
        return image and {"image": uploaded(self.folder, "image", image)}


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "refined"])
def here(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Here]:
    pipe = SDXLPipeline.from_pretrained(
        PLAIN if request.param else SMALLEST,
        refiner=GOLDEN / "refiner/checkpoint" if request.param else None,
        images_per_request=COUNT,
        num_inference_steps=5,  # as some recipes may have, too
        devices=jax.devices()[:1],
        cache_dir=EXECUTABLES,
    )
    pipe.add_size(24, 24)
    inventory, folder = pipe._adapters.inventory, tmp_path_factory.mktemp("files")
    for seed, name in enumerate(("one", *RECIPES.values())):
        file = folder / f"{name}.safetensors"
        write_adapter(file, draw_adapter(inventory, "lora", seed), "kohya sdxl", inventory)
        os.utime(file, (0, 0))  # long complete
        pipe.load_lora(file)
    assert pipe.facts.recipe_names == tuple(RECIPES)
    starts = {name: STARTS.get(name) for name in ASKS}
    drawn = {
        "keywords": {i: pipe.generate(**ask, image=starts[i]).images for i, ask in ASKS.items()},
        "request": {
            i: pipe.generate(GenerateRequest(**ask), image=starts[i]).images
            for i, ask in ASKS.items()
        },
        "batch": in_a_batch(pipe, folder),
    }
    for name in pipe.loras:  # the server loads them itself
        pipe.unload_lora(name)
    observer = Observer()
    generator = local_generator(pipe, Limits(), observer, folders=Folders(LoraFolder(folder)))
    with serve(a1111="on", generator=generator, observer=observer) as site:
        yield Here(site, generator, folder, drawn)


def in_a_batch(pipe: SDXLPipeline, folder: Path) -> dict[str, Pictures]:
    """Draw all asks beside each other, as the command does that reads a file of prompts."""
    for name, image in STARTS.items():
        image.save(folder / f"{name}.png")
    files = {name: f"{name}.png" for name in STARTS}
    lines = [ask | {"images": COUNT, "image": files.get(name)} for name, ask in ASKS.items()]
    (folder / "asks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "out").mkdir()
    run(read_batch(folder / "asks.jsonl", {}), folder / "out", lambda: pipe, {})
    drawn: Pictures = [Image.open(file) for file in sorted(folder.glob("out/*.png"))]
    return {name: drawn[COUNT * i :][:COUNT] for i, name in enumerate(ASKS)}


# --- entrances


def over_http(here: Here, ask: Ask, image: Picture) -> Pictures:
    events = generate(here.site, **ask, image=in_base64(image))
    return [decoded(fields["png"]) for name, fields in events if name == "image"]


def by_a1111(here: Here, ask: Ask, image: Picture) -> Pictures:
    """Ask for the settings that a recipe stands for, because a call cannot name it."""
    meant = with_recipe(GenerateRequest(**ask), here.generator.facts.recipes)
    body = {theirs: getattr(meant, ours) for theirs, ours in bodies.SETTINGS.items()}
    body |= {"batch_size": COUNT, "sampler_name": meant.scheduler, "eta": meant.eta}
    if "recipe" in ask:
        body["prompt"] += f"<lora:{RECIPES[ask['recipe']]}:1>"
        body["scheduler"] = "SGM Uniform" if meant.timestep_spacing else "Uniform"
        body["refiner_checkpoint"] = "None"
    larger = {"enable_hr": True, "hr_resize_x": 24, "hr_second_pass_steps": 8}
    body |= larger if "enlarge" in ask else {}
    # Its own strength is another one, and it stretches pictures unless it is told not to.
    body |= {"init_images": [in_base64(image)], "denoising_strength": STRENGTH, "resize_mode": 1}
    answer = post(here.site, body, f"/sdapi/v1/{'img' if image else 'txt'}2img")
    return [*map(decoded, answer.json()["images"])]


def on_the_page(here: Here, ask: Ask, image: Picture) -> Pictures:
    facts = here.generator.facts
    usual = {"steps": facts.num_inference_steps, "guidance_scale": facts.guidance_scale}
    told = {"relay": {"start": here.upload(image)}}
    values = told | Fields(**usual | linked(ask), randomise=False).shown()

    async def draw() -> Any:
        page = Drawing(here.generator, Kind.SDXL)
        asked = await page.for_page(Call(SENDER, values))
        request_id = asked["relay"]["request"]
        async for _ in here.generator.events(request_id):
            pass  # until its end
        return await page.ended(Call(SENDER, {}, {"id": request_id}))

    return [Image.open(each.path) for each in here.run(draw())["pictures"]]


def by_gradio(here: Here, ask: Ask, image: Picture) -> Pictures:
    draw = Drawing(here.generator, Kind.SDXL).for_programs
    files, *_ = here.run(draw(SENDER, **linked(ask), **here.upload(image) or {}))
    return [Image.open(each["path"]) for each in files]


ENTRANCES = (over_http, by_a1111, on_the_page, by_gradio)
# AUTOMATIC1111 has no field for timesteps, and the page hides that for steps beside a recipe.
ABSENT = ((by_a1111, "dmd2-4"), (on_the_page, "steps"))


def linked(ask: Ask) -> Ask:
    """Return settings under their names on the page."""
    return {SETTINGS[name].link: value for name, value in ask.items()}


def in_base64(image: Picture) -> str | None:
    return image and base64.b64encode(saved(image)).decode()


def decoded(png: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(png)))


def pixels(pictures: Pictures) -> np.ndarray:
    return np.stack([*map(np.asarray, pictures)])


@pytest.mark.parametrize("name", ASKS)
def test_an_ask_draws_the_same_bits_through_every_entrance(
    here: Here, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(here.folder))
    drawn = {entrance: pictures[name] for entrance, pictures in here.drawn.items()}
    for draw in ENTRANCES:
        if (draw, name) not in ABSENT:
            drawn[draw.__name__] = draw(here, ASKS[name], STARTS.get(name))
    right = pixels(drawn.pop("keywords"))
    differ = [each for each in drawn if not np.array_equal(pixels(drawn[each]), right)]
    assert differ == []


def test_every_ask_draws_other_pictures(here: Here) -> None:
    pictures = {pixels(each).tobytes() for each in here.drawn["keywords"].values()}
    assert len(pictures) == len(ASKS)
