"""LoRAs at run time: merged into the parameters and taken out to the bit; nothing compiles."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline import CheckpointError, DeviceError, InputError, SDXLPipeline, metadata
from pipeline.adapters.adapter import Adapter, Change
from pipeline.adapters.reader import read_adapter
from pipeline.checkpoints.weights import modern_name
from pipeline.request import GenerateRequest
from pipeline.runtime import adapters
from pipeline.runtime.adapters import Adapters
from tests.checkpoints import (
    EXECUTABLES,
    SMALLEST,
    copy_checkpoint,
    nothing_compiles,
    shared_pipeline,
)
from tools.adapter_files import draw_adapter, write_adapter

WEIGHTS = {"one": (0.5, 0.5), "two": (-0.25, 0.75)}
NETWORKS = ("unet", "text_encoder", "text_encoder_2")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return two LoRAs that change all weights of the smallest checkpoint."""
    folder = tmp_path_factory.mktemp("loras")
    inventory = shared_pipeline(1)._adapters.inventory
    drawn = {name: draw_adapter(inventory, "lora", seed) for seed, name in enumerate(WEIGHTS)}
    return {
        name: write_adapter(folder / f"{name}.safetensors", each, "kohya sdxl", inventory)
        for name, each in drawn.items()
    }


@pytest.fixture
def pipe() -> Iterator[SDXLPipeline]:
    with_loras = shared_pipeline(1)
    yield with_loras
    clear(with_loras)


def clear(pipe: SDXLPipeline) -> None:
    for name in pipe.loras:
        pipe.unload_lora(name)
    pipe._adapters.select({})


def load(pipe: SDXLPipeline, files: Mapping[str, Path]) -> None:
    for name, file in files.items():
        assert pipe.load_lora(file) == name


def draw(pipe: SDXLPipeline, **options: Any) -> np.ndarray:
    return pipe.generate(
        "a star", seed=3, num_inference_steps=2, output_type="np", **options
    ).images


def leaves(pipe: SDXLPipeline) -> dict[str, list[jax.Array]]:
    return {name: list(each) for name, each in pipe._compiled.parameters.leaves.items()}


def bits(pipe: SDXLPipeline) -> dict[str, list[bytes]]:
    return {
        name: [np.asarray(leaf).tobytes() for leaf in each] for name, each in leaves(pipe).items()
    }


def test_a_recipe_is_its_lora_with_its_settings(pipe: SDXLPipeline, files: dict[str, Path]) -> None:
    pipe.load_lora(files["one"], name="sdxl_lightning_2step_lora")
    assert [recipe.name for recipe in pipe.facts.recipes] == ["lightning-2"]
    with nothing_compiles():
        drawn = pipe.generate("a star", seed=3, recipe="lightning-2").images[0]
    settings: dict[str, Any] = {
        "num_inference_steps": 2,
        "guidance_scale": 1.0,
        "scheduler": "euler",
        "sigma_schedule": "default",
        "timestep_spacing": "trailing",
        "loras": {"sdxl_lightning_2step_lora": 1.0},
    }
    same = pipe.generate("a star", seed=3, **settings).images[0]
    np.testing.assert_array_equal(np.asarray(drawn), np.asarray(same))
    assert drawn.info == same.info
    with pytest.raises(InputError, match=r"recipe is 'lcm'; expected one of 'lightning-2'"):
        pipe.generate("a star", recipe="lcm")


# --- to the bit, and without compiling


@pytest.mark.parametrize(
    "devices", [1, 4, *(pytest.param(devices, marks=pytest.mark.slow) for devices in (2, 8))]
)
def test_loras_come_and_go(files: dict[str, Path], devices: int) -> None:
    pipe = shared_pipeline(devices)
    before, pristine = draw(pipe), bits(pipe)
    sets: list[Any] = [{"one": 0.5}, {"two": (-0.25, 0.75), "one": 0.5}, {"two": 0.1}, None]
    try:
        with nothing_compiles():
            load(pipe, files)
            np.testing.assert_array_equal(draw(pipe), before)
            first = [draw(pipe, loras=each) for each in sets]
            again = [draw(pipe, loras=each) for each in reversed(sets)][::-1]
            reordered = draw(pipe, loras={"one": 0.5, "two": (-0.25, 0.75)})
            clear(pipe)
            after = draw(pipe)
    finally:
        clear(pipe)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(reordered, first[1])
    np.testing.assert_array_equal(first[-1], before)
    np.testing.assert_array_equal(after, before)
    assert bits(pipe) == pristine
    for one, other in ((0, 1), (1, 2), (2, 3)):
        assert np.abs(first[one] - first[other]).max() > 0.01


