"""Control flow, memory, barriers, atomics, functions and merged bindings, run on both providers."""

# ruff: noqa: E501

from __future__ import annotations

import numpy as np
import pytest
from tests.wgsl import shader_runner as sr

from sylvite import errors, spirv, wgsl

U = np.uint32
LANES = np.arange(64, dtype=U)


@pytest.fixture(params=["wgpu", "dawn"])
def provider(request):
    sr.device(request.param)
    return request.param


def result(provider, body, *, buffers=None, arrays=None, out=0, count=64, **options):
    shader = sr.translate(sr.kernel(buffers or {"out": "uint"}, body, **options))
    return sr.run(provider, shader, arrays or {0: np.zeros(count, U)})[out]


def test_loop_with_two_phis_that_swap_gives_fibonacci(provider):
    body = """
OpBranch %header
%header = OpLabel
%i = OpPhi %uint %u0 %entry %i_next %body
%a = OpPhi %uint %u0 %entry %b %body
%b = OpPhi %uint %u1 %entry %sum %body
%more = OpULessThan %bool %i %lane
OpLoopMerge %done %body None
OpBranchConditional %more %body %done
%body = OpLabel
%sum = OpIAdd %uint %a %b
%i_next = OpIAdd %uint %i %u1
OpBranch %header
%done = OpLabel
""" + sr.store("a", "out", "uint")
    expected = [0, 1]
    while len(expected) < 64:
        expected.append((expected[-1] + expected[-2]) & 0xFFFFFFFF)
    np.testing.assert_array_equal(result(provider, body), np.array(expected, np.uint64).astype(U))


def test_loop_that_leaves_at_its_end_keeps_the_value_before_the_last_step(provider):
    body = """
OpBranch %header
%header = OpLabel
%i = OpPhi %uint %u0 %entry %next %latch
OpLoopMerge %done %latch None
OpBranch %middle
%middle = OpLabel
%odd = OpBitwiseAnd %uint %i %u1
%is_odd = OpIEqual %bool %odd %u1
OpSelectionMerge %joined None
OpBranchConditional %is_odd %latch %other
%other = OpLabel
OpBranch %joined
%joined = OpLabel
OpBranch %latch
%latch = OpLabel
%next = OpIAdd %uint %i %u1
%leave = OpUGreaterThanEqual %bool %next %lane
OpBranchConditional %leave %done %header
%done = OpLabel
""" + sr.store("i", "out", "uint")
    np.testing.assert_array_equal(result(provider, body), np.maximum(LANES.astype(int) - 1, 0))


def test_selection_with_phi_of_both_arms_and_nested_if(provider):
    body = """
%low = OpULessThan %bool %lane %u4
OpSelectionMerge %end None
OpBranchConditional %low %then %else
%then = OpLabel
%first = OpIMul %uint %lane %u4
OpBranch %end
%else = OpLabel
%bit = OpBitwiseAnd %uint %lane %u1
%odd = OpINotEqual %bool %bit %u0
OpSelectionMerge %inner None
OpBranchConditional %odd %deep %inner
%deep = OpLabel
OpBranch %inner
%inner = OpLabel
%x = OpPhi %uint %u3 %deep %lane %else
OpBranch %end
%end = OpLabel
%r = OpPhi %uint %first %then %x %inner
""" + sr.store("r", "out", "uint")
    expected = np.where(LANES < 4, LANES * 4, np.where(LANES % 2 == 1, 3, LANES))
    np.testing.assert_array_equal(result(provider, body), expected)


