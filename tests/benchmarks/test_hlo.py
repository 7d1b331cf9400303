"""Cost analysis of compiled programs, on a program small enough to count by hand."""

import pytest

from benchmarks.hlo import Cost, Program
from benchmarks.roofline import Chip, estimate, kind

PROGRAM = """\
HloModule jit_f, is_scheduled=true

%fused_matmul (param_0: bf16[2,1024,640], param_1: bf16[640,64]) -> bf16[2,1024,64] {
  %param_0 = bf16[2,1024,640]{2,1,0:T(8,128)(2,1)} parameter(0)
  %param_1 = bf16[640,64]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %convolution.1 = bf16[2,1024,64]{2,1,0:T(8,128)(2,1)} convolution(%param_0, %param_1), \
window={size=1}, dim_labels=0bf_io0->0bf
}

%fused_slice (param_0.1: f32[51,128]) -> f32[1,128] {
  %param_0.1 = f32[51,128]{1,0:T(8,128)} parameter(0)
  ROOT %slice.1 = f32[8,128]{1,0:T(8,128)} slice(%param_0.1), slice={[0:8], [0:128]}
}

%body (param: (s32[], bf16[1,8,8,128])) -> (s32[], bf16[1,8,8,128]) {
  %param = (s32[]{:T(128)}, bf16[1,8,8,128]{3,2,1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%param), index=0
  %x = bf16[1,8,8,128]{3,2,1,0:T(8,128)(2,1)} get-tuple-element(%param), index=1
  %kernel = bf16[3,3,128,128]{3,2,1,0:T(8,128)(2,1)S(1)} constant({...})
  %convolution.2 = bf16[1,8,8,128]{3,2,1,0:T(8,128)(2,1)} convolution(%x, %kernel), \
window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, \
metadata={op_name="jit(f)/while/body/resnet/conv"}, \
backend_config={"window_config":{"estimated_cycles":"1500"}}
  %flash = bf16[1,8,8,128]{3,2,1,0:T(8,128)(2,1)} custom-call(%convolution.2), \
custom_call_target="tpu_custom_call", \
metadata={op_name="jit(f)/while/body/transformer/self_attention/flash_attention/pallas_call"}, \
backend_config={"custom_call_config":{"cost_estimate":{"flops":"5000","transcendentals":"7",\
"bytes_accessed":"300"}}}
  ROOT %tuple.1 = (s32[]{:T(128)}, bf16[1,8,8,128]{3,2,1,0:T(8,128)(2,1)}) tuple(%i, %flash)
}

%condition (param.1: (s32[], bf16[1,8,8,128])) -> pred[] {
  %param.1 = (s32[]{:T(128)}, bf16[1,8,8,128]{3,2,1,0:T(8,128)(2,1)}) parameter(0)
  ROOT %less = pred[]{:T(512)} constant(true)
}

ENTRY %main (a: bf16[2,1024,640], b: bf16[640,64], t: f32[51,128]) -> bf16[1,8,8,128] {
  %a = bf16[2,1024,640]{2,1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[640,64]{1,0:T(8,128)(2,1)} parameter(1)
  %t = f32[51,128]{1,0:T(8,128)} parameter(2)
  %copy-start = (bf16[640,64]{1,0:T(8,128)(2,1)S(1)}, bf16[640,64]{1,0:T(8,128)(2,1)}, \
u32[]{:S(2)}) copy-start(%b)
  %copy-done = bf16[640,64]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  %matmul = bf16[2,1024,64]{2,1,0:T(8,128)(2,1)} fusion(%a, %copy-done), kind=kOutput, \
calls=%fused_matmul
  %part = f32[8,128]{1,0:T(8,128)S(1)} fusion(%t), kind=kLoop, calls=%fused_slice
  %state = (s32[]{:T(128)}, bf16[1,8,8,128]{3,2,1,0:T(8,128)(2,1)}) custom-call(%matmul)
  %loop = (s32[]{:T(128)}, bf16[1,8,8,128]{3,2,1,0:T(8,128)(2,1)}) while(%state), \
condition=%condition, body=%body
  ROOT %out = bf16[1,8,8,128]{3,2,1,0:T(8,128)(2,1)} get-tuple-element(%loop), index=1
}
"""
CONV_FLOPS = 2 * 128 * 128 * 22 * 22  # per axis: 8 outputs times 3 taps, less 2 at the edges
CONV_BYTES = 2 * 8 * 8 * 128 * 2


def costs(computation: str) -> dict[str, Cost]:
    return {c.instruction.name: c for c, _ in Program(PROGRAM).costs(computation)}


def test_matrix_product_with_padded_lanes() -> None:
    matmul = costs("main")["matmul"]
    assert matmul.flops == 2 * 2 * 1024 * 640 * 64
    # The second operand is already on the chip. The 64 lanes of the result are padded to 128.
    assert matmul.bytes == 2 * 1024 * 640 * 2 + 2 * 1024 * 128 * 2