@pytest.mark.slow
def test_every_number_of_devices_draws_the_same(files: dict[str, Path]) -> None:
    drawn = []
    for devices in (1, 2, 4):
        pipe = shared_pipeline(devices)
        load(pipe, files)
        drawn.append(draw(pipe, loras={"one": 0.1, "two": 0.1}))
        clear(pipe)
    assert max(np.abs(each - drawn[0]).max() for each in drawn) <= 1 / 255


@pytest.fixture
def implicit_promotion() -> Iterator[None]:
    """Allow bfloat16 to become float32 in JAX's own functions, also in threads that compile."""
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.mark.slow
@pytest.mark.usefixtures("implicit_promotion")
def test_bfloat16(files: dict[str, Path]) -> None:
    pipe = SDXLPipeline.from_pretrained(
        SMALLEST, num_inference_steps=2, dtype="bfloat16", devices=jax.devices()[:1]
    )
    before, pristine = draw(pipe), leaves(pipe)["unet"]
    load(pipe, files)
    with_loras = draw(pipe, loras=WEIGHTS)
    merged = leaves(pipe)["unet"]
    name = "conv_in.weight"
    slot, _ = pipe._adapters._tensors["unet"][name]
    [index] = slot.indices
    wide = np.asarray(pristine[index]).astype(np.float32)
    deltas = [
        each.changes["unet"][name]
        .delta(wide.transpose(3, 2, 0, 1), WEIGHTS[key][0])
        .transpose(2, 3, 1, 0)
        for key, each in pipe._adapters._loaded.items()
    ]
    right = (wide + deltas[0] + deltas[1]).astype(slot.dtype)  # rounded once
    np.testing.assert_array_equal(np.asarray(merged[index]), right)
    np.testing.assert_array_equal(draw(pipe), before)
    np.testing.assert_array_equal(draw(pipe, loras=WEIGHTS), with_loras)


# --- the merged parameters


@pytest.mark.parametrize(
    "kind", ["lora", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("dora", "full"))]
)
def test_merged_parameters_are_those_of_a_merged_checkpoint(
    pipe: SDXLPipeline, tmp_path: Path, kind: str
) -> None:
    """A checkpoint whose tensors have the changes added loads the same parameters."""
    inventory = pipe._adapters.inventory
    assert set(inventory) == set(NETWORKS)
    found = {}
    for seed, name in enumerate(WEIGHTS):
        drawn = draw_adapter(inventory, kind, seed)
        file = write_adapter(tmp_path / f"{name}.safetensors", drawn, "kohya sdxl", inventory)
        pipe.load_lora(file)
        found[name] = read_adapter(file, name, inventory)
    folder = copy_checkpoint(tmp_path)
    for network in NETWORKS:
        add_changes(folder / network, network, found)
    merged = SDXLPipeline.from_pretrained(folder, devices=jax.devices()[:1], cache_dir=EXECUTABLES)
    pipe._adapters.select(WEIGHTS)
    for network in NETWORKS:
        for ours, right in zip(leaves(pipe)[network], leaves(merged)[network], strict=True):
            np.testing.assert_allclose(ours, right, rtol=1e-5, atol=2e-5 * np.abs(right).max())


def add_changes(folder: Path, network: str, found: Mapping[str, Adapter]) -> None:
    """Add the changes to a network's tensors in a checkpoint."""
    [file] = folder.glob("*.safetensors")
    tensors = load_file(file)
    changed = 0
    for key, value in tensors.items():
        for name, adapter in found.items():
            if change := adapter.changes[network].get(modern_name(key)):
                strength = WEIGHTS[name][network != "unet"]
                tensors[key] = tensors[key] + change.delta(value, strength)
                changed += 1
    assert changed == sum(len(adapter.changes[network]) for adapter in found.values())
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, file)


