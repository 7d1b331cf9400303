"""Cost analysis of compiled programs, on a program small enough to count by hand."""

from collections.abc import Sequence

import pytest

from benchmarks.hlo import Program
from benchmarks.hlo_costs import Cost, costs

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
TILED = "{1,0:T(8,128)}"


def by_name(text: str, lengths: Sequence[int] = (1,)) -> dict[str, Cost]:
    return {cost.instruction.name: cost for cost, _ in costs(Program(text), lengths)}


def times(text: str, lengths: Sequence[int] = ()) -> dict[str, int]:
    return {cost.instruction.name: times for cost, times in costs(Program(text), lengths)}


def entry(line: str, *, fused: str = "") -> Cost:
    """Return the cost of the last instruction of a program over arrays %a, %b and %i in HBM."""
    text = f"""\
HloModule jit_f, is_scheduled=true

{fused}
ENTRY %main (a: f32[1024,128], b: f32[8,128], i: s32[]) -> f32[1024,128] {{
  %a = f32[1024,128]{TILED} parameter(0)
  %b = f32[8,128]{TILED} parameter(1)
  %i = s32[]{{:T(128)}} parameter(2)
  {line}
}}
"""
    return list(by_name(text).values())[-1]


def test_matrix_product_with_padded_lanes() -> None:
    matmul = by_name(PROGRAM)["matmul"]
    assert matmul.flops == 2 * 2 * 1024 * 640 * 64
    # The second operand is already on the chip. The 64 lanes of the result are padded to 128.
    assert matmul.bytes == 2 * 1024 * 640 * 2 + 2 * 1024 * 128 * 2


def test_transfers_beside_the_others() -> None:
    copy = by_name(PROGRAM)["copy-start"]
    assert copy.hidden
    assert copy.bytes == 640 * 128 * 2


def test_a_transferred_slice_moves_its_own_size() -> None:
    quarter = f"((f32[1024,128]{TILED}), f32[256,128]{{1,0:T(8,128)S(1)}}, s32[]{{:S(2)}})"
    cost = entry(f"ROOT %s = {quarter} slice-start(%a), slice={{[0:256], [0:128]}}")
    assert cost.hidden
    assert cost.bytes == 256 * 128 * 4
    to_hbm = quarter.replace("S(1)", "")
    assert entry(f"ROOT %s = {to_hbm} slice-start(%a)").bytes == 2 * 256 * 128 * 4


def test_only_a_slice_is_read() -> None:
    part = by_name(PROGRAM)["part"]
    assert part.bytes == 8 * 128 * 4
    assert part.written == 8 * 128 * 4


FUSED_UPDATE = f"""\
%nested (q: f32[1024,128]) -> f32[8,128] {{
  %q = f32[1024,128]{TILED} parameter(0)
  %flat = f32[1024,128]{TILED} bitcast(%q)
  ROOT %slice = f32[8,128]{TILED} slice(%flat), slice={{[0:8], [0:128]}}
}}

%fused (p.0: f32[1024,128], p.1: f32[8,128], p.2: s32[]) -> f32[1024,128] {{
  %p.0 = f32[1024,128]{TILED} parameter(0)
  %p.1 = f32[8,128]{TILED} parameter(1)
  %p.2 = s32[]{{:T(128)}} parameter(2)
  %old = f32[8,128]{TILED} fusion(%p.0), kind=kLoop, calls=%nested
  %new = f32[8,128]{TILED} add(%old, %p.1)
  %put = f32[1024,128]{TILED} dynamic-update-slice(%p.0, %new, %p.2, %p.2)
  ROOT %same = f32[1024,128]{TILED} bitcast(%put)
}}
"""
ROW = 8 * 128 * 4


def test_an_update_in_place_moves_the_new_part() -> None:
    update = f"ROOT %u = f32[1024,128]{TILED} dynamic-update-slice(%a, %b, %i, %i)"
    assert entry(update).bytes == pytest.approx(2 * ROW, abs=1024)  # and two indices
    fused = entry(
        f"ROOT %u = f32[1024,128]{TILED} fusion(%a, %b, %i), kind=kLoop, calls=%fused",
        fused=FUSED_UPDATE,
    )
    # It reads the old and the new rows, adds them, and writes their sum.
    assert fused.bytes == pytest.approx(3 * ROW, abs=1024)
    assert fused.written == ROW
    assert fused.vector == 8 * 128


def test_a_fusion_may_return_several_results_of_one_operation() -> None:
    results = f"(f32[8,128]{TILED}, s32[8,128]{TILED})"
    sort = f"""\
%fused (p.0: f32[8,128], p.1: s32[8,128]) -> (f32[8,128], s32[8,128]) {{
  %p.0 = f32[8,128]{TILED} parameter(0)
  %p.1 = s32[8,128]{TILED} parameter(1)
  ROOT %sorted = {results} sort(%p.0, %p.1), dimensions={{1}}
}}
"""
    call = f"ROOT %s = {results} fusion(%b, %b), kind=kCustom, calls=%fused"
    assert entry(call, fused=sort).written == 2 * ROW


