"""Reading, printing and assembling; malformed modules and executables give typed errors with an offset."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wgsl import shader_runner as sr

from sylvite import errors, spirv, wgsl

TEXT = sr.kernel({"out": "uint"}, sr.store("lane", "out", "uint"))
BINARY = spirv.assemble(TEXT)
HEADER = struct.pack("<5I", 0x07230203, 0x00010300, 0, 100, 0)


def words(*values):
    return HEADER + struct.pack(f"<{len(values)}I", *values)


def test_read_gives_entry_points_names_and_decorations():
    module = spirv.read(BINARY)
    assert module.version == (1, 3)
    assert module.capabilities == ("Shader",)
    (entry,) = module.entry_points
    assert (entry.model, entry.name) == ("GLCompute", "kernel")
    assert module.execution_modes[entry.function] == (("LocalSize", (64, 1, 1)),)
    slots = [found for found in module.decorations.values() if "Binding" in found]
    assert slots == [{"DescriptorSet": (0,), "Binding": (0,)}]
    assert [len(function.blocks) for function in module.functions.values()] == [1]


def test_read_of_the_other_byte_order_gives_the_same():
    count = len(BINARY) // 4
    swapped = struct.pack(f">{count}I", *struct.unpack(f"<{count}I", BINARY))
    assert spirv.read(swapped).instructions == spirv.read(BINARY).instructions


def test_disassembled_text_assembles_to_the_same_words():
    module = spirv.read(BINARY)
    assert spirv.assemble(spirv.disassemble(module), version=module.version)[20:] == BINARY[20:]


def test_text_and_odd_constants_survive_printing():
    text = """
OpCapability Shader
OpMemoryModel Logical GLSL450
OpName %f "quote \\" and back\\\\slash"
%f = OpTypeFloat 32
%a = OpConstant %f !0x7fc00000
%b = OpConstant %f 0.1
%i = OpTypeInt 64 1
%c = OpConstant %i 1234567890123
"""
    module = spirv.read(spirv.assemble(text))
    assert list(module.names.values()) == ['quote " and back\\slash']
    again = spirv.read(spirv.assemble(spirv.disassemble(module)))
    assert again.instructions == module.instructions


@pytest.mark.parametrize(
    ("data", "offset", "message"),
    [
        (b"", 0, "header"),
        (HEADER[:-1], 4, "whole words"),
        (b"\0" * 20, 0, "magic"),
        (HEADER[:16] + b"\1\0\0\0", 4, "schema"),
        (words(0), 5, "0 words"),
        (words(9 << 16 | 17), 5, "beyond the module"),
        (words(1 << 16 | 17), 5, "OpCapability"),
        (words(3 << 16 | 17, 1, 1), 5, "left after"),
        (words(2 << 16 | 19, 0), 5, "id 0"),
        (words(2 << 16 | 19, 100), 5, "bound 100"),
        (words(2 << 16 | 19, 1, 2 << 16 | 20, 1), 7, "again"),
        (words(3 << 16 | 5, 1, 0x61616161), 5, "OpName"),
        (words(3 << 16 | 5, 1, 0x000000FF), 5, "UTF-8"),
        (words(1 << 16 | 253), 5, "outside of a function"),
        (words(4 << 16 | 43, 1, 2, 3), 5, "not a number"),
    ],
)
def test_malformed_modules_are_refused_at_their_word(data, offset, message):
    with pytest.raises(errors.FormatError, match=message) as caught:
        spirv.read(data)
    assert caught.value.offset == offset


def test_unknown_opcode_and_version_are_told_apart_from_malformed():
    with pytest.raises(errors.UnsupportedFeatureError, match="opcode 65535"):
        spirv.read(words(1 << 16 | 0xFFFF))
    with pytest.raises(errors.UnsupportedVersionError):
        spirv.read(struct.pack("<5I", 0x07230203, 0x00020000, 0, 1, 0))


@pytest.mark.parametrize(
    "line", ["OpNothing", "%1 OpNop", "OpTypeVoid", "OpName %a", "%a = OpTypeInt x 0", "OpNop 3"]
)
def test_assembly_errors_name_the_line(line):
    with pytest.raises(errors.FormatError) as caught:
        spirv.assemble("OpCapability Shader\n" + line)
    assert caught.value.offset == 2


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(20, len(BINARY) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_modules_translate_or_fail_with_a_typed_error(changes):
    data = bytearray(BINARY)
    for place, value in changes:
        data[place] = value
    try:
        module = spirv.read(bytes(data))
        wgsl.translate(module, "kernel")
    except errors.InternalError:
        raise
    except errors.SylviteError:
        pass


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_executables_of_any_bytes_are_refused_with_a_typed_error(data):
    for content in (data, struct.pack("<4sIQ48x", b"VKE1", 0, len(data)) + data):
        with pytest.raises(errors.FormatError):
            spirv.read_executable(content)


def test_operations_of_constants_do_not_nest():
    count = 20_000
    data = words(4 << 16 | 21, 1, 32, 0, (3 + count) << 16 | 52, 1, 2, *[52] * count)
    with pytest.raises(errors.FormatError, match="operation 52") as caught:
        spirv.read(data)
    assert caught.value.offset == 9


def test_deep_nesting_and_long_bodies_are_no_recursion_errors():
    lines = "".join(
        f"OpSelectionMerge %m{i} None\nOpBranchConditional %yes %t{i} %m{i}\n%t{i} = OpLabel\n"
        for i in range(3000)
    )
    lines += "".join(f"OpBranch %m{i}\n%m{i} = OpLabel\n" for i in reversed(range(3000)))
    body = "%yes = OpULessThan %bool %lane %u4\n" + lines
    with pytest.raises(errors.UnsupportedFeatureError, match="deep"):
        sr.translate(sr.kernel({"out": "uint"}, body))
    body = "%x0 = OpIAdd %uint %lane %u1\n"
    body += "".join(f"%x{i} = OpIAdd %uint %x{i - 1} %u1\n" for i in range(1, 5000))
    shader = sr.translate(sr.kernel({"out": "uint"}, body + sr.store("x4999", "out", "uint")))
    assert max(len(line) for line in shader.source.splitlines()) < 400
