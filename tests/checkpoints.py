"""Tiny checkpoints that tests may change, and pipelines on them that tests share."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import monitoring
from safetensors.numpy import load_file, save_file

from pipeline import BUNDLED, SDXLPipeline
from pipeline.checkpoints.folder import (
    list_folder,
)
from pipeline.families import read_config
from pipeline.runtime.compiled import CompiledSampler

M = TypeVar("M", bound=nnx.Module)
GOLDEN = Path(__file__).parent / "golden"
PLAIN = GOLDEN / "plain/checkpoint"
SMALLEST = GOLDEN / "karras/checkpoint"
# The cache of the executables of all pipelines in tests, so that each is compiled once.
EXECUTABLES = Path(__file__).parents[1] / ".pytest_cache/executables"
# Schedulers for tests that draw with each: with and without noise, with one evaluation a step and
# with two. `tests/pipeline/schedulers/test_steps.py` has all of them.
DRAWN_BY = ("euler-ancestral", "ddim", "pndm", "dpmsolver++", "heun", "dpmsolver++-sde")


def copy_checkpoint(folder: Path, source: Path = SMALLEST) -> Path:
    return shutil.copytree(source, folder / "checkpoint")


def change_json(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file; the value `...` removes the key."""
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


@cache
def shared_pipeline(devices: int) -> SDXLPipeline:
    """Return a pipeline of the smallest checkpoint for four pictures, on `devices` devices."""
    return SDXLPipeline.from_pretrained(
        SMALLEST,
        num_inference_steps=3,
        devices=jax.devices()[:devices],
        cache_dir=EXECUTABLES,
    )


def miniature() -> SDXLPipeline:
    """Return a pipeline of the bundled model for four pictures, which is compiled only once."""
    return SDXLPipeline.from_pretrained(
        BUNDLED, images_per_request=4, devices=jax.devices()[:1], cache_dir=EXECUTABLES
    )


def encoded(run: CompiledSampler, ids: np.ndarray) -> Any:
    """Return the context of prompts in all slots; the ids are `[2, B, E, L]`."""
    slots = ids.shape[1]
    every, zeroed = np.ones(slots, bool), np.zeros((2, slots), bool)
    rows = [*np.moveaxis(ids, 2, 0)]  # of each text encoder
    embeds = run.encode(run.blank_embeds(), every, rows, zeroed)
    chosen, guidance = np.zeros((2, slots), np.int32), np.zeros(slots, np.float32)
    return run.condition(run.blank_context(), every, [embeds], chosen, guidance)


def random_module(make: Callable[[], M], seed: int = 0) -> M:
    """Return a module with random parameters, made without compiling its initialisers."""
    graphdef, state = nnx.split(nnx.eval_shape(make))
    rng = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.asarray((0.3 * rng.normal(size=leaf.shape)).astype(leaf.dtype))

    return nnx.merge(graphdef, jax.tree.map(draw, state))


class _Compilations:
    """Counter of XLA compilations in this process, from its first use on."""

    def __init__(self) -> None:
        self.count = 0
        monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


_compilations = cache(_Compilations)


class CompilationCount:
    """Context manager whose `value` is the number of compilations that happened inside it."""

    def __enter__(self) -> "CompilationCount":
        self._before = _compilations().count
        return self

    def __exit__(self, *_: object) -> None:
        self.value = _compilations().count - self._before


@contextmanager
def nothing_compiles() -> Iterator[None]:
    """Check that nothing is compiled inside this context."""
    with CompilationCount() as count:
        yield
    assert count.value == 0, f"{count.value} programs were compiled"


def make_inpainting(folder: Path) -> Path:
    """Return a copy of the smallest checkpoint whose UNet takes a mask and a masked picture too."""
    made = copy_checkpoint(folder)
    change_json(made / "model_index.json", _class_name="StableDiffusionXLInpaintPipeline")
    change_json(made / "unet" / "config.json", in_channels=9, out_channels=4)
    [file] = (made / "unet").glob("*.safetensors")
    tensors = load_file(file)
    given = tensors["conv_in.weight"]
    extra = np.random.default_rng(0).normal(0, given.std(), (len(given), 5, *given.shape[2:]))
    tensors["conv_in.weight"] = np.concatenate([given, extra.astype(given.dtype)], axis=1)
    save_file(tensors, file)
    return made


SD_1 = GOLDEN / "sd_1/checkpoint"


def make_model(folder: Path, *changed: str, source: Path = SMALLEST, **scheduler: Any) -> Path:
    """Return a copy of a checkpoint with other weights in some networks."""
    folder.mkdir()
    made = copy_checkpoint(folder, source)
    for network in changed:
        [file] = (made / network).glob("*.safetensors")
        tensors = load_file(file)
        save_file(
            {name: (0.9 * array).astype(array.dtype) for name, array in tensors.items()}, file
        )
    change_json(made / "scheduler/scheduler_config.json", **scheduler)
    return made


PLAIN_CONFIG = read_config(PLAIN)
PLAIN_FILES = list_folder(PLAIN)