def test_switch_with_shared_and_default_cases_and_break_of_the_loop_around_it(provider):
    body = """
OpBranch %header
%header = OpLabel
%i = OpPhi %uint %u0 %entry %next %latch
%acc = OpPhi %uint %u0 %entry %added %latch
OpLoopMerge %done %latch None
OpBranch %select
%select = OpLabel
%kind = OpUMod %uint %i %u4
OpSelectionMerge %after None
OpSwitch %kind %default 0 %zero 2 %zero 3 %three
%zero = OpLabel
%za = OpIAdd %uint %acc %u1
OpBranch %after
%three = OpLabel
%far = OpUGreaterThan %bool %i %lane
OpBranchConditional %far %done %three_on
%three_on = OpLabel
OpBranch %after
%default = OpLabel
%da = OpIAdd %uint %acc %u4
OpBranch %after
%after = OpLabel
%added = OpPhi %uint %za %zero %acc %three_on %da %default
OpBranch %latch
%latch = OpLabel
%next = OpIAdd %uint %i %u1
OpBranch %header
%done = OpLabel
""" + sr.store("acc", "out", "uint")

    def model(lane):
        i = acc = 0
        while not (i % 4 == 3 and i > lane):
            acc += {0: 1, 2: 1, 1: 4, 3: 0}[i % 4]
            i += 1
        return acc

    np.testing.assert_array_equal(result(provider, body), [model(int(lane)) for lane in LANES])


def test_workgroup_memory_and_barrier_reverse_a_group(provider):
    globals_ = """
%u64 = OpConstant %uint 64
%u63 = OpConstant %uint 63
%shared_array = OpTypeArray %uint %u64
%shared_block = OpTypeStruct %shared_array
%to_shared = OpTypePointer Workgroup %shared_block
%to_shared_uint = OpTypePointer Workgroup %uint
%tile = OpVariable %to_shared Workgroup
"""
    body = """
%put = OpAccessChain %to_shared_uint %tile %u0 %lane
OpStore %put %lane
OpControlBarrier %u2 %u2 %u264
%back = OpISub %uint %u63 %lane
%get = OpAccessChain %to_shared_uint %tile %u0 %back
%r = OpLoad %uint %get
""" + sr.store("r", "out", "uint")
    np.testing.assert_array_equal(result(provider, body, globals_=globals_), LANES[::-1])


def test_value_loaded_before_a_store_keeps_what_was_there(provider):
    body = sr.load("old", "out", "uint") + sr.chain("again", "out", "uint")
    body += "OpStore %again %u4\n%now = OpLoad %uint %again\n%r = OpIAdd %uint %old %now\nOpStore %again %r\n"
    got = result(provider, body, arrays={0: LANES * 10})
    np.testing.assert_array_equal(got, LANES * 10 + 4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("OpAtomicIAdd", 2016), ("OpAtomicUMax", 63), ("OpAtomicOr", 63), ("OpAtomicSMax", 63)],
)
def test_atomics_on_a_buffer_collect_all_lanes(name, expected, provider):
    body = sr.chain("p", "out", "uint", "%u0") + f"%old = {name} %uint %p %u1 %u0 %lane\n"
    assert result(provider, body)[0] == expected


def test_compare_exchange_lets_one_lane_win(provider):
    body = sr.chain("p", "out", "uint", "%u0")
    body += "%old = OpAtomicCompareExchange %uint %p %u1 %u0 %u0 %u4 %u0\n%won = OpIEqual %bool %old %u0\n"
    body += "%q = OpSelect %uint %won %u1 %u0\n" + sr.chain("w", "out", "uint", "%u1")
    body += "%s = OpAtomicIAdd %uint %w %u1 %u0 %q\n"
    assert result(provider, body)[:2].tolist() == [4, 1]


def test_function_calls_with_values_and_pointers(provider):
    functions = """
%to_local = OpTypePointer Function %uint
%binary = OpTypeFunction %uint %uint %to_local
%twice = OpFunction %uint None %binary
%value = OpFunctionParameter %uint
%target = OpFunctionParameter %to_local
%twice_entry = OpLabel
%double = OpIMul %uint %value %u2
OpStore %target %double
OpReturnValue %value
OpFunctionEnd
"""
    body = "%v = OpVariable %to_local Function\n%back = OpFunctionCall %uint %twice %lane %v\n"
    body += "%d = OpLoad %uint %v\n%r = OpIAdd %uint %d %back\n" + sr.store("r", "out", "uint")
    text = sr.kernel({"out": "uint"}, "", functions=functions)
    body_start = text.index("%whole = OpLoad")
    head, rest = text[:body_start], text[body_start:].replace("OpReturn\n", "", 1)
    first, *others = body.split("\n")
    text = (
        head
        + first
        + "\n"
        + rest.split("\nOpFunctionEnd")[0]
        + "\n".join(others)
        + "OpReturn\nOpFunctionEnd\n"
    )
    shader = sr.translate(text)
    np.testing.assert_array_equal(sr.run(provider, shader, {0: np.zeros(64, U)})[0], LANES * 3)


