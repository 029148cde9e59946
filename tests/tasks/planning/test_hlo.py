"""What a compiled program computes and moves, read from the compiler's text: small modules with
known answers, in libtpu's own words."""

import pytest

from tasks.planning.hlo_cost import cost_of, parts_of

GIB = 2**30


def module(*computations: str, partitions: int = 1) -> str:
    return "\n\n".join(
        [f"HloModule jit_f, is_scheduled=true, num_partitions={partitions}", *computations]
    )


PRODUCT = """%product (a: bf16[128,256], b: bf16[256,512]) -> bf16[128,512] {
  %a = bf16[128,256]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[256,512]{1,0:T(8,128)(2,1)} parameter(1)
  %convolution.1 = bf16[128,512]{1,0:T(8,128)(2,1)} convolution(%a, %b), dim_labels=bf_io->bf, metadata={op_name="jit(f)/dot_general"}
  ROOT %tanh.1 = bf16[128,512]{1,0:T(8,128)(2,1)} tanh(%convolution.1)
}"""  # noqa: E501  as the compiler writes it
FLOPS = 2 * 128 * 256 * 512
BYTES = 2 * (128 * 256 + 256 * 512 + 128 * 512)


def test_a_matrix_product_inside_a_fusion_counts_and_its_boundary_is_what_moves() -> None:
    entry = """ENTRY %main (x: bf16[128,256], w: bf16[256,512]) -> bf16[128,512] {
  %x = bf16[128,256]{1,0:T(8,128)(2,1)} parameter(0)
  %w = bf16[256,512]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %fusion.1 = bf16[128,512]{1,0:T(8,128)(2,1)} fusion(%x, %w), kind=kOutput, calls=%product
}"""
    cost = cost_of(module(PRODUCT, entry))
    assert (cost.flops, cost.bytes, cost.link_bytes, cost.uncounted) == (FLOPS, BYTES, 0, ())


def test_what_lies_in_vmem_does_not_move_and_the_copy_that_brings_it_does() -> None:
    entry = """ENTRY %main (x: bf16[128,256], w: bf16[256,512]) -> bf16[128,512] {
  %x = bf16[128,256]{1,0:T(8,128)(2,1)} parameter(0)
  %w = bf16[256,512]{1,0:T(8,128)(2,1)} parameter(1)
  %copy-start = (bf16[256,512]{1,0:T(8,128)(2,1)S(1)}, bf16[256,512]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%w)
  %copy-done = bf16[256,512]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  ROOT %fusion.1 = bf16[128,512]{1,0:T(8,128)(2,1)S(1)} fusion(%x, %copy-done), kind=kOutput, calls=%product
}"""  # noqa: E501  as the compiler writes it
    assert cost_of(module(PRODUCT, entry)).bytes == 2 * (128 * 256 + 256 * 512)


def loop(name, body, limit, start=0, step=1, direction="LT", scope="jit(f)") -> tuple[str, str]:
    """The computations of a loop over (counter, bf16[128,256], bf16[256,512]) and the instructions
    that run it."""
    state = "(s32[]{:T(128)}, bf16[128,256]{1,0:T(8,128)(2,1)}, bf16[256,512]{1,0:T(8,128)(2,1)})"
    functions = f"""%{name}_body (p: (s32[], bf16[128,256], bf16[256,512])) -> (s32[], bf16[128,256], bf16[256,512]) {{
  %step = s32[]{{:T(128)}} constant({step})
  %p = {state} parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%p), index=0
  %copy.i = s32[]{{:T(128)S(6)}} copy(%i)
  %next = s32[]{{:T(128)}} add(%copy.i, %step)
  %x = bf16[128,256]{{1,0:T(8,128)(2,1)}} get-tuple-element(%p), index=1
  %w = bf16[256,512]{{1,0:T(8,128)(2,1)}} get-tuple-element(%p), index=2
{body}
  ROOT %t = {state} tuple(%next, %x, %w)
}}

%{name}_condition (p: (s32[], bf16[128,256], bf16[256,512])) -> pred[] {{
  %limit = s32[]{{:T(128)}} constant({limit})
  %p = {state} parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{{:T(512)}} compare(%i, %limit), direction={direction}
}}"""  # noqa: E501  as the compiler writes it
    run = f"""  %{name}_start = s32[]{{:T(128)}} constant({start})
  %{name}_copy = s32[]{{:T(128)}} copy(%{name}_start)
  %{name}_state = {state} tuple(%{name}_copy, %x, %w)
  %{name} = {state} while(%{name}_state), condition=%{name}_condition, body=%{name}_body, metadata={{op_name="{scope}/while"}}"""  # noqa: E501  as the compiler writes it
    return functions, run


