"""The memory that a pipeline needs is measured, and refused where there is too little."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline import DeviceError, SDXLPipeline
from pipeline.drawing.refining import find_refiner, models_of
from pipeline.families import read_config
from pipeline.runtime import memory
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.executables import ExecutableCache, ProgramBytes
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.programs import Shapes, Target, program_names, weights
from pipeline.runtime.room import Model, Room
from pipeline.text.prompt_syntax import MAX_TEXTS
from tests.checkpoints import (
    EXECUTABLES,
    GOLDEN,
    PLAIN,
    SMALLEST,
    CompilationCount,
    nothing_compiles,
)

REFINER = GOLDEN / "refiner/checkpoint"
INT8 = "int8"
BFLOAT16, FLOAT32 = np.dtype(jnp.bfloat16), np.dtype(np.float32)
SMALL, WIDE = (16, 16), (16, 24)


def size_of(arrays: Any) -> int:
    """Return the bytes of arrays on all devices."""
    leaves = jax.tree.leaves(arrays)
    return sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards)


def target(folder: Path = SMALLEST, devices: int = 1, images: int = 2, **more: Any) -> Target:
    config, mesh = read_config(folder), make_mesh(jax.devices()[:devices], images)
    return Target(config, FLOAT32, mesh, Shapes(images, *SMALL), **more)


def models(chosen: Target, refiner: Path | None = None) -> list[Model]:
    networks = trace_networks(chosen.config, chosen.dtype, quantization=chosen.quantization)
    second = None
    if refiner is not None:
        second = find_refiner(str(refiner), chosen.config, SMALL, prefer_fp16=False)
    return models_of(chosen, networks, second)


@pytest.fixture
def room() -> Room:
    """Return the room of a model for two pictures on one device, with nothing compiled."""
    return Room(models(target()))


def load(folder: Path | None, devices: int = 1, images: int = 4) -> SDXLPipeline:
    return SDXLPipeline.from_pretrained(
        SMALLEST, images_per_request=images, devices=jax.devices()[:devices], cache_dir=folder
    )


# --- what is counted


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("quantization", [None, INT8])
def test_parameters_are_those_of_the_networks(dtype: np.dtype, quantization: str | None) -> None:
    networks = trace_networks(read_config(SMALLEST), dtype, quantization=quantization)
    [model] = models_of(target(), networks)
    right = {
        name: sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        for name, leaves in weights(networks).items()
    }
    assert model.parameters == right


def test_int8_takes_a_byte_for_a_parameter() -> None:
    [exact], [ours] = models(target()), models(target(quantization=INT8))
    assert ours.parameters["unet"] < exact.parameters["unet"]
    others = exact.parameters.keys() - {"unet"}
    assert {name: ours.parameters[name] for name in others} == {
        name: exact.parameters[name] for name in others
    }


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_the_needs_are_those_of_a_pipeline(devices: int) -> None:
    """All devices of a CPU are counted, and every text that a prompt may have."""
    run = load(EXECUTABLES, devices)._compiled
    needs = run.room.needs()
    texts = [run.blank_embeds() for _ in range(MAX_TEXTS)]
    held = texts, run.blank_context(), run.blank_state, run.nothing_kept, run.blank_deep()
    assert needs.slots == size_of(held)
    assert needs.parameters == size_of(run.parameters.leaves)
    analyses = {name: own.memory_analysis() for name, own in run.executables.items()}
    assert {name.split()[0] for name in needs.programs} == analyses.keys()
    for name, program in needs.programs.items():
        right: Any = analyses[name.split()[0]]
        once = right.temp_size_in_bytes + right.output_size_in_bytes - right.alias_size_in_bytes
        assert program.temporaries == run.mesh.size * once
        assert program.code == right.generated_code_size_in_bytes
    parts = needs.parameters, needs.slots, needs.loras, needs.code, needs.temporaries
    assert needs.total == sum(parts)
    assert needs.temporaries == max(each.temporaries for each in needs.programs.values())


def test_deep_features_take_room() -> None:
    cached = target(step_cache=True)
    [plain], [ours] = models(target()), models(cached)
    deep = cached.deep_spec
    assert deep.shape == (2, 2, 8, 8, cached.config.networks["unet"].block_out_channels[0])
    assert ours.slots(SMALL) - plain.slots(SMALL) == deep.size * deep.dtype.itemsize


def test_another_size_takes_code_but_no_parameters(room: Room) -> None:
    """Only programs that depend on the size are counted again, and the largest temporaries."""
    for size in (SMALL, WIDE):
        for_size = room.models[0].target.resized(*size)
        room.note(for_size, {"step": ProgramBytes(5, 7), "encode": ProgramBytes(3, 9)})
    one, two = room.needs(), room.needs([WIDE])
    assert two.parameters == one.parameters
    assert two.slots > one.slots
    assert (one.code, two.code) == (5 + 3, 5 + 3 + 5)
    assert two.temporaries == one.temporaries == 9
    assert two.largest == "encode"
    assert "step of 24x16" in two.programs


def test_a_refiner_adds_its_unet_its_slots_and_three_programs() -> None:
    base, both = Room(models(target(PLAIN))), Room(models(target(PLAIN), REFINER))
    first, second = both.models
    assert (second.name, [*second.parameters]) == ("refiner", ["unet"])
    assert {*second.programs} == {"step", "encode", "condition"}
    more = both.needs().parameters - base.needs().parameters
    assert more == second.parameters["unet"]
    assert both.needs().slots == first.slots(SMALL) + second.slots(SMALL)
    assert {*first.programs} == {*program_names(target(PLAIN))}


# --- refusals


def refusal(room: Room, memory: int, **more: Any) -> str:
    room.memory = memory
    with pytest.raises(DeviceError) as caught:
        room.check(**more)
    return str(caught.value)


def test_what_fits_is_not_refused(room: Room) -> None:
    room.memory = room.needs().total
    room.check()
    room.memory = None
    room.check([(8192, 8192)])


def test_a_refusal_says_what_is_needed(room: Room) -> None:
    room.note(room.models[0].target, {"step": ProgramBytes(10**6, 10**9)})
    room.loras = lambda _: 2 * 10**8
    needs = room.needs()
    message = refusal(room, 10**9)
    assert message.startswith(
        "too little memory: 16x16, 2 pictures per request, needs at least"
        f" {needs.total / 1e9:.2f} GB of the 1.00 GB of this machine: "
        f"{needs.parameters / 1e6:.1f} MB of parameters, "
    )
    assert "0.20 GB for LoRAs, 1.0 MB of code, 1.00 GB while step of 16x16 runs;" in message
    assert message.endswith("; load fewer LoRAs or draw fewer pictures per request")


def test_advice_is_what_can_help(room: Room) -> None:
    most = room.needs().total - 1
    assert refusal(room, most).endswith("; draw fewer pictures per request")
    right = "; leave out the size 24x16 or draw fewer pictures per request"
    assert refusal(room, most, sizes=[WIDE]).endswith(right)
    one = Room(models(target(images=1)))
    nothing = "; use a smaller model, or a device with more memory"
    assert refusal(one, one.needs().total - 1).endswith(nothing)
    assert refusal(room, room.needs().parameters - 1).endswith(nothing)
    several = Room(models(target(devices=2)))
    message = refusal(several, 1000)
    assert "of parameters in 2 copies" in message
    assert message.endswith("; draw on fewer devices")
    both = Room(models(target(PLAIN), REFINER))
    assert refusal(both, 1000).endswith("; leave out the refiner (REFINER_ID)")


@pytest.mark.slow
def test_a_program_that_does_not_fit_is_refused_once_it_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start knows it beforehand, and needs no executable for that."""
    needs = load(EXECUTABLES)._compiled.room.needs()
    monkeypatch.setattr(memory, "available_memory", lambda: needs.total - 1)
    for compiles in (True, False):
        with CompilationCount() as count, pytest.raises(DeviceError) as caught:
            load(tmp_path)
        assert (count.value > 0) == compiles
        assert f"while {needs.largest} runs; draw fewer pictures" in str(caught.value)
        for file in tmp_path.glob("*-*"):
            if "_bytes-" not in file.name:
                file.unlink()
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    assert load(tmp_path)._compiled.room.needs() == needs