def test_a_gather_moves_what_it_picks() -> None:
    gather = f"ROOT %g = f32[16,128]{TILED} gather(%a, %i), offset_dims={{1}}"
    assert entry(gather).bytes == pytest.approx(2 * 16 * 128 * 4, abs=1024)


def test_vector_work_of_functions_and_sums() -> None:
    """A row of 128 columns is a whole register; a mean of 100 columns costs 128 too."""
    erf = entry(f"ROOT %e = f32[1024,128]{TILED} erf(%a)")
    assert (erf.vector, erf.special) == (24 * 1024 * 128, 1024 * 128)
    half = entry("ROOT %e = bf16[1024,100]{1,0:T(8,128)(2,1)} add(%a, %a)")
    assert half.vector == 1024 * 128 / 2
    total = entry("ROOT %r = f32[1024]{0:T(1024)} reduce(%a, %i), dimensions={1}, to_apply=%add")
    assert (total.vector, total.written) == (1024 * 128, 1024 * 4)
    moved = entry(f"ROOT %c = f32[1024,128]{TILED} copy(%a)")
    assert (moved.vector, moved.written) == (0, 1024 * 128 * 4)


def test_slices_that_lie_side_by_side_are_joined_for_nothing() -> None:
    joined = 'custom-call(%loop), custom_call_target="ConcatBitcast"'
    text = PROGRAM.replace("get-tuple-element(%loop), index=1", joined)
    assert set(by_name(text)) == set(by_name(PROGRAM))


def test_a_loop_of_unknown_length_needs_one() -> None:
    with pytest.raises(ValueError, match="length of the loop loop is not known"):
        times(PROGRAM)
    found = times(PROGRAM, [3])
    assert (found["convolution.2"], found["matmul"]) == (3, 1)


ALWAYS = "  ROOT %less = pred[]{:T(512)} constant(true)"
COUNTED = """\
  %turn = s32[]{:T(128)} get-tuple-element(%param.1), index=0
  %limit = s32[]{:T(128)} constant(16), metadata={op_name="jit(f)/while"}
  ROOT %less = pred[]{:T(512)} compare(%turn, %limit), direction=LT
  %behind = s32[]{:T(128)} constant(4)"""
STATE = "custom-call(%matmul)"


def counted(begin: str) -> str:
    """Return the program with a loop from `begin` to 16."""
    first = f"%first = s32[]{{:T(128)}} {begin}\n  %begin = s32[]{{:T(128)}} copy(%first)\n"
    text = PROGRAM.replace(ALWAYS, COUNTED).replace(STATE, "tuple(%begin, %matmul)")
    return text.replace("  %state =", f"  {first}  %state =")


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (PROGRAM.replace("body=%body", 'body=%body, x={"known_trip_count":{"n":"16"}}'), 16),
        (counted("constant(0)"), 16),
        (counted("constant(14)"), 2),
    ],
)
def test_a_loop_of_known_length(text: str, length: int) -> None:
    found = times(text)
    assert (found["convolution.2"], found["matmul"]) == (length, 1)


def test_a_loop_that_begins_anywhere_has_no_known_length() -> None:
    with pytest.raises(ValueError, match="length of the loop loop is not known"):
        times(counted("custom-call(%t)"))


def test_convolution_without_its_padding() -> None:
    convolution = by_name(PROGRAM)["convolution.2"]
    assert convolution.flops == CONV_FLOPS
    assert convolution.bytes == CONV_BYTES
    assert convolution.instruction.estimated_cycles == 1500


def test_a_kernels_own_cost_estimate_is_used() -> None:
    kernel = by_name(PROGRAM)["flash"]
    assert (kernel.flops, kernel.bytes) == (5000, 300)


# A permutation beside another operation, and two exchanges that all other operations wait for.
EXCHANGES = f"""\
HloModule jit_f, is_scheduled=true

ENTRY %main (a: f32[1024,128], b: f32[8,128]) -> f32[4096,128] {{
  %a = f32[1024,128]{TILED} parameter(0)
  %b = f32[8,128]{TILED} parameter(1)
  %start = (f32[1024,128]{TILED}, f32[1024,128]{TILED}, u32[]{{:S(2)}}, u32[]{{:S(2)}}) \
collective-permute-start(%a), source_target_pairs={{{{0,1}},{{1,0}},{{2,3}},{{3,2}}}}
  %negated = f32[8,128]{TILED} negate(%b)
  %done = f32[1024,128]{TILED} collective-permute-done(%start)
  %sum = f32[1024,128]{TILED} all-reduce(%done), replica_groups={{{{0,1}},{{2,3}}}}, to_apply=%add
  ROOT %all = f32[4096,128]{TILED} all-gather(%sum), replica_groups=[1,4]<=[4], dimensions={{0}}
}}
"""
BAND = 1024 * 128 * 4


def test_exchanges_between_chips() -> None:
    found = by_name(EXCHANGES)
    links = {name: cost.link for name, cost in found.items() if cost.link}
    # Each of two chips sends its half of the sum and then of the result. Four chips form a ring,
    # and send half of what they have each way.
    assert links == {"start": BAND, "sum": BAND, "all": 3 * BAND / 2}
    assert found["start"].beside == ("negated",)
    assert found["sum"].beside == ()