MULTIPLY = (
    "  %fusion.1 = bf16[128,512]{1,0:T(8,128)(2,1)} fusion(%x, %w), kind=kOutput, calls=%product"
)


def entry(run: str) -> str:
    return f"""ENTRY %main (x: bf16[128,256], w: bf16[256,512]) -> bf16[128,256] {{
  %x = bf16[128,256]{{1,0:T(8,128)(2,1)}} parameter(0)
  %w = bf16[256,512]{{1,0:T(8,128)(2,1)}} parameter(1)
{run}
  ROOT %result = bf16[128,256]{{1,0:T(8,128)(2,1)}} get-tuple-element(%{run.rsplit("  %", 1)[1].split(" ")[0]}), index=1
}}"""  # noqa: E501  as the compiler writes it


def test_a_loop_that_counts_counts_as_often_as_it_runs():
    for limit, start, step, direction, trips in (
        (6, 0, 1, "LT", 6),
        (6, 2, 1, "LT", 4),
        (7, 0, 2, "LT", 4),
        (6, 0, 1, "LE", 7),
        (0, 5, -1, "GT", 5),
        (3, 0, 1, "NE", 3),
    ):
        functions, run = loop("scan", MULTIPLY, limit, start, step, direction)
        cost = cost_of(module(PRODUCT, functions, entry(run)))
        assert (cost.flops, cost.bytes) == (trips * FLOPS, trips * BYTES)


def test_loops_in_loops_multiply_what_runs_by_itself_and_the_cycles_that_it_is_expected_to_take():
    expects = MULTIPLY.replace(
        "calls=%product", 'calls=%product, backend_config={"estimated_cycles":"700"}'
    )
    assert expects != MULTIPLY
    inner, run_inner = loop("inner", expects, 3)
    outer, run_outer = loop("outer", run_inner, 6)
    text = module(PRODUCT, inner, outer, entry(run_outer))
    (part,) = parts_of(text)
    assert (part.instruction.opcode, part.runs, part.cycles) == ("fusion", 18, 18 * 700)
    assert part.cost == cost_of(text)
    assert part.cost.flops == 18 * FLOPS


def test_a_limit_that_the_state_carries_is_found() -> None:
    functions, run = loop("scan", MULTIPLY, 6)
    # no longer a constant: the loop cannot be counted
    functions = functions.replace("constant(6)", "add(%i, %i)")
    cost = cost_of(module(PRODUCT, functions, entry(run)))
    assert cost.flops == FLOPS
    assert cost.uncounted == ("loop jit(f)/while counts once: how often it runs is not known",)


def test_a_loop_that_depends_on_data_runs_as_often_as_its_scope_says() -> None:
    functions, run = loop("decode", MULTIPLY, 6, scope="jit(generate)/decode")
    functions = functions.replace(
        "ROOT %lt = pred[]{:T(512)} compare",
        "%going = pred[]{:T(512)} compare(%i, %i), direction=EQ\n  %lt = pred[]{:T(512)} compare",
    ).replace("direction=LT", "direction=LT\n  ROOT %both = pred[]{:T(512)} and(%lt, %going)")
    text = module(PRODUCT, functions, entry(run))
    assert cost_of(text, {"decode": 10.5}).flops == 10.5 * FLOPS
    assert cost_of(text, {"other": 10.0}).uncounted == (
        "loop jit(generate)/decode/while counts once: how often it runs is not known",
    )


