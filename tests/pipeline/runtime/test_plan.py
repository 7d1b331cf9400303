"""Plans agree with what compilers measured, and refuse only sizes that cannot fit."""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.full_size import read_published
from pipeline.errors import DeviceError
from pipeline.families import read_config
from pipeline.runtime import plan_report
from pipeline.runtime.compiled import choose_layout, make_mesh
from pipeline.runtime.device_kinds import CPU, H200, TPU_V5E, TPU_V6E, DeviceKind
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.memory import budget_of
from pipeline.runtime.model_size import TEXT_ENCODERS, UNET, ModelSize, model_size
from pipeline.runtime.plan import Budget, Size
from pipeline.runtime.program import Shapes, Target, weights
from pipeline.runtime.programs import PROGRAMS, Programs, program_names
from pipeline.text.prompt_syntax import MAX_TEXTS
from tests.checkpoints import GOLDEN, SMALLEST, shared_pipeline
from tools.published_configs import SDXL_REFINER, write

RESULTS = Path(__file__).parents[3] / "benchmarks/results"
SAFETY = GOLDEN / "safety/checkpoint"
SQUARE, LARGE, HUGE = (1024, 1024), (1536, 1536), (3072, 3072)
BFLOAT16, FLOAT32 = np.dtype(jnp.bfloat16), np.dtype(np.float32)
# The records' figures in megabytes may differ from the plan's by a fifth or, where little is at
# stake, by a hundred.
BAND, LITTLE = 0.2, 100
SPARE = 2e9


@cache
def sdxl() -> ModelSize:
    return model_size(read_published(), trace_networks(read_published(), BFLOAT16))


@cache
def tiny(folder: Path) -> ModelSize:
    config = read_config(folder)
    return model_size(config, trace_networks(config, FLOAT32))


def budget(kind: DeviceKind, devices: int, images: int = 4, memory: float | None = None) -> Budget:
    held = kind.memory if memory is None else int(memory)
    return Budget(sdxl(), kind, held, partial(choose_layout, devices), images, 77)


@pytest.mark.parametrize(
    ("record", "kind", "chips"),
    [
        ("2026-11-26-tpu-v5e-2x2", TPU_V5E, 4),
        ("2026-11-26-tpu-v5e-2x4", TPU_V5E, 8),
        ("2026-11-26-tpu-v6e-2x2", TPU_V6E, 4),
    ],
)
def test_the_estimate_agrees_with_libtpus_records(
    record: str, kind: DeviceKind, chips: int
) -> None:
    every = json.loads((RESULTS / f"{record}.json").read_text())["programs"]
    measured = {name: every[name] for name in every if not name.startswith("step_")}  # of modes
    plan = budget(kind, chips).plan([SQUARE])
    assert {program.name for program in plan.programs} == measured.keys()
    near = partial(pytest.approx, rel=BAND, abs=LITTLE)
    for program in plan.programs:
        found = measured[program.name]
        assert program.code / 1e6 == near(found["code_mb"]), program.name
        if program.name == "encode_image":  # planned like `decode`, which needs more
            assert program.temporaries / 1e6 > found["temporaries_mb"]
            continue
        assert program.temporaries / 1e6 == near(found["temporaries_mb"]), program.name
    code = sum(found["code_mb"] for found in measured.values())
    temporaries = max(found["temporaries_mb"] for found in measured.values())
    whole = plan.weights / 1e6 + plan.arrays / 1e6 + code + temporaries
    assert plan.total / 1e6 == pytest.approx(whole, rel=0.02)


def test_the_estimate_agrees_with_xlas_records_on_cpus() -> None:
    """The record covers the UNet and the VAE of several models; text encoders take little."""
    (record,) = RESULTS.glob("*-cpu-memory.json")
    cases = json.loads(record.read_text())["cases"]
    for case in cases:
        for name in ("step", "decode"):
            if (found := case["programs"].get(name)) is not None:
                ratio = found["planned_mb"] / found["temporaries_mb"]
                assert 0.75 < ratio < 1.35, (case["model"], name)
    assert any(case["side"] == 512 for case in cases)


def test_a_refiner_adds_its_unet_and_three_programs(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, SDXL_REFINER))
    refiner = model_size(config, trace_networks(config, BFLOAT16))
    alone = budget(TPU_V5E, 4, images=4)
    both = replace(alone, refiner=refiner)
    names = [program.name for program in both.plan([SQUARE]).programs]
    added = {*names} - {program.name for program in alone.plan([SQUARE]).programs}
    assert added == {"refiner step", "refiner encode", "refiner condition"}
    more = both.plan([SQUARE]).weights - alone.plan([SQUARE]).weights
    assert more == refiner.networks[UNET].bytes == pytest.approx(4.56e9, rel=0.02)
    assert alone.plan([SQUARE]).fits
    # LoRAs replace the base model's text encoder, and the refiner keeps that from before.
    changed = replace(both, unchanged=10**9).plan([SQUARE])
    assert changed.total - both.plan([SQUARE]).total == 10**9
    small = replace(both, memory=int(1.1e10))
    with pytest.raises(DeviceError, match=r"; leave out the refiner \(REFINER_ID\)"):
        small.check([SQUARE])