def test_merged_bindings_of_different_elements_share_one_buffer(provider):
    body = sr.load("v", "quads", "v4float") + "%w = OpCompositeInsert %v4float %half %v 1\n"
    body += "%x = OpVectorShuffle %v4float %w %w 3 2 1 0\n" + sr.store("x", "quads", "v4float")
    body += (
        sr.load("word", "words", "uint", "%u64")
        + "%r = OpIAdd %uint %word %lane\n"
        + sr.store("r", "out", "uint")
    )
    globals_ = "%half = OpConstant %float 0.5\n%u64 = OpConstant %uint 64\n"
    text = sr.kernel({"quads": "v4float", "words": "uint", "out": "uint"}, body, globals_=globals_, size=16)
    shader = sr.translate(text, merged=(((0, 0), (0, 1)),))
    assert [binding.merged for binding in shader.bindings] == [((0, 0), (0, 1)), ((0, 2),)]
    data = np.zeros(80, np.float32)
    data[:64] = np.arange(64)
    data.view(U)[64] = 1000
    got = sr.run(provider, shader, {0: data, 2: np.zeros(16, U)})
    expected = data[:64].reshape(16, 4).copy()
    expected[:, 1] = 0.5
    np.testing.assert_array_equal(got[0][:64].reshape(16, 4), expected[:, ::-1])
    np.testing.assert_array_equal(got[2], 1000 + LANES[:16])


def test_push_constants_and_specialization_reach_the_kernel(provider):
    globals_ = """
%spec = OpSpecConstant %uint 5
%spec_sum = OpSpecConstantOp %uint IAdd %spec %u3
%words = OpTypeArray %uint %u4
OpDecorate %words ArrayStride 4
%push_block = OpTypeStruct %words %float
OpDecorate %push_block Block
OpMemberDecorate %push_block 0 Offset 0
OpMemberDecorate %push_block 1 Offset 16
%to_push_block = OpTypePointer PushConstant %push_block
%to_push = OpTypePointer PushConstant %uint
%to_push_float = OpTypePointer PushConstant %float
%push = OpVariable %to_push_block PushConstant
"""
    body = """
%index = OpUMod %uint %lane %u4
%p = OpAccessChain %to_push %push %u0 %index
%dynamic = OpLoad %uint %p
%f = OpAccessChain %to_push_float %push %u1
%number = OpLoad %float %f
%whole_number = OpConvertFToU %uint %number
%sum = OpIAdd %uint %dynamic %whole_number
%r = OpIAdd %uint %sum %spec_sum
""" + sr.store("r", "out", "uint")
    text = sr.kernel({"out": "uint"}, body, globals_=globals_, decorations="OpDecorate %spec SpecId 3\n")
    shader = sr.translate(text, specialization={3: 50})
    assert shader.push_constant_words == 5
    constants = [100, 200, 300, 400, int(np.float32(7.5).view(U))]
    got = sr.run(provider, shader, {0: np.zeros(64, U)}, constants=constants)[0]
    np.testing.assert_array_equal(got, 100 * (1 + LANES % 4) + 7 + 53)


