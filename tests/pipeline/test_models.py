"""Models that share the compiled programs: the bits of each, nothing compiled, no half of one."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline import CheckpointError, InputError, SDXLPipeline, metadata
from pipeline.request import GenerateRequest
from pipeline.runtime import models
from pipeline.runtime.adapters import Adapters
from pipeline.runtime.models import Model
from tests.checkpoints import (
    EXECUTABLES,
    GOLDEN,
    PLAIN,
    SD_1,
    SMALLEST,
    copy_checkpoint,
    make_model,
    nothing_compiles,
    shared_pipeline,
)
from tests.single_files import thin_file, thin_folder, write_weights
from tools.adapter_files import draw_adapter, write_adapter

REFINER = GOLDEN / "refiner/checkpoint"
NETWORKS = ("unet", "vae", "text_encoder", "text_encoder_2")


def start(checkpoint: Path, **options: Any) -> SDXLPipeline:
    return SDXLPipeline.from_pretrained(
        checkpoint,
        num_inference_steps=3,
        devices=jax.devices()[:1],
        cache_dir=EXECUTABLES,
        **options,
    )


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("other") / "b", *NETWORKS)


@pytest.fixture(scope="module")
def shared() -> SDXLPipeline:
    return start(SMALLEST)


@pytest.fixture
def pipe(shared: SDXLPipeline) -> Iterator[SDXLPipeline]:
    yield shared
    for facts in shared.facts.models:
        shared.remove_model(facts.name)
    for name in shared.loras:
        shared.unload_lora(name)
    shared._adapters.select({})


def draw(pipe: SDXLPipeline, **options: Any) -> np.ndarray:
    result = pipe.generate(
        "a star", seed=3, num_inference_steps=2, output_type="np", images=1, **options
    )
    return result.images


def test_a_model_draws_the_bits_of_a_process_started_with_it(
    pipe: SDXLPipeline, other: Path
) -> None:
    before = draw(pipe)
    with nothing_compiles():
        assert pipe.add_model(other, name="b") == "b"
        of_b = draw(pipe, model="b")
        again = draw(pipe)
        by_name = draw(pipe, model=pipe.facts.name)
    np.testing.assert_array_equal(of_b, draw(start(other)))
    assert not np.array_equal(of_b, before)
    np.testing.assert_array_equal(again, before)
    np.testing.assert_array_equal(by_name, before)


def test_all_runs_of_a_picture_are_the_same_models(
    pipe: SDXLPipeline, other: Path, tmp_path: Path
) -> None:
    pipe.add_model(other, "a")
    request = GenerateRequest("a star", seed=3, num_inference_steps=4, model="a")
    request = replace(request, enlarge=pipe.facts.size_names[0])
    right = pipe.generate(request, images=1, output_type="np").images
    drawing = pipe.prepare(request, 1, output_type="np")
    pipe.begin(drawing)
    pipe.advance()
    pipe.remove_model("a")
    pipe.add_model(make_model(tmp_path / "a", "unet"), "a")
    while not drawing.is_over:
        pipe.advance()
    np.testing.assert_array_equal(drawing.result().images, right)


def test_a_picture_names_its_model(pipe: SDXLPipeline, other: Path) -> None:
    pipe.add_model(other, name="b")
    some: tuple[Any, ...] = {"model": "b"}, {}
    [named], [own] = (
        pipe.generate("a star", images=1, num_inference_steps=1, **chosen).images for chosen in some
    )
    texts = [metadata.from_text(each.info["parameters"]).model for each in (named, own)]
    assert texts == ["b", pipe.facts.name]


def test_loras_follow_the_model(pipe: SDXLPipeline, other: Path, tmp_path: Path) -> None:
    inventory = pipe._adapters.inventory
    file = write_adapter(
        tmp_path / "one.safetensors", draw_adapter(inventory, "lora", 0), "kohya sdxl", inventory
    )
    loras: dict[str, Any] = {"loras": {"one": 0.5}}
    alone = start(other)
    for each in (pipe, alone):
        each.load_lora(file)
    before = draw(pipe), draw(pipe, **loras)
    pipe.add_model(other, name="b")
    for _ in range(2):
        np.testing.assert_array_equal(draw(pipe, model="b", **loras), draw(alone, **loras))
        np.testing.assert_array_equal(draw(pipe, **loras), before[1])
        np.testing.assert_array_equal(draw(pipe, model="b"), draw(alone))
        np.testing.assert_array_equal(draw(pipe), before[0])


def test_embeddings_follow_the_model(pipe: SDXLPipeline, other: Path, tmp_path: Path) -> None:
    widths = [each.hidden_size for each in pipe._config.text_encoders.values()]
    vectors = np.random.default_rng(0).normal(size=(2, sum(widths))).astype(np.float32)
    parts = {"clip_l": vectors[:, : widths[0]], "clip_g": vectors[:, widths[0] :]}
    save_file(
        {key: np.ascontiguousarray(x) for key, x in parts.items()}, tmp_path / "odd.safetensors"
    )
    alone = start(other)
    pipe.add_model(other, name="b")
    drawn, some = [], tuple[Any, ...](({"model": "b"}, {}))
    for each, options in zip((pipe, alone), some, strict=True):
        each.load_embedding(tmp_path / "odd.safetensors")
        drawn.append(each.generate("odd", seed=1, images=1, output_type="np", **options).images)
        each.unload_embedding("odd")
    np.testing.assert_array_equal(*drawn)


def test_equal_tensors_are_not_moved(pipe: SDXLPipeline, tmp_path: Path) -> None:
    pipe.add_model(make_model(tmp_path / "b", "unet"), name="b")
    for model in ("b", "", "b", ""):
        before = pipe._compiled.parameters.leaves
        old = {name: [*before[name]] for name in NETWORKS}
        draw(pipe, model=model)
    new = pipe._compiled.parameters.leaves
    for name in NETWORKS:
        same = [one is two for one, two in zip(old[name], new[name], strict=True)]
        assert all(same) == (name != "unet")


def test_a_model_that_does_not_fit_the_memory_is_read_each_time(
    pipe: SDXLPipeline, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = draw(pipe)
    pipe.add_model(other, name="b")
    monkeypatch.setattr(pipe._adapters._store, "limit", 0)
    of_b = draw(pipe, model="b")
    held = pipe._adapters._store._held  # type: ignore[union-attr]
    assert not any(model.name == "b" for model in held)
    np.testing.assert_array_equal(draw(pipe), before)
    monkeypatch.undo()
    np.testing.assert_array_equal(draw(pipe, model="b"), of_b)


def test_the_store_keeps_the_latest_models(
    pipe: SDXLPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pipe._adapters._store
    assert store is not None
    for name in "abc":
        pipe.add_model(make_model(tmp_path / name, "unet"), name=name)
    monkeypatch.setattr(store, "limit", 2 * store._needed)
    for name in "abcb":
        draw(pipe, model=name)
    assert [model.name for model in store._held] == ["c", "b"]


def test_a_model_that_is_removed_while_it_is_read_is_not_kept(
    pipe: SDXLPipeline, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, removed = threading.Event(), threading.Event()
    read = Model.read

    def slow(model: Model, slots: Any) -> Iterator[Any]:
        reads.set()
        assert removed.wait(60)
        return read(model, slots)

    monkeypatch.setattr(Model, "read", slow)
    pipe.add_model(other, name="b")
    store = pipe._adapters._store
    assert store is not None
    reading = store.read_ahead(pipe._models.drawer("b", pipe._compiled).model)
    assert reads.wait(60)
    pipe.remove_model("b")
    removed.set()
    assert reading is not None
    assert reading.result(60)  # what waits for it can be drawn
    assert not any(model.name == "b" for model in store._held)


@pytest.mark.parametrize("limit", [0, 2**40])
def test_a_change_that_fails_anywhere_leaves_no_half(
    pipe: SDXLPipeline,
    other: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
) -> None:
    """A tensor cannot be read, or the devices take no more, at every stage of a change."""
    before = draw(pipe)
    pipe.add_model(other, name="b")
    monkeypatch.setattr(pipe._adapters._store, "limit", limit)
    monkeypatch.setattr("pipeline.runtime.adapters.CHUNK_BYTES", 2**12)
    of_b = draw(pipe, model="b")
    draw(pipe)

    def failing_read(n: int) -> Callable[..., Any]:
        read = Model.read

        def failing(model: Model, slots: Any) -> Iterator[Any]:
            for i, each in enumerate(read(model, slots)):
                if i == n:
                    raise CheckpointError("the disk is gone")
                yield each

        return failing

    def failing_place(n: int) -> Callable[..., Any]:
        place, calls = Adapters._place, count()

        def failing(*args: Any) -> None:
            place(*args)
            if next(calls) == n:
                raise MemoryError("the device is full")

        return failing

    last = len(pipe._adapters._store.slots) - 1  # type: ignore[union-attr]
    reads = [(Model, "read", failing_read(n)) for n in (0, 1, last // 2, last)]
    places = [(Adapters, "_place", failing_place(n)) for n in (0, 1, 20)]
    for target, name, failing in (*reads, *places):
        pipe.remove_model("b")  # so that it is read anew
        pipe.add_model(other, name="b")
        with monkeypatch.context() as patch:
            patch.setattr(target, name, failing)
            with pytest.raises((CheckpointError, MemoryError)):
                draw(pipe, model="b")
        np.testing.assert_array_equal(draw(pipe), before)
        np.testing.assert_array_equal(draw(pipe, model="b"), of_b)
        draw(pipe)


def test_a_file_that_was_cut_or_replaced_is_refused(pipe: SDXLPipeline, tmp_path: Path) -> None:
    before = draw(pipe)
    made = make_model(tmp_path / "b", *NETWORKS)
    pipe.add_model(made, name="b")
    [file] = (made / "unet").glob("*.safetensors")
    whole = file.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], b"", whole):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=str(file)):
            draw(pipe, model="b")
        np.testing.assert_array_equal(draw(pipe), before)
    file.unlink()
    with pytest.raises(CheckpointError, match=str(file)):
        draw(pipe, model="b")
    np.testing.assert_array_equal(draw(pipe), before)


def test_another_shape_is_not_usable_here(pipe: SDXLPipeline, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot draw with it, because"):
        pipe.add_model(PLAIN, name="b")
    assert pipe.facts.models == ()
    with pytest.raises(InputError, match="model is 'b'; expected one of 'checkpoint'"):
        draw(pipe, model="b")
    with pytest.raises(InputError, match="a model named 'checkpoint' is there"):
        pipe.add_model(SMALLEST)
    with pytest.raises(InputError, match="no model named 'b' was added; there are: none"):
        pipe.remove_model("b")


def test_a_model_has_its_own_scheduler(pipe: SDXLPipeline, tmp_path: Path) -> None:
    made = make_model(tmp_path / "b", "unet", prediction_type="v_prediction")
    pipe.add_model(made, name="b")
    [facts] = pipe.facts.models
    assert facts.prediction_type == "v_prediction"
    np.testing.assert_array_equal(draw(pipe, model="b"), draw(start(made)))


@pytest.mark.slow
def test_a_single_file_takes_the_place_of_a_folder(tmp_path: Path) -> None:
    folder = thin_folder(tmp_path / "a", "sdxl")
    size: dict[str, Any] = {"height": 64, "width": 64, "images_per_request": 1}
    other = thin_folder(tmp_path / "other", "sdxl")
    write_weights(other, seed=1)
    file = thin_file(other, tmp_path / "b.safetensors")
    pipe, alone = start(folder, **size), draw(start(file, **size))
    before = draw(pipe)
    with nothing_compiles():
        assert pipe.add_model(file) == "b"
        of_b, again = draw(pipe, model="b"), draw(pipe)
    np.testing.assert_array_equal(of_b, alone)
    np.testing.assert_array_equal(again, before)


@pytest.mark.slow
def test_the_refiner_follows_the_model(tmp_path: Path) -> None:
    """Its text encoder and its VAE are those of the model; its UNet stays."""
    options: dict[str, Any] = {"refiner": REFINER, "images_per_request": 1}
    pipe = start(PLAIN, **options)
    other = make_model(tmp_path / "b", *NETWORKS, source=PLAIN)
    given: dict[str, Any] = {"num_inference_steps": 5, "output_type": "np", "denoising_end": 0.6}

    def refined(pipe: SDXLPipeline, **chosen: Any) -> np.ndarray:
        return pipe.generate("a star", "blue", seed=4, **given, **chosen).images

    before, alone = refined(pipe), refined(start(other, **options))
    pipe.add_model(other, name="b")
    with nothing_compiles():
        for _ in range(2):
            np.testing.assert_array_equal(refined(pipe, model="b"), alone)
            np.testing.assert_array_equal(refined(pipe), before)
    assert not np.array_equal(before, alone)
    requests = [GenerateRequest("a star", "blue", seed=4, num_inference_steps=5, denoising_end=0.6)]
    requests.append(replace(requests[0], model="b"))
    drawings = [pipe.prepare(each, 1, output_type="np") for each in requests * 2]
    for drawing in drawings:
        pipe.begin(drawing)
    while pipe.is_busy:
        pipe.advance()
    for drawing, right in zip(drawings, (before, alone) * 2, strict=True):
        np.testing.assert_array_equal(drawing.result().images, right)


@pytest.mark.parametrize("devices", [2, 8])
def test_on_several_devices(other: Path, devices: int) -> None:
    pipe = shared_pipeline(devices)
    before = draw(pipe)
    pipe.add_model(other, name="b")
    of_b, again = draw(pipe, model="b"), draw(pipe)
    pipe.remove_model("b")
    np.testing.assert_array_equal(again, before)
    np.testing.assert_allclose(of_b, draw(start(other)), atol=1e-5)


def test_quantised_parameters_follow_the_model(other: Path) -> None:
    pipe = start(SMALLEST, quantization="int8")
    before = draw(pipe)
    pipe.add_model(other, name="b")
    np.testing.assert_array_equal(draw(pipe, model="b"), draw(start(other, quantization="int8")))
    np.testing.assert_array_equal(draw(pipe), before)


def test_the_operators_vae_is_that_of_all_models(other: Path) -> None:
    pipe = start(SMALLEST, vae=SMALLEST)
    pipe.add_model(other, name="b")
    np.testing.assert_array_equal(draw(pipe, model="b"), draw(start(other, vae=SMALLEST)))


def test_equal_arrays_exist_once() -> None:
    one = np.array([np.nan, 1.0, 2.0], np.float32)
    assert models._shared([one.copy()], [[one]])[0] is one
    assert models._shared([one + 1], [[one]])[0] is not one


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of a Stable Diffusion 1."""
    return copy_checkpoint(tmp_path_factory.mktemp("sd"), SD_1).rename(
        tmp_path_factory.mktemp("small") / "small"
    )


