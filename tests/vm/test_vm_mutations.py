"""Damaged bytecode: refused when it is opened, or run within the limits with typed errors only."""

from __future__ import annotations

import random

import machine_texts
import pytest
from machine_programs import FLATBUFFER, compile_vm, module_text

from sylvite import vmfb
from sylvite.engines.base import Limits
from sylvite.errors import FormatError, GuestError, InternalError, OutOfMemoryError, SylviteError
from sylvite.vm import BytecodeModule, Context
from sylvite.vmfb.bytecode import decode_function
from sylvite.vmfb.isa import OPERATIONS, ValueType

LIMITS = Limits(deadline_ns=30_000_000, memory_bytes=1 << 22)


@pytest.fixture(scope="module")
def plain_archive(vm_folder):
    parts = (
        machine_texts.GLOBALS,
        machine_texts.CONSTANTS,
        machine_texts.BUFFERS,
        machine_texts.LISTS,
        machine_texts.CONTROL,
    )
    path = compile_vm(module_text("mixed", *parts), vm_folder / "plain.vmfb", FLATBUFFER)
    return path.read_bytes()


def damage(data: bytes, choose: random.Random) -> bytes:
    """Change the bytecode in one to three places, mostly so that much of it can still be decoded."""
    module = vmfb.open_archive(data).module
    changed = bytearray(data)
    for _ in range(choose.randrange(1, 4)):
        function = choose.choice(module.functions)
        start = module.bytecode_file_offset + function.bytecode_offset
        place = start + choose.randrange(function.bytecode_length)
        kind = choose.randrange(6)
        if kind == 0:
            changed[place] ^= 1 << choose.randrange(8)
        elif kind == 1:
            changed[place] = choose.randrange(8)
        elif kind == 2:
            other = start + choose.randrange(function.bytecode_length)
            changed[place : place + 2] = changed[other : other + 2]
        else:
            change_operation(changed, start, choose.choice(instructions_of(module, function)), choose)
    return bytes(changed)


def instructions_of(module, function):
    blocks = decode_function(module, function.ordinal).blocks
    return [instruction for block in blocks for instruction in block.instructions]


def change_operation(changed: bytearray, start: int, instruction, choose: random.Random) -> None:
    """Turn an instruction into another one with the same encoding, types and opcode set."""
    op = instruction.op
    shape = (op.encoding, op.types, op.feature)
    alike = [other.opcode for other in OPERATIONS if (other.encoding, other.types, other.feature) == shape]
    changed[start + instruction.pc + (1 if op.feature else 0)] = choose.choice(alike)


def run_everything(module: BytecodeModule, choose: random.Random) -> list[SylviteError]:
    """Call every export with arguments of the right types; return what they raised."""
    errors = []
    with Context([module], limits=LIMITS) as context:
        for name in context.function_names(module.name):
            handle = context.lookup(f"{module.name}.{name}")
            arguments = [
                None if kind is ValueType.REF else choose.choice((0, 1, 2, 7, -1, 2**31 - 1))
                for kind in handle.signature.arguments
            ]
            try:
                handle(*arguments)
            except (GuestError, OutOfMemoryError, InternalError) as error:
                errors.append(error)
    return errors


def check(data: bytes, seeds: range) -> tuple[int, int]:
    """Returns how many were refused and how many ran. Anything untyped propagates."""
    refused = ran = 0
    for seed in seeds:
        choose = random.Random(seed)
        damaged = damage(data, choose)
        try:
            module = BytecodeModule.open(damaged)
        except FormatError:
            refused += 1
            continue
        try:
            errors = run_everything(module, choose)
        except (GuestError, OutOfMemoryError):
            errors = []  # the initializer failed
        assert not [error for error in errors if isinstance(error, InternalError)], seed
        ran += 1
    return refused, ran


def test_damaged_bytecode_is_refused_or_stays_within_bounds(plain_archive):
    refused, ran = check(plain_archive, range(60))
    assert refused > 5
    assert ran > 10


@pytest.mark.slow
def test_much_damaged_bytecode_is_refused_or_stays_within_bounds(plain_archive):
    refused, ran = check(plain_archive, range(1000, 2000))
    assert refused > 100
    assert ran > 200
