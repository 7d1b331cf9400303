"""The bound and the estimate of a TPU's time, from a compiler's figures."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.tpu import CHIPS, STEPS, WITH_WEIGHTS, Chip, chip_gb, request_seconds, sizes

CHIP = Chip("small", tflops=100, bandwidth=1000, published=(0.1, 0.2))


def test_a_run_takes_its_products_or_its_bytes():
    program = {"tflop": 2.0, "arguments_mb": 4000.0, "outputs_mb": 1000.0}
    assert CHIP.bound_ms(program) == pytest.approx(20)
    assert CHIP.bound_ms(program | {"tflop": 0.1}) == pytest.approx(5)


def test_the_published_share_of_the_peak_rate():
    assert CHIP.share == pytest.approx(0.15 * 302.7 / 100)
    # 0.438 pictures a second are 62 % of a v5e's rate by the model's own FLOPs, heads not padded.
    assert CHIPS["v5e"].share == pytest.approx(0.67, abs=0.01)
    assert CHIPS["v6e"].share == pytest.approx(0.45, abs=0.01)


def test_a_loop_whose_length_is_data_counts_as_one_turn():
    side = 2048
    matrix = jax.ShapeDtypeStruct((side, side), jnp.float32)

    def multiply(x: jax.Array, count: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, count, lambda _, y: y @ x, x)

    length = jax.ShapeDtypeStruct((), jnp.int32)
    program = sizes(jax.jit(multiply).lower(matrix, length).compile())
    assert program["tflop"] == pytest.approx(2 * side**3 / 1e12, abs=1e-3)
    assert program["arguments_mb"] == pytest.approx(4 * side**2 / 1e6, abs=0.1)


def test_a_request_and_its_memory():
    names = {*WITH_WEIGHTS, "noise"}
    program = {"arguments_mb": 1000.0, "code_mb": 100.0, "temporaries_mb": 300.0, "bound_ms": 2.0}
    programs = dict.fromkeys(names, program)
    assert request_seconds(programs) == pytest.approx((3 + STEPS) * 2 / 1e3)
    assert chip_gb(programs) == pytest.approx(len(WITH_WEIGHTS) + 0.1 * len(names) + 0.3)
