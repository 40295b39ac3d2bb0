"""Every operation on values, against iree.runtime on edge values."""

from __future__ import annotations

import itertools
import math
import random
import struct

import pytest
from machine_programs import UNCOMPILABLE, VALUES, Outcome, f64_bits, value_programs

from sylvite.errors import ProgramError, StatusCode

PROGRAMS = {program.op.name: program for program in value_programs()}
COMPILABLE = [name for name in PROGRAMS if name not in UNCOMPILABLE]

LAST_BITS = {"f32": 1, "f64": 1}
INEXACT = (
    "atan",
    "atan2",
    "cos",
    "sin",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "pow",
    "tanh",
    "erf",
)
"""Functions whose last bit depends on the C library; IREE calls its own for f32."""

MAXIMUM_CALLS = 700


def inputs_of(program) -> list[tuple[int, ...]]:
    combinations = list(itertools.product(*(VALUES[kind] for kind in program.types)))
    if len(combinations) > MAXIMUM_CALLS:
        combinations = random.Random(program.op.name).sample(combinations, MAXIMUM_CALLS)
    if program.op.name.startswith(("div.i", "rem.i")):
        least = {"i32": -(2**31), "i64": -(2**63)}[program.types[0]]
        # These end the judge's process.
        combinations = [pair for pair in combinations if pair[1] and pair != (least, -1)]
    return combinations


def decode(bits: int, kind: str) -> float | int:
    if kind == "f32":
        return struct.unpack("<f", struct.pack("<i", bits))[0]
    if kind == "f64":
        return struct.unpack("<d", struct.pack("<q", bits))[0]
    return bits


def agree(expected: Outcome, found: Outcome, program) -> bool:
    if expected == found:
        return True
    if program.result not in LAST_BITS or not expected.values or not found.values:
        return False
    values = decode(expected.values[0], program.result), decode(found.values[0], program.result)
    if math.isnan(values[0]):
        return math.isnan(values[1])
    if program.op.name.split(".")[0] not in INEXACT:
        return False
    return abs(expected.values[0] - found.values[0]) <= LAST_BITS[program.result]


@pytest.mark.parametrize("name", COMPILABLE)
def test_value_operation_on_edge_values_agrees_with_iree(name, value_module):
    program = PROGRAMS[name]
    wrong = []
    for arguments in inputs_of(program):
        expected = value_module.judge(program.function, arguments)
        found = value_module.subject(program.function, arguments)
        if not agree(expected, found, program):
            shown = [decode(bits, kind) for bits, kind in zip(arguments, program.types, strict=True)]
            results = [
                decode(outcome.values[0], program.result) if outcome.values else outcome.status
                for outcome in (expected, found)
            ]
            wrong.append((arguments, shown, results))
    assert not wrong, f"{len(wrong)} differ: (arguments, decoded, [expected, found]) {wrong[:6]}"


@pytest.mark.parametrize("name", UNCOMPILABLE)
def test_cast_without_dialect_operation_agrees_with_iree(name, cast_modules):
    pair, function = cast_modules[name]
    program = PROGRAMS[name]
    wrong = []
    for (bits,) in inputs_of(program):
        expected, found = pair.judge(function, (bits,)), pair.subject(function, (bits,))
        if expected != found:
            wrong.append((decode(bits, program.types[0]), expected, found))
    assert not wrong, wrong[:6]


@pytest.mark.parametrize("kind", ["i32", "i64"])
@pytest.mark.parametrize("operation", ["div", "rem"])
@pytest.mark.parametrize("sign", ["s", "u"])
def test_integer_division_by_zero_raises_program_error(operation, kind, sign, value_module):
    function = f"values.op_{operation}_{kind}_{sign}"
    with pytest.raises(ProgramError, match="division by zero") as caught:
        value_module.subject.context.invoke(function, 5, 0)
    assert caught.value.status is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(("kind", "least"), [("i32", -(2**31)), ("i64", -(2**63))])
def test_least_integer_by_minus_one_wraps_around(kind, least, value_module):
    invoke = value_module.subject.context.invoke
    assert invoke(f"values.op_div_{kind}_s", least, -1) == least
    assert invoke(f"values.op_rem_{kind}_s", least, -1) == 0


def test_unsigned_arguments_are_accepted_and_made_signed(value_module):
    invoke = value_module.subject.context.invoke
    assert invoke("values.op_add_i32", 2**32 - 1, 0) == -1
    assert invoke("values.op_add_i64", 2**64 - 1, 0) == -1


def test_signalling_nan_bits_become_quiet(value_module):
    invoke = value_module.subject.context.invoke
    assert invoke("values.op_abs_f64", f64_bits(-2.0)[0]) == f64_bits(2.0)[0]
    assert invoke("values.op_abs_f32", 0x7F800001) == 0x7FC00001