@pytest.mark.slow
@pytest.mark.parametrize("side", [16, 32])
def test_the_estimate_agrees_with_xla_on_this_machine(side: int) -> None:
    """Compile, because the record may be older than the programs."""
    config, devices = read_config(SMALLEST), jax.devices()[:1]
    networks = trace_networks(config, FLOAT32)
    target = Target(config, FLOAT32, make_mesh(devices, 4), Shapes(4, side, side, 77))
    programs = Programs(target, networks)
    plan = budget_of(tiny(SMALLEST), devices, 4, 77).plan([(side, side)])
    planned = {program.name: program.temporaries for program in plan.programs}
    for name in ("step", "decode"):
        memory = programs[name].compile().memory_analysis()
        assert memory is not None
        assert planned[name] == pytest.approx(memory.temp_size_in_bytes, rel=0.5, abs=2e6), name


@pytest.mark.parametrize("folder", [SMALLEST, SAFETY])
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_every_program_is_planned(folder: Path, devices: int) -> None:
    config, used = read_config(folder), jax.devices()[:devices]
    plan = budget_of(tiny(folder), used, 4, 77).plan([(16, 16), (16, 32)])
    names = program_names(Target(config, FLOAT32, make_mesh(used, 4), Shapes(4, 16, 16, 77)))
    sized = {name for name in names if PROGRAMS[name].sized}
    assert sorted(program.name for program in plan.programs) == sorted([*names, *sized])


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_weights_are_those_of_the_networks(dtype: np.dtype) -> None:
    config = read_config(SMALLEST)
    networks = trace_networks(config, dtype)
    leaves = jax.tree.leaves(weights(networks))
    right = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert model_size(config, networks).weights == right


def test_the_defaults_leave_two_gigabytes_of_a_v5e() -> None:
    plan = budget(TPU_V5E, 4).plan([SQUARE])
    assert plan.memory is not None
    assert plan.memory - plan.range[1] > SPARE
    assert "fits" in plan_report._memory(plan)


def test_pictures_and_pixels_take_memory() -> None:
    def temporaries(kind: DeviceKind, devices: int, images: int, size: Size, name: str) -> int:
        plan = budget(kind, devices, images).plan([size])
        return next(each.temporaries for each in plan.programs if each.name == name)

    one = temporaries(TPU_V5E, 4, 4, SQUARE, "decode")
    assert temporaries(TPU_V5E, 4, 4, (2048, 1024), "decode") == pytest.approx(2 * one)
    # Pictures are drawn and decoded one after the other, except by the UNet on a GPU.
    for name in ("step", "decode"):
        alone, four = (temporaries(TPU_V5E, n, 4, SQUARE, name) for n in (4, 1))
        assert four == alone
    alone, four = (temporaries(H200, n, 4, SQUARE, "step") for n in (4, 1))
    assert four > 3 * alone


def test_a_program_has_code_for_pictures_with_guidance_and_without() -> None:
    def code(kind: DeviceKind, devices: int) -> int:
        plan = budget(kind, devices, memory=64e9).plan([SQUARE])
        return next(each.code for each in plan.programs if each.name == "step")

    # Halves that have devices of their own, or are predicted for in turn, take one forward pass.
    for kind, passes in ((CPU, 2), (H200, 2), (TPU_V5E, 1)):
        assert code(kind, 4) == passes * code(kind, 8)


def test_the_texts_of_prompts_are_planned() -> None:
    """As many as a prompt may have, for every picture."""
    run = shared_pipeline(1)._compiled
    blank = run.blank_context(), *(run.blank_embeds() for _ in range(MAX_TEXTS))
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(blank))
    one, two = (
        budget_of(tiny(SMALLEST), jax.devices()[:1], 4, tokens).plan([(16, 16)]).arrays
        for tokens in (77, 2 * 77)
    )
    assert two - one == pytest.approx(held, rel=0.02)


def test_another_size_takes_code_but_no_weights() -> None:
    one, two = (budget(TPU_V5E, 4).plan(sizes) for sizes in ([SQUARE], [SQUARE, (1152, 896)]))
    assert two.weights == one.weights
    assert 1.8 < two.code / one.code < 2
    assert two.temporaries == one.temporaries
    assert [each.name for each in two.programs].count("encode") == 1