def test_vector_operations_on_bools_and_components(provider):
    body = (
        sr.load("v", "in", "v4uint")
        + """
%c0 = OpULessThan %v4bool %v %fours
%c1 = OpINotEqual %v4bool %v %ones
%both = OpLogicalAnd %v4bool %c0 %c1
%any = OpLogicalOr %v4bool %both %c1
%none = OpLogicalNot %v4bool %both
%s = OpSelect %v4uint %both %v %fours
%t = OpSelect %v4uint %none %ones %s
%d = OpVectorExtractDynamic %uint %t %lane
%e = OpSelect %uint %flag %d %u0
""".replace("%flag", "%isany")
        + sr.store("e", "out", "uint")
    )
    body = body.replace("%d = Op", "%isany = OpAny %bool %any\n%d = Op")
    globals_ = "%fours = OpConstantComposite %v4uint %u4 %u4 %u4 %u4\n%ones = OpConstantComposite %v4uint %u1 %u1 %u1 %u1\n"
    body = body.replace(
        "%at_v = OpAccessChain %to_v4uint %in %u0 %lane", "%at_v = OpAccessChain %to_v4uint %in %u0 %u0"
    )
    shader = sr.translate(sr.kernel({"in": "v4uint", "out": "uint"}, body, globals_=globals_, size=4))
    got = sr.run(provider, shader, {0: np.array([0, 1, 3, 9], U), 1: np.zeros(4, U)})[1]
    assert got.tolist() == [0, 1, 3, 1]


SUBGROUPS = {
    "OpGroupNonUniformIAdd %uint %u3 Reduce %lane": lambda lanes: np.full(len(lanes), lanes.sum()),
    "OpGroupNonUniformIAdd %uint %u3 ExclusiveScan %lane": lambda lanes: np.cumsum(lanes) - lanes,
    "OpGroupNonUniformUMax %uint %u3 Reduce %lane": lambda lanes: np.full(len(lanes), lanes.max()),
    "OpGroupNonUniformSMin %uint %u3 Reduce %lane": lambda lanes: np.full(len(lanes), lanes.min()),
    "OpGroupNonUniformShuffleXor %uint %u3 %lane %u1": lambda lanes: lanes ^ 1,
    "OpGroupNonUniformBroadcastFirst %uint %u3 %lane": lambda lanes: np.full(len(lanes), lanes[0]),
}


@pytest.mark.parametrize("operation", SUBGROUPS)
def test_subgroup_operations_where_the_device_has_them(operation):
    gpu = sr.device("dawn")
    if "subgroups" not in gpu.features:
        pytest.skip("the adapter has no subgroups")
    info = gpu.adapter.info
    size = int(info.get("subgroup_min_size", 0) or 4)
    body = f"%r = {operation}\n" + sr.store("r", "out", "uint")
    text = sr.kernel({"out": "uint"}, body, size=size)
    with pytest.raises(errors.UnsupportedFeatureError, match="subgroups"):
        sr.translate(text)
    shader = sr.translate(text, features=frozenset({"subgroups"}))
    got = sr.run("dawn", shader, {0: np.zeros(size, U)})[0]
    np.testing.assert_array_equal(got, SUBGROUPS[operation](LANES[:size]))


@pytest.mark.parametrize(
    ("globals_", "body", "names"),
    [
        (
            "%long = OpTypeInt 64 0\n%l = OpConstant %long 5\n",
            "%r = OpIAdd %long %l %l\nOpStore %whole %r\n",
            "OpTypeInt",
        ),
        (
            "",
            "%r = OpBitcast %v2uint %lane\n" + sr.store("lane", "out", "uint").replace("%lane\n", "%r\n"),
            "OpBitcast",
        ),
        ("", "OpMemoryBarrier %u1 %u0\n", "OpMemoryBarrier"),
        (
            "%half = OpTypeFloat 16\n",
            "%r = OpConvertUToF %half %lane\n%s = OpFAdd %half %r %r\n",
            "OpTypeFloat",
        ),
    ],
)
def test_what_wgsl_lacks_is_refused_by_name_and_offset(globals_, body, names):
    with pytest.raises(errors.UnsupportedFeatureError, match=names) as caught:
        sr.translate(sr.kernel({"out": "uint"}, body, globals_=globals_))
    assert caught.value.offset > 5


def test_entry_point_that_is_not_there_is_named():
    module = spirv.read(spirv.assemble(sr.kernel({"out": "uint"}, "")))
    with pytest.raises(errors.NotFoundError, match="no entry point other"):
        wgsl.translate(module, "other")


def test_binding_in_two_groups_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="two merged groups"):
        sr.translate(sr.kernel({"out": "uint"}, ""), merged=(((0, 0), (0, 1)), ((0, 0), (0, 2))))