class Plus(Change):
    """A change by a number; `spoil` is called first."""

    def __init__(self, number: float, spoil: Callable[[], object] = lambda: None) -> None:
        self.number = number
        self.spoil = spoil

    def delta(self, weight: np.ndarray, strength: float) -> np.ndarray:
        self.spoil()
        return np.full_like(weight, self.number * strength)


def adapter(name: str, changes: Mapping[str, Mapping[str, Change]], digest: str = "") -> Adapter:
    return Adapter(name, Path("missing.safetensors"), digest or name, "0" * 64, {}, changes)


def test_biases_norms_and_embeddings(pipe: SDXLPipeline) -> None:
    inventory = pipe._adapters.inventory
    everything = {
        network: {name: Plus(2.0) for name in tensors} for network, tensors in inventory.items()
    }
    before = leaves(pipe)
    pipe._adapters.add(adapter("all", everything))
    pipe._adapters.select({"all": (0.5, 0.25)})
    for network, added in zip(NETWORKS, (1.0, 0.5, 0.5), strict=True):
        for old, new in zip(before[network], leaves(pipe)[network], strict=True):
            extra = np.asarray(new) - np.asarray(old)
            if old.ndim == 6:  # sums of one, two or four taps
                assert extra.min() == pytest.approx(added, abs=1e-5)
                assert extra.max() == pytest.approx(4 * added, abs=1e-5)
            else:
                np.testing.assert_allclose(extra, added, atol=1e-5)


def test_only_touched_parameters_are_replaced(pipe: SDXLPipeline) -> None:
    names = ["conv_in.bias", "conv_out.bias", "conv_norm_out.weight"]
    first = {"unet": {name: Plus(1.0) for name in names[:2]}}
    second = {"unet": {name: Plus(1.0) for name in names[1:]}, "text_encoder": {}}
    for name, changes in (("first", first), ("second", second)):
        pipe._adapters.add(adapter(name, changes))

    def replaced(weights: dict[str, tuple[float, float]]) -> int:
        before = leaves(pipe)
        pipe._adapters.select(weights)
        after = leaves(pipe)
        return sum(
            old is not new
            for network, each in before.items()
            for old, new in zip(each, after[network], strict=True)
        )

    assert replaced({}) == 0
    assert replaced({"first": (1, 1)}) == 2
    assert replaced({"first": (1, 1)}) == 0
    assert replaced({"first": (1, 0.5)}) == 0  # the text encoders' weight matters to none of them
    assert replaced({"second": (1, 1)}) == 3
    assert replaced({"first": (1, 1), "second": (1, 1)}) == 2
    assert replaced({"second": (1, 1), "first": (1, 1)}) == 0
    assert replaced({"first": (0, 1)}) == 3
    assert replaced({}) == 0


