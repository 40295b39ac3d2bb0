"""Pointers: where an access chain leads, loading from there and storing there."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..errors import FormatError
from ..spirv import Instruction
from .resources import Buffer, Variable
from .shader_scope import UNIFORM, word_text
from .types import Type, scalar_type
from .usage import root_of
from .values import Value

if TYPE_CHECKING:
    from .function import FunctionWriter

__all__ = ["Place", "load", "resolve", "store"]

BUILTINS = {
    "LocalInvocationId": ("local_invocation_id", "vec3<u32>"),
    "LocalInvocationIndex": ("local_invocation_index", "u32"),
    "WorkgroupId": ("workgroup_id", "vec3<u32>"),
    "SubgroupSize": ("subgroup_size", "u32"),
    "SubgroupLocalInvocationId": ("subgroup_invocation_id", "u32"),
}
"""Inputs that are parameters of the entry point: WGSL's name and type."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a pointer points.

    Args:
        text: WGSL that names it; the scalar index in case of a split buffer; the word in a uniform.
        type: of what is there.
        storage: its storage class.
        buffer: the split buffer it is in, when it is in one.
        is_atomic: whether it is declared atomic, as ``atomic_type``.
        push_offset: byte offset in push constants; ``text`` then has what is to be added, or nothing.
        is_value: whether ``text`` is an expression that cannot be stored to.
    """

    text: str
    type: Type
    storage: str
    buffer: Buffer | None = None
    is_atomic: bool = False
    atomic_type: Type | None = None
    push_offset: int | None = None
    is_value: bool = False


def resolve(writer: FunctionWriter, pointer: int, user: Instruction) -> Place:
    """Where a pointer leads.

    Raises:
        UnsupportedFeatureError: to pointers that are values (variable pointers).
    """
    root, chains = root_of(writer.module, pointer, user)
    indices = [number for chain in chains for number in chain.numbers(1)]
    parameter = writer.pointers.get(root)
    if parameter is not None:
        return _walk(writer, parameter, indices, user)
    variable = writer.scope.resources.variables.get(root)
    if variable is None:
        definition = writer.module.definition(root, user)
        raise writer.scope.refuse(user, f"a pointer from {definition.name} %{root}")
    if variable.buffer is not None:
        return _in_buffer(writer, variable, variable.buffer, indices, user)
    if variable.storage == "PushConstant":
        return _in_push_constants(writer, variable, indices, user)
    if variable.storage == "Input":
        value = builtin(writer, variable, user)
        start = Place(value.operand, variable.type, "Input", is_value=True)
        return _walk(writer, start, indices, user)
    start = Place(variable.name, variable.type, variable.storage)
    if variable.is_bare:
        start = dataclasses.replace(start, type=variable.type.members[0])
        _member(writer, indices[:1], user)
        if not indices:
            raise writer.scope.refuse(user, f"the whole of struct {variable.name} as a value")
        indices = indices[1:]
    if variable.is_atomic:
        element = writer.scope.resources.plain_element(variable)
        start = dataclasses.replace(start, is_atomic=True, atomic_type=element)
    return _walk(writer, start, indices, user)


def _member(writer: FunctionWriter, indices: list[int], user: Instruction) -> int:
    number = writer.scope.constants.number(indices[0]) if indices else 0
    if number is None:
        message = f"{user.name}: the index of a struct's member is not constant"
        raise FormatError(message, offset=user.offset, where=writer.module.where)
    return number


def _walk(writer: FunctionWriter, place: Place, indices: list[int], user: Instruction) -> Place:
    text, type = place.text, place.type
    for index in indices:
        text, type = step(writer, text, type, index, user)
    return dataclasses.replace(place, text=text, type=type)


def step(writer: FunctionWriter, text: str, type: Type, index: int, user: Instruction) -> tuple[str, Type]:
    """One index of an access chain: the text and type of what it selects."""
    number = writer.scope.constants.number(index)
    if number is not None:
        return constant_step(writer, text, type, number, user)
    if type.kind not in ("vector", "array", "runtime_array", "matrix"):
        message = f"{user.name}: a dynamic index of {type.wgsl or type.kind}"
        raise FormatError(message, offset=user.offset, where=writer.module.where)
    return f"{text}[{writer.index(index, user)}]", type.inner


def constant_step(
    writer: FunctionWriter, text: str, type: Type, number: int, user: Instruction
) -> tuple[str, Type]:
    """One index that is a known number."""
    if type.kind == "struct":
        if number < len(type.members):
            return f"{text}.{writer.scope.member_name(type, number)}", type.members[number]
    elif type.kind == "vector":
        if number < type.count:
            return f"{text}.{'xyzw'[number]}", type.inner
    elif type.kind == "runtime_array" or (type.kind in ("array", "matrix") and number < type.count):
        return f"{text}[{number}]", type.inner
    message = f"{user.name}: index {number} of {type.wgsl or type.kind}"
    raise FormatError(message, offset=user.offset, where=writer.module.where)


def builtin(writer: FunctionWriter, variable: Variable, user: Instruction) -> Value:
    """The value of an input."""
    scope = writer.scope
    name = variable.builtin
    vector = "vec3<u32>"
    if name == "WorkgroupSize":
        x, y, z = scope.workgroup_size
        return Value(f"{vector}({x}u, {y}u, {z}u)", variable.type, True)
    if name == "NumWorkgroups":
        words = ", ".join(scope.grid(3 + axis) for axis in range(3))
        return Value(f"{vector}({words})", variable.type, True)
    if name == "GlobalInvocationId":
        x, y, z = scope.workgroup_size
        group = _builtin_text(writer, "WorkgroupId")
        local = _builtin_text(writer, "LocalInvocationId")
        return Value(f"{group} * {vector}({x}u, {y}u, {z}u) + {local}", variable.type)
    if name not in BUILTINS:
        raise scope.refuse(variable.instruction, f"the built-in input {name}")
    if name.startswith("Subgroup"):
        scope.need_subgroups(variable.instruction)
    text = _builtin_text(writer, name)
    wgsl = BUILTINS[name][1]
    if variable.type.wgsl != wgsl:
        return Value(f"{variable.type.wgsl}({text})", variable.type, True)
    return Value(text, variable.type, True)


def _builtin_text(writer: FunctionWriter, name: str) -> str:
    scope = writer.scope
    scope.builtins[name] = None
    wgsl = BUILTINS[name][0]
    if name == "WorkgroupId":
        scope.grid(0)
        wgsl = "workgroup"
    if writer.is_entry:
        return wgsl
    scope.private_builtins[name] = None
    return f"private_{wgsl}"


def _in_buffer(
    writer: FunctionWriter, variable: Variable, buffer: Buffer, indices: list[int], user: Instruction
) -> Place:
    storage = "StorageBuffer"
    if not buffer.is_array:
        return _walk(writer, Place(buffer.name, variable.type, storage), indices, user)
    element = variable.type.members[0].inner
    if len(indices) < 2:
        raise writer.scope.refuse(user, f"the whole of buffer {buffer.name} as a value")
    _member(writer, indices[:1], user)
    index, rest = indices[1], indices[2:]
    if not buffer.is_split:
        text = f"{buffer.name}[{writer.index(index, user)}]"
        start = Place(text, element, storage, is_atomic=buffer.is_atomic, atomic_type=buffer.element)
        return _walk(writer, start, rest, user)
    stride = writer.scope.resources.array_stride(variable.type.members[0]) // 4
    if element.scalar == "f16":
        stride = element.lanes if element.lanes != 3 else 4
    text = _scaled(writer, index, stride, user)
    if rest:
        lane = writer.scope.constants.number(rest[0])
        added = f"{lane}u" if lane is not None else f"u32({writer.index(rest[0], user)})"
        if lane != 0:
            text = added if text == "0u" else f"{text} + {added}"
        element = element.inner
    return Place(text, element, storage, buffer, buffer.is_atomic, buffer.element)


def _scaled(writer: FunctionWriter, index: int, stride: int, user: Instruction) -> str:
    number = writer.scope.constants.number(index)
    if number is not None:
        return f"{number * stride}u"
    value = writer.cast(writer.value(index, user), "u32")
    return value.text if stride == 1 else f"{value.operand} * {stride}u"


def _in_push_constants(
    writer: FunctionWriter, variable: Variable, indices: list[int], user: Instruction
) -> Place:
    resources = writer.scope.resources
    offset, type = 0, variable.type
    added = ""
    for index in indices:
        number = writer.scope.constants.number(index)
        if type.kind == "struct":
            member = _member(writer, [index], user)
            _, inner = constant_step(writer, "", type, member, user)
            offset += resources.member_offset(type, member)
            type = inner
            continue
        stride = resources.array_stride(type) if type.kind == "array" else 4
        if number is not None:
            _, type = constant_step(writer, "", type, number, user)
            offset += number * stride
        else:
            value = writer.cast(writer.value(index, user), "u32").operand
            part = value if stride == 4 else f"{value} * {stride // 4}u"
            added = f"{added} + {part}" if added else part
            type = type.inner
    return Place(added, type, "PushConstant", push_offset=offset, is_value=True)


def _push_load(writer: FunctionWriter, place: Place, type: Type, offset: int, user: Instruction) -> str:
    resources = writer.scope.resources
    if type.kind == "struct":
        parts = [
            _push_load(writer, place, member, offset + resources.member_offset(type, index), user)
            for index, member in enumerate(type.members)
        ]
        return f"{type.wgsl}({', '.join(parts)})"
    if type.kind == "array":
        stride = resources.array_stride(type)
        parts = [
            _push_load(writer, place, type.inner, offset + stride * index, user)
            for index in range(type.count)
        ]
        return f"{type.wgsl}({', '.join(parts)})"
    if type.kind == "vector":
        parts = [
            _push_load(writer, place, type.inner, offset + 4 * index, user) for index in range(type.count)
        ]
        return f"{type.wgsl}({', '.join(parts)})"
    if offset % 4 or type.scalar not in ("u32", "i32", "f32"):
        raise writer.scope.refuse(user, f"{type.wgsl or type.kind} at byte {offset} of push constants")
    if place.text:
        at = writer.named(
            Value(f"{place.text} + {offset // 4}u" if offset else place.text, scalar_type("u32"))
        )
        word = f"{UNIFORM}[{at.operand} / 4u][{at.operand} % 4u]"
    else:
        word = word_text(offset // 4)
    return word if type.kind == "u32" else f"bitcast<{type.wgsl}>({word})"


def load(writer: FunctionWriter, place: Place, user: Instruction) -> Value:
    """What is at a place."""
    type = place.type
    if place.storage == "PushConstant":
        text = _push_load(writer, place, type, place.push_offset or 0, user)
        return Value(text, type, True)
    if place.storage == "Input":
        return Value(place.text, type, True)
    if place.buffer is not None:
        return _load_split(writer, place, place.buffer)
    if type.kind == "runtime_array":
        raise writer.scope.refuse(user, "an array of unknown length as a value")
    if place.is_atomic and place.atomic_type is not None:
        if type.lanes != 1:
            raise writer.scope.refuse(user, f"{type.wgsl} of atomic elements as a value")
        loaded = Value(f"atomicLoad(&{place.text})", place.atomic_type, True, reads_memory=True)
        return writer.cast(loaded, type.kind)
    return Value(place.text, type, True, reads_memory=True)


def _load_split(writer: FunctionWriter, place: Place, buffer: Buffer) -> Value:
    type = place.type
    texts = []
    for index in _lane_indices(writer, place):
        text = f"{buffer.name}[{index}]"
        if buffer.is_atomic:
            text = f"atomicLoad(&{text})"
        if type.scalar != buffer.element.kind:
            text = f"bitcast<{type.scalar}>({text})"
        texts.append(text)
    text = texts[0] if type.lanes == 1 else f"{type.wgsl}({', '.join(texts)})"
    return Value(text, type, True, reads_memory=True)


def _lane_indices(writer: FunctionWriter, place: Place) -> list[str]:
    if place.type.lanes == 1:
        return [place.text]
    if place.text.endswith("u") and place.text[:-1].isdigit():
        return [f"{int(place.text[:-1]) + lane}u" for lane in range(place.type.lanes)]
    at = writer.named(Value(place.text, scalar_type("u32")))
    return [at.text if lane == 0 else f"{at.text} + {lane}u" for lane in range(place.type.lanes)]


def store(writer: FunctionWriter, place: Place, value: Value, user: Instruction) -> None:
    """Write a value to a place."""
    if place.is_value:
        message = f"{user.name}: a store to {place.storage}"
        raise FormatError(message, offset=user.offset, where=writer.module.where)
    if place.buffer is not None:
        _store_split(writer, place, place.buffer, value)
    elif place.is_atomic and place.atomic_type is not None:
        if place.type.lanes != 1:
            raise writer.scope.refuse(user, f"a store of {place.type.wgsl} to atomic elements")
        word = writer.cast(value, place.atomic_type.kind).text
        writer.statement(f"atomicStore(&{place.text}, {word});")
    else:
        writer.statement(f"{place.text} = {value.text};")


def _store_split(writer: FunctionWriter, place: Place, buffer: Buffer, value: Value) -> None:
    type = place.type
    if type.lanes > 1:
        value = writer.named(value)
    for lane, index in enumerate(_lane_indices(writer, place)):
        text = value.text if type.lanes == 1 else f"{value.operand}.{'xyzw'[lane]}"
        if type.scalar != buffer.element.kind:
            text = f"bitcast<{buffer.element.kind}>({text})"
        if buffer.is_atomic:
            writer.statement(f"atomicStore(&{buffer.name}[{index}], {text});")
        else:
            writer.statement(f"{buffer.name}[{index}] = {text};")