@pytest.fixture(scope="module")
def both(small: Path) -> SDXLPipeline:
    """Return a pipeline of a Stable Diffusion XL and a Stable Diffusion 1."""
    return start(SMALLEST, models=[small])


@pytest.mark.slow
def test_a_model_of_another_shape_has_programs_of_its_own(both: SDXLPipeline, small: Path) -> None:
    [other] = both.facts.others
    assert (other.family, other.loras) == ("Stable Diffusion", ())
    assert both.facts.model_names == (both.facts.name, "small")
    alone = {"": start(SMALLEST), "small": start(small)}
    for model in ("", "small", "", "small"):
        with nothing_compiles():
            drawn = draw(both, model=model)
        np.testing.assert_array_equal(drawn, draw(alone[model]))
    [picture] = both.generate("a star", model="small", images=1).images
    assert metadata.from_text(picture.info["parameters"]).model == "small"


def test_a_larger_family_can_stand_beside_a_smaller_one(small: Path, tmp_path: Path) -> None:
    large = make_model(tmp_path / "large").rename(tmp_path / "one")
    pipe = start(small, models=[large])
    assert pipe.facts.model_names == ("small", "one")
    with pytest.raises(CheckpointError, match="a Stable Diffusion XL, not a Stable Diffusion;"):
        pipe.add_model(large, "two")


