"""The cache key of a program contains everything that its compilation depends on."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.families import read_config
from pipeline.families.family import Computation
from pipeline.families.halves import joined, split
from pipeline.runtime import programs
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.programs import Program, Programs, Shapes, Target
from tests.checkpoints import GOLDEN, PLAIN, SMALLEST

SAFETY = GOLDEN / "safety/checkpoint"
SHAPES = Shapes(images=4, height=16, width=16)
CHOICES = [
    (SMALLEST, "float32", 1, SHAPES),
    (PLAIN, "float32", 1, SHAPES),
    (SMALLEST, "bfloat16", 1, SHAPES),
    (SMALLEST, "float32", 2, SHAPES),
    (SMALLEST, "float32", 8, SHAPES),  # guidance's two halves on separate devices
    (SMALLEST, "float32", 1, Shapes(images=2, height=16, width=16)),
    (SMALLEST, "float32", 1, Shapes(images=4, height=24, width=16)),
    (SMALLEST, "float32", 1, Shapes(images=4, height=16, width=24)),
    (SMALLEST, "float32", 1, Shapes(images=4, height=16, width=16, chunks=2)),
    (SAFETY, "float32", 1, SHAPES),
    (SAFETY, "float32", 2, SHAPES),
    (SAFETY, "float32", 4, SHAPES),
    (SAFETY, "float32", 1, Shapes(images=2, height=16, width=16)),
    (SAFETY, "float32", 1, Shapes(images=4, height=24, width=16)),
]


# JAX's attention and Flax's norms mix bfloat16 and float32 on purpose.
@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")
def test_the_cache_key_covers_everything_that_changes_the_arguments() -> None:
    seen: dict[str, list[tuple[str, str]]] = {}
    for folder, dtype, devices, shapes in CHOICES:
        config, mesh = read_config(folder), make_mesh(jax.devices()[:devices], shapes.images)
        numbers = np.dtype(jnp.dtype(dtype))
        target = Target(config, numbers, mesh, shapes)
        made = Programs(target, trace_networks(config, numbers))
        for name in programs.program_names(target):
            about = programs.cache_key(name, target)
            seen.setdefault(name, []).append((repr(about), repr(made[name].args)))
    assert len(seen["step"]) == len(CHOICES)
    for name, pairs in seen.items():
        for (about, args), (other_about, other_args) in combinations(pairs, 2):
            assert about != other_about or args == other_args, name
        assert len({args for _, args in pairs}) > 3, name


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")
def test_text_and_safety_checker_are_the_same_for_every_size() -> None:
    other = replace(SHAPES, height=24, width=32)
    prompts = {"encode", "condition"}
    for folder, same in ((SMALLEST, prompts), (SAFETY, {*prompts, "check"})):
        config, mesh = read_config(folder), make_mesh(jax.devices()[:1], 4)
        numbers = np.dtype(np.float32)
        networks = trace_networks(config, numbers)
        targets = [Target(config, numbers, mesh, shapes) for shapes in (SHAPES, other)]
        one, two = (Programs(target, networks) for target in targets)
        for name in programs.program_names(targets[0]):
            keys = [programs.cache_key(name, target) for target in targets]
            assert (keys[0] == keys[1]) == (name in same), name
            assert (lowered(one[name]) == lowered(two[name])) == (name in same), name


def lowered(program: Program) -> str:
    """Return the lowered text of a program, as the compiler receives it."""
    return jax.jit(program.function, out_shardings=program.outputs).lower(*program.args).as_text()


def test_text_encoders_may_have_prompts_of_different_lengths() -> None:
    config = read_config(SMALLEST)
    names = [*config.text_encoders]

    def encode(networks: Any, input_ids: Any, zeroed: Any, weights: Any) -> Any:
        pairs = zip(names, input_ids, strict=True)
        return [split(networks[name](joined(ids))[0]) for name, ids in pairs]

    usual = config.architecture
    architecture = replace(usual, encode=Computation(usual.encode.networks, encode))
    family = replace(config.family, architecture=lambda config: architecture)
    shapes = Shapes(images=4, height=16, width=16, chunks=3)
    mesh, numbers = make_mesh(jax.devices()[:2], 4), np.dtype(np.float32)
    target = Target(replace(config, family=family, tokens=(20, 16)), numbers, mesh, shapes)
    program = Programs(target, trace_networks(config, numbers))["encode"]
    embeds = jax.eval_shape(program.function, *program.args)
    widths = [encoder.hidden_size for encoder in config.text_encoders.values()]
    assert [each.shape for each in embeds] == [
        (2, 4, 3, length, width) for length, width in zip((20, 16), widths, strict=True)
    ]