@pytest.mark.parametrize(
    ("left", "right", "out", "attributes", "products"),
    [
        # the batch of an attention as a window: 16 x (1024, 256) @ (256, 1024)
        ("16,256,4,1024", "16,1024,256,1", "16,4,1024,1024",
        "window={size=16x1 stride=15x1 lhs_dilate=16x1}, dim_labels=0f1b_0oi1->01bf",
         16 * 4 * 1024 * 1024 * 256),
        # a contracted dimension as a window
        ("16,1024,864", "16,1024,1152", "864,1152,1", "window={size=16}, dim_labels=0fb_0io->bf0",
         16 * 1024 * 864 * 1152),
        # heads as a window that runs over padding: 4 heads, each meets one place
        ("16,1024,144,1", "144,4,256,1", "16,1024,4,256",
        "window={size=1x4 pad=0_0x3_3 rhs_reversal=0x1}, dim_labels=0bf1_i1o0->0b1f",
         16 * 1024 * 144 * 4 * 256),
        # a real convolution with stride and padding: "valid" places only
        ("1,8,3", "3,3,5", "1,4,5", "window={size=3 stride=2 pad=1_0}, dim_labels=b0f_0io->b0f",
         (2 + 3 * 3) * 3 * 5),
    ],
)  # fmt: skip
def test_products_in_disguise_count_what_they_multiply(left, right, out, attributes, products):
    entry = f"""ENTRY %main (x: bf16[{left}], w: bf16[{right}]) -> bf16[{out}] {{
  %x = bf16[{left}]{{1,0}} parameter(0)
  %w = bf16[{right}]{{1,0}} parameter(1)
  ROOT %convolution.1 = bf16[{out}]{{1,0}} convolution(%x, %w), {attributes}
}}"""
    assert cost_of(module(entry)).flops == 2 * products


def test_of_an_array_that_is_sliced_gathered_or_updated_in_place_only_the_part_counts() -> None:
    pick = """%pick (all: bf16[6,512,512], i: s32[]) -> bf16[512,512] {
  %all = bf16[6,512,512]{2,1,0} parameter(0)
  %i = s32[]{:S(6)} parameter(1)
  %zero = s32[] constant(0)
  %dynamic-slice.1 = bf16[1,512,512]{2,1,0} dynamic-slice(%all, %i, %zero, %zero), dynamic_slice_sizes={1,512,512}
  ROOT %bitcast.1 = bf16[512,512]{1,0} bitcast(%dynamic-slice.1)
}"""  # noqa: E501  as the compiler writes it
    put = """%put (all: bf16[6,512,512], part: bf16[512,512], i: s32[]) -> bf16[6,512,512] {
  %all = bf16[6,512,512]{2,1,0} parameter(0)
  %part = bf16[512,512]{1,0} parameter(1)
  %bitcast.1 = bf16[1,512,512]{2,1,0} bitcast(%part)
  %i = s32[]{:S(6)} parameter(2)
  %zero = s32[] constant(0)
  ROOT %dynamic-update-slice.1 = bf16[6,512,512]{2,1,0} dynamic-update-slice(%all, %bitcast.1, %i, %zero, %zero)
}"""  # noqa: E501  as the compiler writes it
    entry = """ENTRY %main (all: bf16[6,512,512], i: s32[], rows: s32[64]) -> bf16[64,512] {
  %all = bf16[6,512,512]{2,1,0} parameter(0)
  %i = s32[]{:S(6)} parameter(1)
  %rows = s32[64]{0} parameter(2)
  %fusion.1 = bf16[512,512]{1,0} fusion(%all, %i), kind=kLoop, calls=%pick
  %fusion.2 = bf16[6,512,512]{2,1,0} fusion(%all, %fusion.1, %i), kind=kLoop, calls=%put
  ROOT %gather.1 = bf16[64,512]{1,0} gather(%fusion.1, %rows), offset_dims={1}, slice_sizes={1,512}
}"""
    part = 2 * 512 * 512
    assert cost_of(module(pick, put, entry)).bytes == 2 * part + 2 * part + (
        2 * 64 * 512 * 2 + 4 * 64
    )