def test_pictures_of_both_shapes_are_drawn_side_by_side(both: SDXLPipeline) -> None:
    requests = [GenerateRequest("a star", seed=3, model=model) for model in ("", "small")]
    alone = [both.generate(request, images=2, output_type="np").images for request in requests]
    drawings = [both.prepare(request, 2, output_type="np") for request in requests]
    for drawing in drawings:
        both.begin(drawing)
    together = 0
    while not all(drawing.is_over for drawing in drawings):
        both.advance()
        together = max(together, both.in_slots)
    assert together == 4
    for drawing, right in zip(drawings, alone, strict=True):
        np.testing.assert_array_equal(drawing.result().images, right)


def test_further_models_join_those_that_are_built_as_they_are(
    tmp_path: Path, both: SDXLPipeline, small: Path
) -> None:
    one = make_model(tmp_path / "a", "unet").rename(tmp_path / "one")
    two = make_model(tmp_path / "b", "unet", source=SD_1).rename(tmp_path / "two")
    pipe = start(SMALLEST, models=[small, one, two])
    [other] = pipe.facts.others
    assert [model.name for model in pipe.facts.models] == ["one"]
    assert [model.name for model in other.models] == ["two"]
    with nothing_compiles():
        changed = draw(pipe, model="two")
        np.testing.assert_array_equal(draw(pipe, model="small"), draw(both, model="small"))
    assert not np.array_equal(changed, draw(pipe, model="small"))
    pipe.remove_model("two")
    with pytest.raises(InputError, match="model is 'two'"):
        draw(pipe, model="two")


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="two models are named 'checkpoint'"):
        start(SMALLEST, models=[SD_1])


def test_a_name_is_one_models_in_all_programs(
    both: SDXLPipeline, small: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="a model named 'small' is there"):
        both.add_model(make_model(tmp_path / "a", "unet"), "small")
    one, same = (
        make_model(tmp_path / name, "unet", source=source).rename(tmp_path / name / "one")
        for name, source in (("b", SMALLEST), ("c", SD_1))
    )
    with pytest.raises(InputError, match="a model named 'one' is there"):
        start(SMALLEST, models=[small, one, same])


def test_loras_and_embeddings_are_the_first_models(both: SDXLPipeline, tmp_path: Path) -> None:
    inventory = both._adapters.inventory
    adapter = draw_adapter(inventory, "lora", 0)
    both.load_lora(write_adapter(tmp_path / "a.safetensors", adapter, "kohya sdxl", inventory))
    try:
        with pytest.raises(InputError, match="no LoRA named 'a'"):
            both.generate("a star", model="small", loras={"a": 1.0})
    finally:
        both.unload_lora("a")