def test_the_same_set_again_does_nothing(
    pipe: SDXLPipeline, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(pipe, files)
    draw(pipe, loras=WEIGHTS)
    monkeypatch.setattr(Adapters, "_update", None)
    draw(pipe, loras=WEIGHTS)
    draw(pipe, loras="two:-0.25:0.75,one:0.5")


def test_a_set_is_merged_ahead(
    pipe: SDXLPipeline, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pristine, merging = bits(pipe), pipe._adapters
    load(pipe, files)
    merging.select(WEIGHTS)
    right = bits(pipe)
    merging.select({})
    pipe.read_ahead("", {**WEIGHTS, "missing": (1.0, 1.0)})  # its file is not loaded
    assert merging._next is None
    pipe.read_ahead("", {"one": (0.5, 0.5)})
    pipe.read_ahead("", WEIGHTS)  # it is wanted sooner
    merging._thread.submit(lambda: None).result()
    assert bits(pipe) == pristine
    with monkeypatch.context() as patch:
        patch.setattr(adapters, "merge", None)
        merging.select(WEIGHTS)
    assert bits(pipe) == right
    assert not merging._ahead
    pipe.read_ahead("", {"one": (0.5, 0.5)})
    merging.select({})
    assert bits(pipe) == pristine
    assert not merging._ahead
    monkeypatch.setattr(adapters, "available_memory", lambda: 0)
    pipe.read_ahead("", WEIGHTS)
    merging._thread.submit(lambda: None).result()
    assert not merging._ahead


def test_one_weight_can_be_zero(pipe: SDXLPipeline, files: dict[str, Path]) -> None:
    before, pristine = draw(pipe), bits(pipe)
    load(pipe, files)
    np.testing.assert_array_equal(draw(pipe, loras={"one": 0, "two": (0, 0)}), before)
    draw(pipe, loras={"one": (0, 0.5)})
    assert bits(pipe)["unet"] == pristine["unet"]
    assert bits(pipe)["text_encoder_2"] != pristine["text_encoder_2"]
    draw(pipe, loras={"one": (0.5, 0)})
    assert bits(pipe)["unet"] != pristine["unet"]
    assert bits(pipe)["text_encoder_2"] == pristine["text_encoder_2"]


@pytest.mark.slow
def test_sizes_share_the_merged_parameters(pipe: SDXLPipeline, files: dict[str, Path]) -> None:
    pipe.add_size(16, 24)
    load(pipe, files)
    plain = draw(pipe, height=16, width=24)
    merged = draw(pipe, height=16, width=24, loras=WEIGHTS)
    assert np.abs(merged - plain).max() > 0.01
    pipe.add_size(24, 16)
    np.testing.assert_array_equal(draw(pipe, height=16, width=24, loras=WEIGHTS), merged)


# --- failures


def test_a_failure_half_way_leaves_no_mixture(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = shared_pipeline(4)
    before, pristine = draw(pipe), bits(pipe)
    monkeypatch.setattr(adapters, "CHUNK_BYTES", 2**12)
    load(pipe, files)
    right = draw(pipe, loras={"one": 0.5})
    put, calls = jax.device_put, iter(range(10**6))

    def fail_at(number: int, *args: Any, **options: Any) -> Any:
        if next(calls) == number:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return put(*args, **options)

    monkeypatch.setattr(jax, "device_put", partial(fail_at, 5))
    with pytest.raises(DeviceError, match="too little memory"):
        draw(pipe, loras={"two": 0.5})
    assert bits(pipe) == pristine
    np.testing.assert_array_equal(draw(pipe, loras={"one": 0.5}), right)
    np.testing.assert_array_equal(draw(pipe), before)
    clear(pipe)


def test_a_failed_repair_is_made_up_for(
    pipe: SDXLPipeline, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, pristine = draw(pipe), bits(pipe)
    monkeypatch.setattr(adapters, "CHUNK_BYTES", 2**12)
    load(pipe, files)
    right = draw(pipe, loras=WEIGHTS)
    draw(pipe)
    put, calls = jax.device_put, iter(range(10**6))

    def fail_after(number: int, *args: Any, **options: Any) -> Any:
        if next(calls) >= number:
            raise jax.errors.JaxRuntimeError("INTERNAL: lost")
        return put(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(jax, "device_put", partial(fail_after, 5))
        for loras in (WEIGHTS, None, WEIGHTS):
            with pytest.raises(DeviceError, match="lost"):
                draw(pipe, loras=loras)
    assert bits(pipe) != pristine  # so that the next request has something to repair
    np.testing.assert_array_equal(draw(pipe), before)
    assert bits(pipe) == pristine
    np.testing.assert_array_equal(draw(pipe, loras=WEIGHTS), right)


def test_a_change_that_fails(pipe: SDXLPipeline) -> None:
    pristine = bits(pipe)
    changes = {
        "unet": {"conv_in.bias": Plus(1), "conv_out.bias": Plus(1, Mock(side_effect=MemoryError))}
    }
    pipe._adapters.add(adapter("broken", changes))
    with pytest.raises(MemoryError):
        draw(pipe, loras={"broken": 1})
    assert bits(pipe) == pristine


# --- loading


def test_loading_and_unloading(pipe: SDXLPipeline, files: dict[str, Path]) -> None:
    assert pipe.load_lora(str(files["one"]), name="pixel art") == "pixel art"
    info = pipe.loras["pixel art"]
    assert (info.name, info.file, len(info.digest)) == ("pixel art", files["one"], 64)
    with pytest.raises(InputError, match="'pixel art' is loaded; unload it first"):
        pipe.load_lora(files["two"], "pixel art")
    for wrong in ("a:b", "a,b", "", " a", "a>b"):
        with pytest.raises(InputError, match="cannot be a LoRA's name"):
            pipe.load_lora(files["two"], wrong)
    pipe.load_lora(files["two"])
    with pytest.raises(InputError, match="'three' is loaded; loaded are: 'pixel art', 'two'"):
        draw(pipe, loras={"three": 1})
    with pytest.raises(InputError, match="no LoRA named 'three'"):
        pipe.unload_lora("three")
    pipe.unload_lora("two")
    assert [*pipe.loras] == ["pixel art"]
    pipe.unload_lora("pixel art")
    with pytest.raises(InputError, match="loaded are: none"):
        draw(pipe, loras={"two": 1})


def test_a_refused_file_loads_nothing(pipe: SDXLPipeline, tmp_path: Path) -> None:
    save_file(
        {"lora_unet_nowhere.lora_up.weight": np.ones((1, 1), np.float32)},
        tmp_path / "a.safetensors",
    )
    with pytest.raises(CheckpointError, match="nowhere"):
        pipe.load_lora(tmp_path / "a.safetensors")
    assert not pipe.loras


def test_loading_while_another_thread_draws(pipe: SDXLPipeline, files: dict[str, Path]) -> None:
    load(pipe, {"one": files["one"]})
    plain, right = draw(pipe), draw(pipe, loras={"one": 0.5})

    def exchange(step: int, *_: object) -> None:
        if step == 1:
            thread = Thread(target=lambda: (pipe.unload_lora("one"), load(pipe, files)))
            thread.start()
            thread.join()

    np.testing.assert_array_equal(draw(pipe, loras={"one": 0.5}, on_step=exchange), right)
    np.testing.assert_array_equal(draw(pipe, loras={"one": 0.5}), right)
    np.testing.assert_array_equal(draw(pipe), plain)


def test_drawings_with_other_loras_wait_until_the_slots_are_empty(
    pipe: SDXLPipeline, files: dict[str, Path]
) -> None:
    load(pipe, files)
    right = {loras: draw(pipe, loras=loras, images=1) for loras in ("", "one:0.5")}
    drawings = [
        pipe.prepare(
            GenerateRequest("a star", seed=3, num_inference_steps=2, loras=loras),
            1,
            output_type="np",
        )
        for loras in ("", "one:0.5", "one:0.5", "")
    ]
    for drawing in drawings:
        pipe.begin(drawing)
    most, ended = 0, []
    while pipe.is_busy:
        ended += [each.drawing for each in pipe.advance() if each.finished]
        most = max(most, pipe.in_slots)
    assert (ended, most) == (drawings, 2)
    for drawing in drawings:
        np.testing.assert_array_equal(drawing.pictures[0].image, right[drawing.request.loras][0])


def test_a_lora_that_is_gone_fails_its_drawing_alone(
    pipe: SDXLPipeline, files: dict[str, Path]
) -> None:
    load(pipe, files)
    gone, other = (
        pipe.prepare(GenerateRequest("a star", num_inference_steps=1, loras=loras), 1)
        for loras in ("one:0.5", "")
    )
    pipe.unload_lora("one")
    pipe.begin(gone)
    pipe.begin(other)
    while pipe.is_busy:
        pipe.advance()
    assert isinstance(gone.error, InputError)
    assert other.error is None
    assert [*other.pictures] == [0]


def test_another_file_under_the_same_name(pipe: SDXLPipeline, files: dict[str, Path]) -> None:
    pipe.load_lora(files["one"], "it")
    one = draw(pipe, loras={"it": 0.5})
    pipe.unload_lora("it")
    pipe.load_lora(files["two"], "it")
    two = draw(pipe, loras={"it": 0.5})
    assert np.abs(one - two).max() > 0.01
    pipe.unload_lora("it")
    pipe.load_lora(files["one"], "it")
    np.testing.assert_array_equal(draw(pipe, loras={"it": 0.5}), one)


def test_the_pristine_copy_goes_with_the_loras(files: dict[str, Path]) -> None:
    pipe = shared_pipeline(4)
    held = pipe._adapters
    load(pipe, files)
    assert not held._pristine
    draw(pipe, loras={"one": 0.5})
    assert sum(slot.bytes for slot in held._pristine) == held.bytes_of() > 0
    pipe.unload_lora("one")
    pipe.unload_lora("two")
    assert held._pristine  # until another set is merged
    draw(pipe)
    assert not held._pristine


# --- memory


def test_a_lora_that_does_not_fit_is_refused(
    pipe: SDXLPipeline, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = pipe._compiled.room
    monkeypatch.setattr(room, "memory", room.needs().total)
    message = (
        r"the LoRA 'one' cannot be loaded: too little memory: .* for LoRAs, .*load fewer LoRAs"
    )
    with pytest.raises(DeviceError, match=message):
        pipe.load_lora(files["one"])
    assert not pipe.loras
    draw(pipe)


def test_the_copy_without_loras_is_counted(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the host's memory, which is that of a CPU's devices too."""
    pipe = shared_pipeline(4)
    held, kept = pipe._adapters, ["text_encoder_2"]
    assert held.device_bytes(kept=kept) == 0
    before = pipe._compiled.room.needs()
    load(pipe, files)
    changed, unchanged = held.bytes_of(), held.bytes_of(networks=kept)
    assert 0 < unchanged < changed
    assert held.device_bytes() == changed + held.file_bytes()
    assert held.device_bytes(kept=kept) == changed + held.file_bytes() + 3 * unchanged
    needs = pipe._compiled.room.needs()
    assert needs.total - before.total == needs.loras == held.device_bytes()
    monkeypatch.setattr(held, "_accelerated", True)
    assert held.device_bytes() == 0
    assert held.device_bytes(kept=kept) == unchanged
    clear(pipe)


def test_the_host_must_hold_the_copy_of_an_accelerator(
    pipe: SDXLPipeline, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe._adapters, "_accelerated", True)
    monkeypatch.setattr(adapters, "available_memory", lambda: 1000)
    with pytest.raises(DeviceError, match=r"needs 0\.9 MB more of this machine's memory"):
        pipe.load_lora(files["one"])


# --- settings inside pictures


def test_settings_inside_pictures(pipe: SDXLPipeline, files: dict[str, Path]) -> None:
    load(pipe, files)
    image = pipe.generate("a star", seed=3, loras=WEIGHTS).images[0]
    text = image.info[metadata.KEY]
    assert text.startswith("a star <lora:one:0.5> <lora:two:0.75:-0.25>\n")
    hashes = ", ".join(f"{name}: {info.short_hash}" for name, info in pipe.loras.items())
    assert f'Lora hashes: "{hashes}"' in text
    settings = metadata.from_text(text)
    assert (settings.prompt, settings.lora_hashes) == ("a star", hashes)
    again = draw(pipe, loras=settings.loras)
    np.testing.assert_array_equal(again, draw(pipe, loras=WEIGHTS))
    plain = pipe.generate("a star", seed=3).images[0].info[metadata.KEY]
    assert "lora" not in plain.lower()


def test_the_hash_is_that_of_the_bytes_behind_the_header(
    pipe: SDXLPipeline, files: dict[str, Path], tmp_path: Path
) -> None:
    pipe.load_lora(files["one"])
    tensors = load_file(files["one"])
    notes = {"ss_tag": "more", "sshs_model_hash": 'no hash, "x": 1'}
    save_file(tensors, tmp_path / "noted.safetensors", metadata=notes)
    pipe.load_lora(tmp_path / "noted.safetensors")
    save_file(
        tensors, tmp_path / "known.safetensors", metadata={"sshs_model_hash": "ABCDEF012345678"}
    )
    pipe.load_lora(tmp_path / "known.safetensors")
    infos = pipe.loras
    assert infos["noted"].short_hash == infos["one"].short_hash
    assert infos["noted"].digest != infos["one"].digest
    assert infos["noted"].metadata["ss_tag"] == "more"
    assert infos["known"].short_hash == "abcdef012345"
