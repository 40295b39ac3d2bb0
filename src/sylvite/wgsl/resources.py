"""Variables of a module: storage buffers and their merging, push constants, workgroup and private memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..errors import FormatError, InvalidArgumentError, UnsupportedFeatureError
from ..spirv import Instruction, Module
from ..spirv.grammar import enumerant_name
from .names import Names
from .types import SCALAR_BYTES, Type, Types, scalar_type

__all__ = ["Buffer", "Resources", "Variable", "layout", "stride_of"]

STORAGE_CLASSES = frozenset({"StorageBuffer", "Uniform"})


@dataclasses.dataclass(slots=True, eq=False)
class Buffer:
    """One storage buffer of the shader, standing for one binding or several that alias.

    Args:
        name: its variable.
        slots: pairs of set and binding it stands for.
        element: type of its elements, or of the whole when ``is_array`` is not set.
        is_array: whether it is an array of scalars or vectors rather than a struct.
        is_split: whether variables of other element types use it too: ``element`` is a scalar then.
        is_atomic: whether its elements are atomic.
        is_written: whether anything writes it.
        minimum_byte_length: of the largest element it is used with.
    """

    name: str
    slots: tuple[tuple[int, int], ...]
    element: Type
    is_array: bool
    is_split: bool
    is_atomic: bool
    is_written: bool = False
    minimum_byte_length: int = 4

    @property
    def declared(self) -> str:
        """WGSL type of an element."""
        return f"atomic<{self.element.wgsl}>" if self.is_atomic else self.element.wgsl


@dataclasses.dataclass(slots=True, eq=False)
class Variable:
    """An ``OpVariable``. ``is_bare`` says that a struct of one member is declared as that member."""

    identifier: int
    storage: str
    type: Type
    name: str
    instruction: Instruction
    buffer: Buffer | None = None
    builtin: str = ""
    is_bare: bool = False
    is_atomic: bool = False


def layout(type: Type) -> tuple[int, int]:
    """Size and alignment that WGSL gives a type in memory; the size of a runtime array is its stride."""
    if type.kind in SCALAR_BYTES:
        size = SCALAR_BYTES[type.kind]
        return size, size
    if type.kind == "vector" and type.scalar in SCALAR_BYTES:
        size = SCALAR_BYTES[type.scalar]
        return size * type.count, size * (2 if type.count == 2 else 4)
    if type.kind in ("matrix", "array", "runtime_array"):
        size, alignment = layout(type.inner)
        stride = -(-size // alignment) * alignment
        return stride * (type.count or 1), alignment
    if type.kind == "struct":
        end, largest = 0, 1
        for member in type.members:
            size, alignment = layout(member)
            end = -(-end // alignment) * alignment + size
            largest = max(largest, alignment)
        return -(-end // largest) * largest, largest
    raise FormatError(f"type {type.wgsl or type.kind} has no layout in memory")


def stride_of(type: Type) -> int:
    """Bytes from one element of type to the next, as WGSL lays them out."""
    size, alignment = layout(type)
    return -(-size // alignment) * alignment


class Resources:
    """Variables of a module that its entry point uses, and the buffers they are in."""

    def __init__(
        self,
        module: Module,
        types: Types,
        names: Names,
        used: Sequence[int],
        merged: Sequence[Sequence[tuple[int, int]]],
        usage: Usage,
    ) -> None:
        self.module = module
        self.types = types
        self.variables: dict[int, Variable] = {}
        self.buffers: list[Buffer] = []
        self.push_constant_words = 0
        self.private: list[Variable] = []
        self.workgroup: list[Variable] = []
        self.usage = usage
        for identifier in used:
            variable = self._variable(module.definitions[identifier], names)
            self.variables[identifier] = variable
        self._make_buffers(names, merged)

    def refuse(self, instruction: Instruction, what: str) -> UnsupportedFeatureError:
        """The error that something about a variable cannot be expressed."""
        message = f"{instruction.name} %{instruction.result_id}: {what}"
        return UnsupportedFeatureError(message, offset=instruction.offset, where=self.module.where)

    def _variable(self, instruction: Instruction, names: Names) -> Variable:
        pointer = self.types.get(instruction.type_id, instruction)
        if pointer.kind != "pointer":
            message = "OpVariable: its type is not a pointer"
            raise FormatError(message, offset=instruction.offset, where=self.module.where)
        storage = enumerant_name("StorageClass", instruction.number(0))
        identifier = instruction.result_id
        wanted = self.module.names.get(identifier, f"{storage}_{identifier}".lower())
        variable = Variable(identifier, storage, pointer.inner, names.make(wanted), instruction)
        if storage == "Input":
            builtin = self.module.decoration(identifier, "BuiltIn")
            if not builtin or not isinstance(builtin[0], int):
                raise self.refuse(instruction, "an input that is not built in")
            variable.builtin = enumerant_name("BuiltIn", builtin[0])
        elif storage == "PushConstant":
            self.push_constant_words = max(self.push_constant_words, self.packed_size(variable.type) // 4)
        elif storage in ("Workgroup", "Private"):
            self._plain(variable)
        elif storage not in STORAGE_CLASSES:
            raise self.refuse(instruction, f"storage class {storage}")
        return variable

    def _plain(self, variable: Variable) -> None:
        type = variable.type
        variable.is_bare = type.kind == "struct" and len(type.members) == 1
        variable.is_atomic = variable.identifier in self.usage.atomic
        if variable.is_atomic and self.plain_element(variable) is None:
            raise self.refuse(variable.instruction, f"atomic operations in {type.wgsl}")
        (self.workgroup if variable.storage == "Workgroup" else self.private).append(variable)

    def plain_element(self, variable: Variable) -> Type | None:
        """The integer a workgroup variable consists of, when it is one or an array of them."""
        type = variable.type.members[0] if variable.is_bare else variable.type
        element = type.inner if type.kind == "array" else type
        if element.kind not in ("u32", "i32"):
            return None
        return scalar_type(self.usage.atomic_scalar({variable.identifier}, element.kind))

    # Layout of push constants, by the module's own decorations.

    def packed_size(self, type: Type) -> int:
        """Bytes of a type as the module's decorations lay it out."""
        if type.kind == "struct":
            return max(
                (self.member_offset(type, index) + self.packed_size(member)
                 for index, member in enumerate(type.members)),
                default=0,
            )  # fmt: skip
        if type.kind == "array":
            return self.array_stride(type) * type.count
        if type.scalar in SCALAR_BYTES:
            return SCALAR_BYTES[type.scalar] * type.lanes
        raise FormatError(f"{type.wgsl or type.kind} in a block", where=self.module.where)

    def member_offset(self, type: Type, index: int) -> int:
        """Byte offset of a struct's member."""
        offset = self.module.member_decorations.get((type.identifier, index), {}).get("Offset")
        if not offset or not isinstance(offset[0], int):
            message = f"member {index} of struct %{type.identifier} has no Offset"
            raise FormatError(message, where=self.module.where)
        return offset[0]

    def array_stride(self, type: Type) -> int:
        """Bytes between elements of an array."""
        stride = self.module.decoration(type.identifier, "ArrayStride")
        if not stride or not isinstance(stride[0], int):
            message = f"array %{type.identifier} has no ArrayStride"
            raise FormatError(message, where=self.module.where)
        return stride[0]

    # Buffers.

    def slot(self, variable: Variable) -> tuple[int, int]:
        """Set and binding of a storage variable."""
        found = []
        for name in ("DescriptorSet", "Binding"):
            number = self.module.decoration(variable.identifier, name)
            if not number or not isinstance(number[0], int):
                message = f"variable %{variable.identifier} has no {name}"
                raise FormatError(message, offset=variable.instruction.offset, where=self.module.where)
            found.append(number[0])
        return found[0], found[1]

    def _make_buffers(self, names: Names, merged: Sequence[Sequence[tuple[int, int]]]) -> None:
        leaders: dict[tuple[int, int], tuple[int, int]] = {}
        for group in merged:
            for slot in group:
                if slot in leaders:
                    raise InvalidArgumentError(f"binding {slot} is in two merged groups")
                leaders[slot] = min(group)
        groups: dict[tuple[int, int], list[Variable]] = {}
        for variable in self.variables.values():
            if variable.storage in STORAGE_CLASSES:
                slot = self.slot(variable)
                groups.setdefault(leaders.get(slot, slot), []).append(variable)
        for _, variables in sorted(groups.items()):
            buffer = self._buffer(variables, names)
            self.buffers.append(buffer)
            for variable in variables:
                variable.buffer = buffer

    def array_element(self, type: Type) -> Type | None:
        """Element of a block that is one array of scalars or vectors without gaps, else None."""
        if type.kind != "struct" or len(type.members) != 1:
            return None
        array = type.members[0]
        if array.kind not in ("array", "runtime_array") or not array.inner.lanes:
            return None
        return array.inner

    def _buffer(self, variables: list[Variable], names: Names) -> Buffer:
        elements = [self.array_element(variable.type) for variable in variables]
        slots = tuple(sorted({self.slot(variable) for variable in variables}))
        name = names.make("buffer_" + "_".join(str(binding) for _, binding in slots))
        if len(variables) == 1:
            name = variables[0].name
        identifiers = {variable.identifier for variable in variables}
        is_written = not identifiers.isdisjoint(self.usage.written)
        is_atomic = not identifiers.isdisjoint(self.usage.atomic)
        if None in elements:
            return self._struct_buffer(variables, name, slots, is_written, is_atomic)
        kinds = [element for element in elements if element is not None]
        for variable, element in zip(variables, kinds, strict=True):
            self._check_stride(variable, element)
        is_split = len({element.wgsl for element in kinds}) > 1
        if is_atomic and not all(element.lanes == 1 for element in kinds):
            is_split = True
        scalars = {element.scalar for element in kinds}
        element = kinds[0]
        if is_split or is_atomic:
            element = self._common_scalar(variables, scalars, identifiers, is_atomic)
            is_split = is_split or element is not kinds[0]
        least = max(stride_of(kind) for kind in kinds)
        return Buffer(name, slots, element, True, is_split, is_atomic, is_written, least)

    def _common_scalar(
        self, variables: list[Variable], scalars: set[str], identifiers: set[int], is_atomic: bool
    ) -> Type:
        if "f16" in scalars and (len(scalars) > 1 or is_atomic):
            raise self.refuse(variables[0].instruction, "a buffer of f16 that is also one of 32-bit elements")
        if is_atomic:
            return scalar_type(self.usage.atomic_scalar(identifiers, "u32"))
        return scalar_type(scalars.pop() if len(scalars) == 1 else "u32")

    def _check_stride(self, variable: Variable, element: Type) -> None:
        stride = self.array_stride(variable.type.members[0])
        if element.scalar not in SCALAR_BYTES or stride != stride_of(element):
            what = f"an array of {element.wgsl} with a stride of {stride} bytes"
            raise self.refuse(variable.instruction, what)

    def _struct_buffer(
        self,
        variables: list[Variable],
        name: str,
        slots: tuple[tuple[int, int], ...],
        is_written: bool,
        is_atomic: bool,
    ) -> Buffer:
        first = variables[0]
        if any(variable.type is not first.type for variable in variables):
            raise self.refuse(first.instruction, "bindings that alias with different structs")
        if is_atomic:
            raise self.refuse(first.instruction, "atomic operations on members of a struct")
        self.check_layout(first.instruction, first.type)
        size, _ = layout(first.type)
        return Buffer(name, slots, first.type, False, False, False, is_written, size)

    def check_layout(self, user: Instruction, type: Type) -> None:
        """Refuse a type whose offsets and strides are not those that WGSL gives it."""
        if type.kind in ("array", "runtime_array"):
            if self.array_stride(type) != stride_of(type.inner):
                raise self.refuse(user, f"{type.wgsl} with a stride of {self.array_stride(type)} bytes")
            self.check_layout(user, type.inner)
        elif type.kind == "struct":
            end = 0
            for index, member in enumerate(type.members):
                size, alignment = layout(member)
                end = -(-end // alignment) * alignment
                if self.member_offset(type, index) != end:
                    offset = self.member_offset(type, index)
                    raise self.refuse(user, f"member {index} of {type.wgsl} at offset {offset}, not {end}")
                end += size
                self.check_layout(user, member)
        elif type.scalar not in SCALAR_BYTES:
            raise self.refuse(user, f"{type.wgsl or type.kind} in a buffer")


@dataclasses.dataclass(slots=True)
class Usage:
    """What the entry point's functions do to variables, by id of the variable."""

    written: set[int] = dataclasses.field(default_factory=set)
    atomic: set[int] = dataclasses.field(default_factory=set)
    signed_atomic: set[int] = dataclasses.field(default_factory=set)
    unsigned_atomic: set[int] = dataclasses.field(default_factory=set)

    def atomic_scalar(self, identifiers: set[int], default: str) -> str:
        """Which integer type atomic variables take.

        Raises:
            UnsupportedFeatureError: both signed and unsigned minimum or maximum are taken of them.
        """
        is_signed = not identifiers.isdisjoint(self.signed_atomic)
        is_unsigned = not identifiers.isdisjoint(self.unsigned_atomic)
        if is_signed and is_unsigned:
            raise UnsupportedFeatureError("signed and unsigned atomic minimum or maximum of one buffer")
        if is_signed or is_unsigned:
            return "i32" if is_signed else "u32"
        return default
