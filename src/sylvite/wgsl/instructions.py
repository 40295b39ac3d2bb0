"""Writing single instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..spirv import Instruction
from ..spirv.grammar import extended_instructions
from . import places
from .extended import EXTENDED, EXTENDED_HELPERS
from .operations import BINARY, COMPARISONS, CONVERSIONS, FUNCTIONS, UNARY, Function
from .phrases import argument, finish, mismatch, named_result, operands, seen
from .places import BUILTINS, constant_step
from .synchronization import SYNCHRONIZATION
from .types import scalar_type
from .values import Value, integer_literal, zero

if TYPE_CHECKING:
    from .function import FunctionWriter

__all__ = ["BUILTINS", "supported", "write"]

SKIPPED: Final = frozenset({"OpNop", "OpUndef", "OpName", "OpLine", "OpNoLine", "OpAccessChain",
                            "OpInBoundsAccessChain"})  # fmt: skip


def write(writer: FunctionWriter, instruction: Instruction) -> None:
    """Write an instruction of a block.

    Raises:
        UnsupportedFeatureError: WGSL cannot express it; names opcode and word offset.
        FormatError: its operands do not fit it.
    """
    name = instruction.name
    if name in SKIPPED:
        return
    handler = _HANDLERS.get(name)
    if handler is None:
        raise writer.scope.refuse(instruction, "the opcode is not supported")
    handler(writer, instruction)


def supported() -> tuple[str, ...]:
    """Names of the opcodes that functions may hold, control flow aside."""
    return tuple(sorted({*_HANDLERS, *SKIPPED}))


def _runtime(writer: FunctionWriter, parts: list[Value]) -> list[Value]:
    """Operands of which at least one is not constant: WGSL refuses constant expressions that go wrong."""
    if parts and all(part.is_constant for part in parts):
        return [writer.opaque(parts[0]), *parts[1:]]
    return parts


def _binary(writer: FunctionWriter, instruction: Instruction) -> None:
    row = BINARY[instruction.name]
    result = writer.type_of(instruction)
    a, b = (seen(writer, part, row.domain, result) for part in operands(writer, instruction))
    if row.guards == "divide" and b.is_constant:
        b = b if _divides(writer, instruction.number(1)) else writer.opaque(b)
    if row.guards == "shift":
        b = writer.cast(b, "u32")
        number = writer.scope.constants.number(instruction.number(1))
        if number is not None:
            b = integer_literal("u32", number & 31)
        elif b.is_constant:
            b = writer.opaque(b)
    elif row.domain != "-" and a.type.wgsl != b.type.wgsl:
        raise mismatch(writer, instruction, f"operands of {a.type.wgsl} and {b.type.wgsl}")
    a, b = _runtime(writer, [a, b])
    type = a.type if row.domain != "-" else result
    finish(writer, instruction, f"{a.operand} {row.operator} {b.operand}", [a, b], type, False)


def _divides(writer: FunctionWriter, identifier: int) -> bool:
    number = writer.scope.constants.number(identifier)
    return number not in (None, 0, 0xFFFFFFFF)


def _comparison(writer: FunctionWriter, instruction: Instruction) -> None:
    row = COMPARISONS[instruction.name]
    a, b = operands(writer, instruction)
    if row.domain == "a":
        b = writer.cast(b, a.type.scalar)
    a, b = (seen(writer, part, row.domain, a.type) for part in (a, b))
    if a.type.wgsl != b.type.wgsl or not a.type.lanes:
        raise mismatch(writer, instruction, f"operands of {a.type.wgsl} and {b.type.wgsl}")
    template = row.template
    if a.type.lanes > 1 and instruction.name in ("OpLogicalAnd", "OpLogicalOr"):
        a = writer.named(a)
        template = "select({a}, {b}, {a})" if instruction.name == "OpLogicalAnd" else "select({b}, {a}, {a})"
    elif template.count("{a}") > 1:
        a, b = writer.named(a), writer.named(b)
        if a.type.lanes > 1:
            template = template.replace("false", f"{a.type.of('bool').wgsl}()")
    a, b = _runtime(writer, [a, b])
    text = template.format(a=a.operand, b=b.operand)
    is_atom = text.startswith("select(")
    finish(writer, instruction, text, [a, b], a.type.of("bool"), is_atom)


def _function(writer: FunctionWriter, instruction: Instruction, row: Function, parts: list[Value]) -> None:
    result = writer.type_of(instruction)
    if len(parts) != len(row.domains):
        raise mismatch(writer, instruction, f"{len(parts)} operands, not {len(row.domains)}")
    given = []
    for part, domain in zip(parts, row.domains, strict=True):
        given.append(writer.cast(part, "u32") if domain == "s" else seen(writer, part, domain, result))
    first = row.domains[0]
    type = given[0].type if first in ("u", "i") and given[0].type.lanes == result.lanes else result
    if result.scalar in ("f32", "f16", "bool"):
        type = result
    given = [
        writer.opaque(part) if domain == "s" else part
        for part, domain in zip(given, row.domains, strict=True)
    ]
    if (
        first in ("r", "u", "i")
        and result.scalar == given[0].type.scalar
        and given[0].type.lanes != result.lanes
    ):
        raise mismatch(writer, instruction, f"an operand of {given[0].type.wgsl}")
    given = _runtime(writer, given)
    finish(writer, instruction, row.template.format(*(part.text for part in given)), given, type)


def _plain_function(writer: FunctionWriter, instruction: Instruction) -> None:
    _function(writer, instruction, FUNCTIONS[instruction.name], operands(writer, instruction))


def _extended(writer: FunctionWriter, instruction: Instruction) -> None:
    imported = writer.module.imports.get(instruction.number(0))
    if imported != "GLSL.std.450":
        raise writer.scope.refuse(instruction, f"instruction set {imported}")
    info = extended_instructions().get(instruction.number(1))
    name = info.name if info else str(instruction.number(1))
    parts = operands(writer, instruction, 2)
    if name in EXTENDED_HELPERS or (name in ("FMin", "FMax") and writer.scope.has_nan):
        if len(parts) != 2:
            raise mismatch(writer, instruction, f"{len(parts)} operands of {name}")
        _helper(writer, instruction, EXTENDED_HELPERS["N" + name[1:]], parts)
    elif name == "NClamp" and len(parts) == 3:
        type = writer.type_of(instruction)
        low = writer.scope.helper("number_max", type)
        high = writer.scope.helper("number_min", type)
        parts = _runtime(writer, parts)
        text = f"{high}({low}({parts[0].text}, {parts[1].text}), {parts[2].text})"
        finish(writer, instruction, text, parts, type)
    elif name in EXTENDED:
        _function(writer, instruction, EXTENDED[name], parts)
    else:
        raise writer.scope.refuse(instruction, f"{name} of GLSL.std.450 is not supported")


def _helper(writer: FunctionWriter, instruction: Instruction, name: str, parts: list[Value]) -> None:
    type = parts[0].type
    if any(part.type.wgsl != type.wgsl for part in parts) or type.scalar not in ("u32", "i32", "f32", "f16"):
        raise mismatch(writer, instruction, "operands of different types")
    called = writer.scope.helper(name, type)
    parts = _runtime(writer, parts)
    text = f"{called}({', '.join(part.text for part in parts)})"
    finish(writer, instruction, text, parts, type.of("bool") if len(parts) == 1 else type)


def _is_nan(writer: FunctionWriter, instruction: Instruction) -> None:
    name = {"OpIsNan": "is_nan", "OpIsInf": "is_inf"}[instruction.name]
    _helper(writer, instruction, name, operands(writer, instruction)[:1])


def _modulo(writer: FunctionWriter, instruction: Instruction) -> None:
    name = "floor_mod" if instruction.name == "OpSMod" else "float_mod"
    parts = [writer.cast(part, "i32") for part in operands(writer, instruction)]
    _helper(writer, instruction, name, parts)


def _unary(writer: FunctionWriter, instruction: Instruction) -> None:
    operator, domain = UNARY[instruction.name]
    result = writer.type_of(instruction)
    (part,) = _runtime(
        writer, [seen(writer, writer.value(instruction.number(0), instruction), domain, result)]
    )
    finish(writer, instruction, f"{operator}{part.operand}", [part], part.type, False)


def _negate(writer: FunctionWriter, instruction: Instruction) -> None:
    part = writer.cast(writer.value(instruction.number(0), instruction), "u32")
    part = writer.opaque(part)
    text = f"{zero(part.type).text} - {part.operand}"
    finish(writer, instruction, text, [part], part.type, False)


def _conversion(writer: FunctionWriter, instruction: Instruction) -> None:
    seen_as, through = CONVERSIONS[instruction.name]
    part = writer.value(instruction.number(0), instruction)
    result = writer.type_of(instruction)
    if not part.type.lanes or part.type.lanes != result.lanes:
        raise mismatch(writer, instruction, f"{part.type.wgsl} to {result.wgsl}")
    if seen_as != "-":
        part = writer.cast(part, seen_as)
    part = writer.opaque(part)
    type = result.of(through) if through in ("u32", "i32") else result
    if type.wgsl == part.type.wgsl:
        finish(writer, instruction, part.text, [part], type, part.is_atom)
    else:
        finish(writer, instruction, f"{type.wgsl}({part.text})", [part], type)


def _bitcast(writer: FunctionWriter, instruction: Instruction) -> None:
    part = writer.value(instruction.number(0), instruction)
    result = writer.type_of(instruction)
    if part.type.wgsl == result.wgsl:
        writer.define(instruction, part)
        return
    sizes = {"u32": 4, "i32": 4, "f32": 4, "f16": 2}
    ours, theirs = (sizes.get(type.scalar, 0) * type.lanes for type in (part.type, result))
    if not ours or ours != theirs:
        raise writer.scope.refuse(instruction, f"{part.type.wgsl} as {result.wgsl}")
    if {part.type.scalar, result.scalar} == {"u32", "i32"}:
        cast = writer.cast(part, result.scalar)
        writer.define(instruction, cast)
        return
    part = writer.opaque(part)
    finish(writer, instruction, f"bitcast<{result.wgsl}>({part.text})", [part], result)


def _select(writer: FunctionWriter, instruction: Instruction) -> None:
    condition, a, b = operands(writer, instruction)
    result = writer.type_of(instruction)
    if not result.lanes or a.type.wgsl != result.wgsl or b.type.wgsl != result.wgsl:
        raise writer.scope.refuse(instruction, f"a choice between {a.type.wgsl or a.type.kind}")
    if condition.type.scalar != "bool" or condition.type.lanes not in (1, result.lanes):
        raise mismatch(writer, instruction, f"a condition of {condition.type.wgsl}")
    parts = [condition, a, b]
    finish(writer, instruction, f"select({argument(b)}, {argument(a)}, {argument(condition)})", parts, result)


# Composites.


def _construct(writer: FunctionWriter, instruction: Instruction) -> None:
    type = writer.type_of(instruction)
    parts = operands(writer, instruction)
    lanes = sum(part.type.lanes for part in parts)
    if type.kind == "vector" and lanes != type.count:
        raise mismatch(writer, instruction, f"{lanes} components of {type.wgsl}")
    if type.kind not in ("vector", "matrix", "array", "struct"):
        raise mismatch(writer, instruction, f"a composite of type {type.wgsl or type.kind}")
    components = None
    if type.kind == "vector" and len(parts) == type.count:
        components = tuple(part.operand for part in parts)
    text = f"{type.wgsl}({', '.join(argument(part) for part in parts)})"
    if components and len(set(components)) == 1:
        text = f"{type.wgsl}({parts[0].text})"
    reads = any(part.reads_memory for part in parts)
    writer.define(instruction, Value(text, type, True, False, reads, components))


def _extract(writer: FunctionWriter, instruction: Instruction) -> None:
    base = writer.value(instruction.number(0), instruction)
    indices = instruction.numbers(1)
    if base.components is not None and len(indices) == 1 and indices[0] < len(base.components):
        text, type = base.components[indices[0]], base.type.inner
        writer.define(instruction, Value(text, type, True, base.is_constant, base.reads_memory))
        return
    text, type = base.operand, base.type
    for index in indices:
        text, type = constant_step(writer, text, type, index, instruction)
    writer.define(instruction, Value(text, type, True, base.is_constant, base.reads_memory))


def _insert(writer: FunctionWriter, instruction: Instruction) -> None:
    part = writer.value(instruction.number(0), instruction)
    base = writer.value(instruction.number(1), instruction)
    indices = instruction.numbers(2)
    type = writer.type_of(instruction)
    if type.kind == "vector" and len(indices) == 1 and indices[0] < type.count:
        components = base.components
        if components is None:
            base = writer.named(base)
            components = tuple(f"{base.operand}.{'xyzw'[lane]}" for lane in range(type.count))
        changed = [*components]
        changed[indices[0]] = part.operand
        reads = part.reads_memory or base.reads_memory
        value = Value(f"{type.wgsl}({', '.join(changed)})", type, True, False, reads, tuple(changed))
        writer.define(instruction, value)
        return
    writer.counter += 1
    name = f"s{writer.counter}"
    text, inner = name, type
    for index in indices:
        text, inner = constant_step(writer, text, inner, index, instruction)
    writer.statement(f"var {name} = {base.text};")
    writer.statement(f"{text} = {part.text};")
    writer.define(instruction, Value(name, type, True))


def _shuffle(writer: FunctionWriter, instruction: Instruction) -> None:
    first, second = (writer.value(number, instruction) for number in instruction.numbers()[:2])
    type = writer.type_of(instruction)
    first, second = writer.named(first), writer.named(second)
    texts = []
    for index in instruction.numbers(2):
        source, lane = (first, index) if index < first.type.lanes else (second, index - first.type.lanes)
        if index == 0xFFFFFFFF:
            source, lane = first, 0
        if lane >= source.type.lanes:
            raise mismatch(
                writer, instruction, f"component {index} of {first.type.lanes + second.type.lanes}"
            )
        texts.append(f"{source.operand}.{'xyzw'[lane]}")
    if type.kind != "vector" or len(texts) != type.count:
        raise mismatch(writer, instruction, f"{len(texts)} components of {type.wgsl or type.kind}")
    bases = {text[:-2] for text in texts}
    text = f"{type.wgsl}({', '.join(texts)})"
    if len(bases) == 1:
        text = f"{bases.pop()}.{''.join(text[-1] for text in texts)}"
    is_constant = False
    writer.define(instruction, Value(text, type, True, is_constant, False, tuple(texts)))


def _dynamic(writer: FunctionWriter, instruction: Instruction) -> None:
    base = writer.value(instruction.number(0), instruction)
    index = writer.value(instruction.number(1), instruction)
    if base.type.kind != "vector" or index.type.kind not in ("u32", "i32"):
        raise mismatch(writer, instruction, f"{base.type.wgsl} at {index.type.wgsl}")
    index = writer.opaque(index)
    finish(writer, instruction, f"{base.operand}[{index.text}]", [base, index], base.type.inner)


def _dynamic_insert(writer: FunctionWriter, instruction: Instruction) -> None:
    base, part, index = operands(writer, instruction)
    writer.counter += 1
    name = f"s{writer.counter}"
    writer.statement(f"var {name} = {base.text};")
    writer.statement(f"{name}[{writer.opaque(index).text}] = {part.text};")
    writer.define(instruction, Value(name, base.type, True))


def _carry(writer: FunctionWriter, instruction: Instruction) -> None:
    type = writer.type_of(instruction)
    if type.kind != "struct" or len(type.members) != 2 or not type.members[0].lanes:
        raise mismatch(writer, instruction, "its result is not a struct of two numbers")
    member = type.members[0]
    is_signed = instruction.name == "OpSMulExtended"
    kind = "i32" if is_signed else "u32"
    a, b = (writer.named(writer.cast(part, kind)) for part in operands(writer, instruction))
    a, b = _runtime(writer, [a, b])
    one, none = (f"{member.of('u32').wgsl}({bit}u)" for bit in (1, 0))
    if instruction.name == "OpIAddCarry":
        low = writer.named(Value(f"{a.operand} + {b.operand}", a.type))
        texts = [low.text, f"select({none}, {one}, {low.text} < {a.operand})"]
    elif instruction.name == "OpISubBorrow":
        texts = [f"{a.operand} - {b.operand}", f"select({none}, {one}, {a.operand} < {b.operand})"]
    else:
        high = writer.scope.helper("multiply_high_signed" if is_signed else "multiply_high", a.type)
        texts = [f"{a.operand} * {b.operand}", f"{high}({a.text}, {b.text})"]
    parts = [
        writer.cast(Value(text, a.type), part.scalar).text
        for text, part in zip(texts, type.members, strict=True)
    ]
    writer.define(instruction, Value(f"{type.wgsl}({', '.join(parts)})", type, True))


# Memory.


def _variable(writer: FunctionWriter, instruction: Instruction) -> None:
    pointer = writer.type_of(instruction)
    type = pointer.inner
    writer.scope.use_f16(type)
    wanted = writer.module.names.get(instruction.result_id, "local")
    name = writer.scope.names.make(wanted)
    initial = ""
    if len(instruction.operands) > 1:
        initial = f" = {writer.value(instruction.number(1), instruction).text}"
    writer.declarations.append(f"var {name}: {type.wgsl}{initial};")
    writer.pointers[instruction.result_id] = places.Place(name, type, "Function")


def _load(writer: FunctionWriter, instruction: Instruction) -> None:
    place = places.resolve(writer, instruction.number(0), instruction)
    type = writer.type_of(instruction)
    value = places.load(writer, place, instruction)
    if value.type.wgsl != type.wgsl:
        raise mismatch(writer, instruction, f"loads {value.type.wgsl} as {type.wgsl}")
    writer.define(instruction, value)


def _store(writer: FunctionWriter, instruction: Instruction) -> None:
    place = places.resolve(writer, instruction.number(0), instruction)
    value = writer.value(instruction.number(1), instruction)
    if value.type.wgsl != place.type.wgsl:
        raise mismatch(writer, instruction, f"stores {value.type.wgsl} to {place.type.wgsl}")
    writer.flush()
    places.store(writer, place, value, instruction)


def _copy_memory(writer: FunctionWriter, instruction: Instruction) -> None:
    target = places.resolve(writer, instruction.number(0), instruction)
    source = places.resolve(writer, instruction.number(1), instruction)
    value = writer.named(places.load(writer, source, instruction))
    writer.flush()
    places.store(writer, target, value, instruction)


def _copy_object(writer: FunctionWriter, instruction: Instruction) -> None:
    if writer.type_of(instruction).kind != "pointer":
        writer.define(instruction, writer.value(instruction.number(0), instruction))


def _array_length(writer: FunctionWriter, instruction: Instruction) -> None:
    variable = writer.scope.resources.variables.get(instruction.number(0))
    if variable is None or variable.buffer is None or not variable.buffer.is_array:
        raise writer.scope.refuse(instruction, "the length of an array that is not a whole buffer")
    buffer = variable.buffer
    text = f"arrayLength(&{buffer.name})"
    if buffer.is_split:
        stride = writer.scope.resources.array_stride(variable.type.members[0]) // 4
        text = f"{text} / {stride}u"
    finish(writer, instruction, text, [], scalar_type("u32"), not buffer.is_split)


def _call(writer: FunctionWriter, instruction: Instruction) -> None:
    callee = writer.module.functions[instruction.number(0)]
    arguments = []
    if len(callee.parameters) != len(instruction.operands) - 1:
        raise mismatch(writer, instruction, f"{len(instruction.operands) - 1} arguments")
    for number, parameter in zip(instruction.numbers(1), callee.parameters, strict=True):
        type = writer.scope.types.get(parameter.type_id, parameter)
        if type.kind == "pointer":
            place = places.resolve(writer, number, instruction)
            if place.storage not in ("Function", "Private") or place.is_value:
                raise writer.scope.refuse(instruction, f"a pointer to {place.storage} as an argument")
            arguments.append(f"&{place.text}")
        else:
            arguments.append(argument(writer.value(number, instruction)))
    writer.flush()
    text = f"{writer.scope.function_names[callee.result_id]}({', '.join(arguments)})"
    if writer.uses.count.get(instruction.result_id):
        named_result(writer, instruction, text, writer.type_of(instruction))
    else:
        writer.statement(f"{text};")


_HANDLERS: Final[dict[str, Callable[[FunctionWriter, Instruction], None]]] = {
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(COMPARISONS, _comparison),
    **dict.fromkeys(FUNCTIONS, _plain_function),
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(CONVERSIONS, _conversion),
    **SYNCHRONIZATION,
    "OpExtInst": _extended,
    "OpIsNan": _is_nan,
    "OpIsInf": _is_nan,
    "OpSMod": _modulo,
    "OpFMod": _modulo,
    "OpSNegate": _negate,
    "OpBitcast": _bitcast,
    "OpSelect": _select,
    "OpCompositeConstruct": _construct,
    "OpCompositeExtract": _extract,
    "OpCompositeInsert": _insert,
    "OpVectorShuffle": _shuffle,
    "OpVectorExtractDynamic": _dynamic,
    "OpVectorInsertDynamic": _dynamic_insert,
    "OpIAddCarry": _carry,
    "OpISubBorrow": _carry,
    "OpUMulExtended": _carry,
    "OpSMulExtended": _carry,
    "OpVariable": _variable,
    "OpLoad": _load,
    "OpStore": _store,
    "OpCopyMemory": _copy_memory,
    "OpCopyObject": _copy_object,
    "OpArrayLength": _array_length,
    "OpFunctionCall": _call,
}
