"""Two counts of a compiled program's time, on a program small enough to count by hand."""

from dataclasses import replace

import pytest

from benchmarks.hlo import Instruction
from benchmarks.hlo_costs import Cost
from benchmarks.hlo_products import Product
from benchmarks.roofline import CHIPS, HOP, Chip, Estimate, Kernel, estimate
from tests.benchmarks.test_hlo import BAND, CONV_FLOPS, EXCHANGES, PROGRAM

KNOWN = PROGRAM.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"1"}}')
SLOW = Chip(flops=1e9, int8=2e9, width=128, bandwidth=1e15, clock=1.5e12)
TRANSFER = 640 * 128 * 2


def cost(**work: float) -> Cost:
    return Cost(Instruction("a", "fusion", (), (), ""), **work)  # type: ignore[arg-type]


def test_a_kernel_has_its_schedule_and_its_idle_cycles() -> None:
    rest = estimate(KNOWN, SLOW, {})  # the kernel takes 5 in both counts, for the FLOPs it states
    scheduled = estimate(KNOWN, SLOW, {5000.0: Kernel(12e6, 3e6)})
    assert scheduled.least == pytest.approx(rest.least - 5 + 8)
    assert scheduled.compiler == pytest.approx(rest.compiler - 5 + 10)
    waiting = estimate(KNOWN, SLOW, {5000.0: Kernel(3e6, 3e6)})
    assert waiting.least == pytest.approx(rest.least)
    assert waiting.compiler == pytest.approx(rest.compiler - 5 + 7)


def test_a_convolution_has_its_flops_and_the_compilers_cycles() -> None:
    whole = estimate(KNOWN, SLOW, {})
    known = KNOWN.replace('"estimated_cycles":"1500"', '"estimated_cycles":"3000"')
    assert estimate(known, SLOW, {}).compiler == pytest.approx(whole.compiler + 1500 / 1.5e6)
    faster = estimate(KNOWN, replace(SLOW, flops=2e9), {})
    products = 2 * 2 * 1024 * 640 * 64 + CONV_FLOPS + 5000  # the first fills half of the unit
    assert whole.least - faster.least == pytest.approx(products / 2e3)


def test_an_operation_takes_the_time_of_the_unit_that_it_needs_longest() -> None:
    chip = CHIPS["v5e"]
    product = Product(197e6, 128, 128, 128)
    for work, unit, micro in (
        (cost(products=(product,), vector=4096, bytes=819), "matrix", 1),  # type: ignore[arg-type]
        (cost(vector=4 * 1024 * 3000, bytes=819e3), "vector", 2),
        (cost(special=1024 * 3000), "vector", 2),
        (cost(written=4 * 1024 * 3000), "vector", 2),
        (cost(vector=4 * 1024 * 3000, bytes=819e4), "memory", 10),
    ):
        times, total = chip.seconds(work), Estimate()
        total.add(work, 1, chip, None)
        assert max(times, key=lambda name: times[name]) == unit
        assert total.least == pytest.approx(micro)


def test_products_of_whole_numbers_take_the_time_of_their_rate() -> None:
    fusion = """
%fused (p0: s8[1024,640], p1: KIND[640,1280]) -> s32[1024,1280] {
  %p0 = s8[1024,640]{1,0} parameter(0)
  %p1 = KIND[640,1280]{1,0} parameter(1)
  ROOT %c = s32[1024,1280]{1,0} convolution(%p0, %p1), dim_labels=bf_io->bf
}

ENTRY %main (a: s8[1024,640], b: KIND[640,1280]) -> s32[1024,1280] {
  %a = s8[1024,640]{1,0:S(1)} parameter(0)
  %b = KIND[640,1280]{1,0:S(1)} parameter(1)
  ROOT %f = s32[1024,1280]{1,0:S(1)} fusion(%a, %b), kind=kOutput, calls=%fused
}
"""
    flops = 2 * 1024 * 640 * 1280
    whole, mixed = (estimate(fusion.replace("KIND", kind), SLOW, {}) for kind in ("s8", "bf16"))
    assert whole.least == pytest.approx(flops / 2e9 * 1e6)
    assert mixed.least == pytest.approx(flops / 1e9 * 1e6)


def test_a_wider_matrix_unit_pads_more() -> None:
    heads = cost(products=(Product(1e9, 64, 1024, 1024),))  # type: ignore[arg-type]
    v6e = CHIPS["v6e"]
    narrow = replace(v6e, width=128)
    assert v6e.seconds(heads)["matrix"] == 2 * narrow.seconds(heads)["matrix"]


def test_estimates_without_a_model_are_told_apart() -> None:
    invalid = '"estimated_cycles":"1500","cost_model_type":"COST_MODEL_TYPE_INVALID"'
    assert estimate(KNOWN, SLOW, {}).unsure == 0
    found = estimate(KNOWN.replace('"estimated_cycles":"1500"', invalid), SLOW, {})
    assert found.unsure == pytest.approx(1500 / 1.5e6)


def test_transfers_count_where_the_bandwidth_is_taken() -> None:
    fast = Chip(flops=1e15, int8=1e15, width=128, bandwidth=1e9, clock=1.5e15)
    assert estimate(KNOWN, fast, {}).exposed == pytest.approx(TRANSFER / 1e3)
    assert estimate(KNOWN, replace(SLOW, bandwidth=1e9), {}).exposed == 0


def test_exchanges_count_where_nothing_is_beside_them() -> None:
    chip = Chip(flops=1e15, int8=1e15, width=128, bandwidth=1e9, clock=1.5e15, link=1e9)
    negated = 2 * 8 * 128 * 4 / 1e3  # microseconds, to read and to write
    total = estimate(EXCHANGES, chip, {})
    assert total.least == pytest.approx(
        3.5 * BAND / 1e3
    )  # the first one takes longer than `negated`
    assert total.compiler == pytest.approx(total.least + 3 * HOP * 1e6)
    quick = estimate(EXCHANGES, replace(chip, link=1e12), {})
    assert quick.least == pytest.approx(negated + 2.5 * BAND / 1e6)  # the first one fits
    assert quick.compiler == pytest.approx(quick.least + 2 * HOP * 1e6)