def test_executables_without_what_they_take_are_measured(tmp_path: Path) -> None:
    needs = load(tmp_path)._compiled.room.needs()
    for file in tmp_path.glob("*_bytes-*"):
        file.unlink()
    with nothing_compiles():
        assert load(tmp_path)._compiled.room.needs() == needs


@pytest.mark.slow
def test_a_size_that_does_not_fit_is_known_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = load(None, images=1)
    room, size = pipe._compiled.room, (24, 24)
    bare = room.needs([size])
    monkeypatch.setattr(room, "memory", bare.total)
    pipe.check_memory([size])
    for compiles in (True, False):
        with CompilationCount() as count, pytest.raises(DeviceError, match="leave out the size 24"):
            pipe.add_size(*size)
        assert (count.value > 0) == compiles
    assert room.sizes == (SMALL,)
    assert pipe.facts.more_sizes == ()
    with pytest.raises(DeviceError, match="needs at least"):
        pipe.check_memory([size])
    monkeypatch.setattr(room, "memory", None)
    pipe.add_size(*size)
    assert room.sizes == (SMALL, size)


def test_what_a_refiner_needs_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is compiled, by its parameters alone."""
    ours = models(target(PLAIN, images=4), REFINER)
    alone = Room(ours[:1], ExecutableCache(tmp_path / "cache")).needs().total
    monkeypatch.setattr(memory, "available_memory", lambda: alone)
    with nothing_compiles(), pytest.raises(DeviceError, match="leave out the refiner"):
        SDXLPipeline.from_pretrained(PLAIN, refiner=REFINER, devices=jax.devices()[:1])