def test_transfers_beside_the_others() -> None:
    copy = costs("main")["copy-start"]
    assert copy.hidden
    assert copy.bytes == 640 * 128 * 2


def test_only_a_slice_is_read() -> None:
    assert costs("main")["part"].bytes == 8 * 128 * 4


def test_the_loop_is_counted_apart() -> None:
    program = Program(PROGRAM)
    assert program.loop() == "body"
    assert set(costs("main")) == {"copy-start", "matmul", "part", "state"}
    assert set(costs("body")) == {"convolution.2", "flash"}


def test_a_loop_of_unknown_length_can_be_given_one() -> None:
    times = {c.instruction.name: n for c, n in Program(PROGRAM).costs("main", [3])}
    assert (times["convolution.2"], times["matmul"]) == (3, 1)


UNKNOWN = "  ROOT %less = pred[]{:T(512)} constant(true)"
COUNTED = """\
  %turn = s32[]{:T(128)} get-tuple-element(%param.1), index=0
  %limit = s32[]{:T(128)} constant(16), metadata={op_name="jit(f)/while"}
  ROOT %less = pred[]{:T(512)} compare(%turn, %limit), direction=LT"""


@pytest.mark.parametrize(
    ("unknown", "known"),
    [
        ("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"16"}}'),
        (UNKNOWN, COUNTED),
    ],
)
def test_a_loop_of_known_length(unknown: str, known: str) -> None:
    program = Program(PROGRAM.replace(unknown, known))
    assert program.loop() is None
    times = {cost.instruction.name: times for cost, times in program.costs("main")}
    assert (times["convolution.2"], times["matmul"]) == (16, 1)


def test_convolution_without_its_padding() -> None:
    convolution = costs("body")["convolution.2"]
    assert convolution.flops == CONV_FLOPS
    assert convolution.bytes == CONV_BYTES
    assert convolution.instruction.estimated_cycles == 1500


def test_a_batched_product_written_as_a_convolution() -> None:
    """With the batch of 8 x 3 written as dilated axes, each output meets only one tap."""
    old = "window={size=1}, dim_labels=0bf_io0->0bf"
    new = "window={size=8x3 stride=7x2 lhs_dilate=8x3}, dim_labels=0b1f_0o1i->01bf"
    shapes = (
        ("bf16[2,1024,640]{2,1,0", "bf16[8,64,3,32]{3,2,1,0"),
        ("bf16[640,64]{1,0", "bf16[8,64,3,32]{3,2,1,0"),
        ("%convolution.1 = bf16[2,1024,64]{2,1,0", "%convolution.1 = bf16[8,3,64,64]{3,2,1,0"),
    )
    text = PROGRAM.replace(old, new)
    for before, after in shapes:
        text = text.replace(before, after)
    found = {c.instruction.name: c for c, _ in Program(text).costs("main")}
    assert found["matmul"].flops == 2 * 8 * 3 * 64 * 64 * 32


def test_a_kernels_own_cost_estimate_is_used() -> None:
    kernel = costs("body")["flash"]
    assert (kernel.flops, kernel.bytes) == (5000, 300)


@pytest.mark.parametrize(
    ("scope", "right"),
    [
        ("jit(f)/while/body/resnet/group_norm/mul", "group norm and SiLU"),
        ("jit(f)/while/body/transformer/self_attention/dot_general", "self-attention projections"),
        ("jit(f)/transformer/self_attention/flash_attention/pallas_call", "attention kernel"),
        ("jit(f)/while/body/add", "other"),
    ],
)
def test_class_of_an_operation(scope: str, right: str) -> None:
    assert kind(scope) == right


def test_estimate() -> None:
    chip = Chip(flops=1e9, bandwidth=1e9, clock=1.5e9)
    step = estimate(Program(PROGRAM).costs("body"), chip, {5000.0: 12_000})
    convolution, kernel = step.rows["ResNet convolutions"], step.rows["attention kernel"]
    assert convolution.least == pytest.approx(CONV_FLOPS / 1e3)
    assert convolution.compiler == pytest.approx(1)
    assert kernel.least == pytest.approx(5)
    assert kernel.compiler == pytest.approx(8)
    assert step.least == pytest.approx(CONV_FLOPS / 1e3 + 5)
    waiting = estimate(Program(PROGRAM).costs("body"), chip, {5000.0: 3000})
    assert waiting.rows["attention kernel"].compiler == pytest.approx(5)


def test_transfers_count_where_the_bandwidth_is_taken() -> None:
    chip = Chip(flops=1e15, bandwidth=1e9, clock=1.5e9)
    once = estimate(Program(PROGRAM).costs("main"), chip, {})
    assert once.exposed == pytest.approx(640 * 128 * 2 / 1e3)
    slow = Chip(flops=1e9, bandwidth=1e9, clock=1.5e9)
    assert estimate(Program(PROGRAM).costs("main"), slow, {}).exposed == 0
