"""Checks of the stack's end: behind every move of the stack pointer, and nowhere else."""

from __future__ import annotations

import pytest

from sylvite import engines, wasm
from sylvite.errors import TrapError
from sylvite.linker import LinkSpace
from sylvite.wasm import ModuleBuilder, ValueType
from sylvite.wasm.stack_check import STACK_LOW, check_stack

I32 = ValueType.I32


def stack_user(*, has_low=False, has_other=False, defines_global=False):
    """``take(bytes)`` moves the stack pointer down and up again; ``touch()`` uses another global."""
    builder = ModuleBuilder("stack user")
    other = builder.import_global("env", "other", I32, mutable=True) if has_other else None
    pointer = builder.import_global("env", "__stack_pointer", I32, mutable=True)
    if has_low:
        builder.import_global("env", "__stack_low", I32)
    if defines_global:
        builder.add_global(I32, 7, mutable=True)
    take = builder.function("take", [I32], [I32], export=True)
    saved = take.local(I32)
    take.emit("global.get", pointer).tee(saved).get(0).emit("i32.sub").emit("global.set", pointer)
    take.emit("global.get", pointer)
    take.get(saved).emit("global.set", pointer)
    touch = builder.function("touch", [], [I32], export=True)
    if other is not None:
        touch.i32(-1).emit("global.set", other)
    touch.i32(5)
    return wasm.decode(builder.build(), where="stack user")


def names(module):
    return [[item.name for item in body.instructions()] for body in module.code]


@pytest.mark.parametrize("has_low", [False, True])
def test_check_follows_every_move_of_the_stack_pointer(has_low):
    module = stack_user(has_low=has_low, has_other=True)
    checked = check_stack(module)
    wasm.validate(checked)
    assert wasm.validate(wasm.decode(wasm.encode(checked), where="checked")) is None
    take, touch = names(checked)
    assert take.count("unreachable") == 2
    assert touch == names(module)[1]
    keys = [(item.module, item.name) for item in checked.imports]
    assert keys.count(STACK_LOW) == 1


def test_modules_that_leave_the_stack_pointer_alone_stay_as_they_are():
    builder = ModuleBuilder("plain")
    pointer = builder.import_global("env", "__stack_pointer", I32, mutable=True)
    builder.function("get", [], [I32], export=True).emit("global.get", pointer)
    module = wasm.decode(builder.build(), where="plain")
    assert check_stack(module) is module
    defining = stack_user(defines_global=True)
    assert check_stack(defining) is defining


def test_stack_that_ends_above_others_traps_at_its_end():
    with LinkSpace(engines.create("wasmtime"), replicas=1, stack_bytes=1 << 16) as space:
        data = wasm.encode(stack_user())
        instance = space.instantiate(space.compile(data, name="stack user"))
        (replica,) = space.replicas
        take = replica.function(instance.exports["take"])
        stack = replica.stack
        assert stack.address > space.stack.address
        assert take(stack.byte_length) == stack.address
        with pytest.raises(TrapError) as caught:
            take(stack.byte_length + 1)
        explained = stack.explained(caught.value)
        assert "pass a larger stack_bytes" in explained.message
        assert explained.code == caught.value.code
        stack.pointer.value = stack.top
        assert stack.explained(caught.value) is caught.value