def test_a_weight_that_reaches_a_product_through_a_view_is_read_whole() -> None:
    view = """%view (w: bf16[256,512]) -> bf16[256,512] {
  %w = bf16[256,512]{1,0} parameter(0)
  ROOT %bitcast.1 = bf16[256,512]{1,0} bitcast(%w)
}"""
    product = PRODUCT.replace("convolution(%a, %b)", "convolution(%a, %viewed)").replace(
        "  %convolution.1",
        "  %viewed = bf16[256,512]{1,0} fusion(%b), kind=kLoop, calls=%view\n  %convolution.1",
    )
    run = """ENTRY %main (x: bf16[128,256], w: bf16[256,512]) -> bf16[128,512] {
  %x = bf16[128,256]{1,0} parameter(0)
  %w = bf16[256,512]{1,0} parameter(1)
  ROOT %fusion.1 = bf16[128,512]{1,0} fusion(%x, %w), kind=kOutput, calls=%product
}"""
    assert cost_of(module(view, product, run)).bytes == BYTES


@pytest.mark.parametrize(
    "groups", ["{{0,1,2,3},{4,5,6,7}}", "[2,4]<=[8]", "mesh['axis_0'=4,'axis_1'=2] {'axis_0'}"]
)
def test_collectives_send_what_a_ring_of_their_group_sends(groups: str) -> None:
    def sent(opcode: str, given: str, out: str) -> float:
        entry = f"""ENTRY %main (x: f32[{given}]) -> f32[{out}] {{
  %x = f32[{given}]{{0}} parameter(0)
  ROOT %collective.1 = f32[{out}]{{0}} {opcode}(%x), channel_id=1, replica_groups={groups}, use_global_device_ids=true
}}"""  # noqa: E501  as the compiler writes it
        return cost_of(module(entry, partitions=8)).link_bytes

    assert sent("all-reduce", "1024", "1024") == 2 * 3 / 4 * 4096
    assert sent("all-gather", "1024", "4096") == 3 * 4096
    assert sent("reduce-scatter", "1024", "256") == 3 / 4 * 4096


def test_a_collective_that_is_spread_over_fusions_is_sent_once() -> None:
    part = """%PART (x: f32[1024], y: f32[256]) -> f32[256] {
  %x = f32[1024]{0} parameter(0)
  %y = f32[256]{0} parameter(1)
  %all-gather.1 = f32[8192]{0} all-gather(%x), channel_id=7, replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true
  ROOT %negate.1 = f32[256]{0} negate(%y)
}"""  # noqa: E501  as the compiler writes it
    entry = """ENTRY %main (x: f32[1024], y: f32[256]) -> f32[256] {
  %x = f32[1024]{0} parameter(0)
  %y = f32[256]{0} parameter(1)
  %fusion.1 = f32[256]{0} fusion(%x, %y), kind=kOutput, calls=%one
  ROOT %fusion.2 = f32[256]{0} fusion(%x, %fusion.1), kind=kOutput, calls=%two
}"""
    text = module(part.replace("PART", "one"), part.replace("PART", "two"), entry, partitions=8)
    assert cost_of(text).link_bytes == 7 * 4096


def test_a_kernel_counts_what_its_author_says_or_is_named() -> None:
    def kernel(config: str) -> str:
        return module(f"""ENTRY %main (x: bf16[128,256]) -> bf16[128,256] {{
  %x = bf16[128,256]{{1,0}} parameter(0)
  ROOT %splash = bf16[128,256]{{1,0}} custom-call(%x), custom_call_target="tpu_custom_call", metadata={{op_name="jit(f)/splash"}}, backend_config={{{config}}}
}}""")  # noqa: E501  as the compiler writes it

    estimate = '{"flops":"1000","transcendentals":"5","bytes_accessed":"300"}'
    said = cost_of(kernel(f'"custom_call_config":{{"cost_estimate":{estimate}}}'))
    assert (said.flops, said.bytes, said.uncounted) == (1000, 300, ())
    silent = cost_of(kernel('"custom_call_config":{"body":"TUz"}'))
    assert (silent.flops, silent.bytes) == (0, 2 * 2 * 128 * 256)
    assert silent.uncounted == ("kernel jit(f)/splash: its FLOPs are not known",)