def test_devices_of_a_cpu_share_one_memory() -> None:
    one, two = (budget(CPU, n, images=n, memory=64e9).plan([SQUARE]) for n in (1, 2))
    assert two.weights == 2 * one.weights
    assert two.temporaries == pytest.approx(2 * one.temporaries)


def check(memory: float, sizes: Sequence[Size], images: int = 4) -> None:
    budget(TPU_V5E, 4, images, memory).check(sizes)


def test_what_fits_is_not_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        check(16.9e9, [SQUARE])
    assert caplog.messages == []


def test_what_may_not_fit_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    plan = budget(TPU_V5E, 4).plan([SQUARE])
    between = (plan.range[0] + plan.total) // 2
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        check(between, [SQUARE])
    (message,) = caplog.messages
    assert message.startswith("too little memory: 1024x1024, 4 pictures per request, may need 9.9")


@pytest.mark.parametrize(
    ("memory", "sizes", "images", "advice"),
    [
        (16.9e9, [SQUARE, HUGE], 4, "; leave out the size 3072x3072"),
        (9.3e9, [SQUARE, LARGE, (1152, 896)], 4, "; leave out the sizes 1536x1536, 896x1152"),
        (16.9e9, [SQUARE, LARGE, HUGE], 4, "; leave out the size 3072x3072"),
        (11.3e9, [LARGE], 16, "; draw 8 pictures per request"),
        (11.65e9, [SQUARE, LARGE], 16, "the size 1536x1536 or draw 8 pictures per request"),
        (16.9e9, [HUGE], 4, "; draw 1 picture per request, of 2304x2304"),
        (6e9, [SQUARE], 4, "; use a smaller model, or a device with more memory"),
    ],
)
def test_what_cannot_fit_is_refused_with_what_to_leave_out(
    memory: float, sizes: list[Size], images: int, advice: str
) -> None:
    with pytest.raises(DeviceError) as caught:
        check(memory, sizes, images)
    message = str(caught.value)
    assert message.startswith("too little memory: ")
    assert "needs at least" in message
    assert f"of the {memory / 1e9:.2f} GB of one TPU v5e: 6.98 GB of weights" in message
    assert message.endswith(advice)


def test_advice_is_enough() -> None:
    """The pipeline that a refusal advises is not refused."""
    whole = budget(TPU_V5E, 4, images=16, memory=11.65e9)
    assert whole.plan([SQUARE, LARGE]).is_hopeless
    whole.check([SQUARE])
    replace(whole, images=8).check([SQUARE, LARGE])


def test_unknown_memory_refuses_nothing() -> None:
    unknown = replace(budget(TPU_V5E, 4), memory=None)
    unknown.check([HUGE, HUGE])
    assert "memory of one device is not known" in plan_report._described(
        "A device", unknown, unknown.plan([SQUARE]), BFLOAT16
    )


def test_the_safety_checker_is_planned_in_float32() -> None:
    halved = plan_report._in_dtype(tiny(SAFETY), BFLOAT16)
    config = read_config(SAFETY)
    assert halved == model_size(config, trace_networks(config, BFLOAT16))


# --- LoRAs


def with_loras(kind: DeviceKind, devices: int) -> Budget:
    return replace(budget(kind, devices), pristine=4_000_000_001, adapters=300)


def test_the_copy_without_loras_is_counted() -> None:
    """It is on the host of one accelerator, spread over several, and once in a CPU's memory."""
    for kind, devices, right in (
        (TPU_V5E, 1, 0),
        (TPU_V5E, 4, 1_000_000_001),
        (CPU, 4, 4_000_000_301),
    ):
        plain = budget(kind, devices).plan([SQUARE])
        plan = with_loras(kind, devices).plan([SQUARE])
        assert (plain.pristine, plan.pristine) == (0, right)
        assert plan.total == plain.total + right
        assert plan.weights == plain.weights


def test_fewer_loras_are_the_first_advice() -> None:
    needs = budget(TPU_V5E, 4).plan([SQUARE]).range[0]
    tight = replace(with_loras(TPU_V5E, 4), memory=needs + 1)
    with pytest.raises(DeviceError, match=r"1.00 GB for LoRAs, .*; load fewer LoRAs"):
        tight.check([SQUARE])
    replace(tight, pristine=0).check([SQUARE])


def test_most_of_the_copy() -> None:
    most = budget(TPU_V5E, 4).most_pristine
    changed = [sdxl().networks[name] for name in (UNET, TEXT_ENCODERS)]
    assert most == sum(2 * each.parameters + 2 * each.norms for each in changed)