Q, KV = "bf16[2,4,1024,256]{3,2,1,0}", "bf16[2,1,1024,256]{3,2,1,0}"
BY_HEAD = f"(bf16[2,2,4,1024,256]{{4,3,2,1,0}}, {KV})"


@pytest.mark.parametrize(
    ("name", "results", "blocks", "products", "met"),
    [
        ("fwd_segmented_residuals.4", Q, "1,2,2", 2, 3 / 4),
        ("fwd_segmented_no_residuals.1", Q, "1,8,3", 2, (1 + 2 + 6 * 3) / 64),
        ("dq_segmented_no_residuals.2", Q, "1,2,2", 3, 3 / 4),
        ("dkv_segmented_no_residuals.2", f"({KV}, {KV})", "1,2,2", 4, 3 / 4),
        ("dkv_segmented_no_residuals.2", BY_HEAD, "1,2,2", 5, 3 / 4),
    ],
)
def test_splash_attention_counts_the_blocks_that_a_causal_mask_or_window_leaves(
    name, results, blocks, products, met
):
    entry = f"""ENTRY %main (m: s8[{blocks}], q: bf16[2,4,1024,256], k: bf16[2,1,1024,256], s: s32[2,1024,128]) -> {results} {{
  %m = s8[{blocks}]{{2,1,0}} parameter(0)
  %q = bf16[2,4,1024,256]{{3,2,1,0}} parameter(1)
  %k = bf16[2,1,1024,256]{{3,2,1,0}} parameter(2)
  %s = s32[2,1024,128]{{2,1,0}} parameter(3)
  ROOT %splash_mha_{name} = {results} custom-call(%m, %q, %k, %k, %s), custom_call_target="tpu_custom_call"
}}"""  # noqa: E501  as the compiler writes it
    cost = cost_of(module(entry))
    assert cost.flops == pytest.approx(products * 2 * 2 * 4 * 1024 * 256 * 1024 * met)
    assert cost.uncounted == ()


def test_a_conditional_counts_its_dearest_branch() -> None:
    branch = """%branch_ANY (a: bf16[128,256]) -> bf16[128,256] {
  %a = bf16[128,256]{1,0} parameter(0)
  ROOT %WHAT
}"""
    cheap = branch.replace("ANY", "0").replace("WHAT", "bitcast.1 = bf16[128,256]{1,0} bitcast(%a)")
    dear = branch.replace("ANY", "1").replace("WHAT", "negate.1 = bf16[128,256]{1,0} negate(%a)")
    entry = """ENTRY %main (p: pred[], x: bf16[128,256]) -> bf16[128,256] {
  %p = pred[] parameter(0)
  %x = bf16[128,256]{1,0} parameter(1)
  ROOT %conditional.1 = bf16[128,256]{1,0} conditional(%p, %x, %x), branch_computations={%branch_0, %branch_1}, metadata={op_name="jit(f)/loop/choice/cond"}
}"""  # noqa: E501  as the compiler writes it
    text, bytes_moved = module(cheap, dear, entry), 2 * 2 * 128 * 256
    assert cost_of(text, {"loop": 0.5}).bytes == bytes_moved
    # unless the scope right around it says how often it takes the second one
    assert cost_of(text, {"choice": 0.25}).bytes == 0.25 * bytes_moved
    assert sum(part.cost.bytes for part in parts_of(text, {"choice": 0.25})) == 0.25 * bytes_moved
    false_second = text.replace(
        "branch_computations={%branch_0, %branch_1}",
        "true_computation=%branch_0, false_computation=%branch_1",
    )
    assert cost_of(false_second, {"choice": 0.25}).bytes == 0.75 * bytes_moved


def test_a_text_that_is_no_program_is_refused() -> None:
    with pytest.raises(ValueError, match="no ENTRY"):
        cost_of("HloModule nothing")
