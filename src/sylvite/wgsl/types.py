"""Types of a SPIR-V module as WGSL writes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from ..errors import FormatError, UnsupportedFeatureError
from ..spirv import Instruction, Module
from ..spirv.grammar import enumerant_name

__all__ = ["SCALAR_BYTES", "Type", "Types", "scalar_type", "vector_type"]

SCALAR_BYTES: Final[Mapping[str, int]] = {"u32": 4, "i32": 4, "f32": 4, "f16": 2}
NESTING_LIMIT: Final = 15


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Type:
    """A type.

    Args:
        kind: ``bool``, ``u32``, ``i32``, ``f32``, ``f16``, ``vector``, ``matrix``, ``array``,
            ``runtime_array``, ``struct``, ``pointer``, ``void`` or ``function``.
        wgsl: how WGSL writes it.
        element: of vectors, matrices (a column), arrays and pointers.
        count: components, columns or elements.
        members: of structs; of functions the result, then parameters.
        storage: storage class of pointers.
        identifier: its id; 0 when it was made here.
    """

    kind: str
    wgsl: str
    element: Type | None = None
    count: int = 0
    members: tuple[Type, ...] = ()
    storage: str = ""
    identifier: int = 0

    @property
    def lanes(self) -> int:
        """Components of a vector, 1 of a scalar, 0 of anything else."""
        if self.kind == "vector":
            return self.count
        return 1 if self.kind in SCALAR_BYTES or self.kind == "bool" else 0

    @property
    def scalar(self) -> str:
        """Kind of a scalar or of a vector's components; ``""`` of anything else."""
        if self.kind == "vector" and self.element is not None:
            return self.element.kind
        return self.kind if self.lanes else ""

    @property
    def inner(self) -> Type:
        """The element.

        Raises:
            FormatError: it has none.
        """
        if self.element is None:
            raise FormatError(f"type {self.wgsl or self.kind} has no elements")
        return self.element

    def of(self, scalar: str) -> Type:
        """The scalar or vector of as many components of another kind."""
        return scalar_type(scalar) if self.lanes == 1 else vector_type(scalar, self.lanes)


_SCALARS: Final = {name: Type(name, name) for name in ("bool", "u32", "i32", "f32", "f16")}
_VECTORS: Final = {
    (name, count): Type("vector", f"vec{count}<{name}>", element, count)
    for name, element in _SCALARS.items()
    for count in (2, 3, 4)
}


def scalar_type(name: str) -> Type:
    """The scalar type of a name."""
    return _SCALARS[name]


def vector_type(name: str, count: int) -> Type:
    """The vector type of a component type and count."""
    return _VECTORS[name, count]


class Types:
    """Types of a module by id.

    Args:
        module: where they are declared.
        has_f16: whether half precision may be used.
    """

    def __init__(self, module: Module, *, has_f16: bool) -> None:
        self.module = module
        self.has_f16 = has_f16
        self.lengths: dict[int, int] = {}
        self.struct_names: dict[int, str] = {}
        self._known: dict[int, Type] = {}

    def refuse(self, instruction: Instruction, what: str) -> UnsupportedFeatureError:
        """The error that a type cannot be expressed."""
        message = f"{instruction.name} %{instruction.result_id}: {what}"
        return UnsupportedFeatureError(message, offset=instruction.offset, where=self.module.where)

    def get(self, identifier: int, user: Instruction | None = None, depth: int = 0) -> Type:
        """A type.

        Raises:
            FormatError: the id is not a type.
            UnsupportedFeatureError: WGSL has no such type.
        """
        known = self._known.get(identifier)
        if known is None:
            instruction = self.module.definition(identifier, user)
            if depth > NESTING_LIMIT:
                raise self.refuse(instruction, f"types nest more than {NESTING_LIMIT} deep")
            maker = _MAKERS.get(instruction.name)
            if maker is None:
                if not instruction.name.startswith("OpType"):
                    offset = instruction.offset if user is None else user.offset
                    message = f"%{identifier} ({instruction.name}) is not a type"
                    raise FormatError(message, offset=offset, where=self.module.where)
                raise self.refuse(instruction, "WGSL has no such type")
            known = self._known[identifier] = maker(self, instruction, depth)
        return known

    def declared_structs(self, bare: set[int]) -> list[Type]:
        """Structs in use by now, after those they hold; ``bare`` ones are left out."""
        return [
            type for type in self._known.values() if type.kind == "struct" and type.identifier not in bare
        ]

    def _void(self, instruction: Instruction, depth: int) -> Type:
        return Type("void", "", identifier=instruction.result_id)

    def _bool(self, instruction: Instruction, depth: int) -> Type:
        return _SCALARS["bool"]

    def _int(self, instruction: Instruction, depth: int) -> Type:
        width, is_signed = instruction.number(0), instruction.number(1)
        if width != 32:
            raise self.refuse(instruction, f"WGSL has no integers of {width} bits")
        return _SCALARS["i32" if is_signed else "u32"]

    def _float(self, instruction: Instruction, depth: int) -> Type:
        width = instruction.number(0)
        if len(instruction.operands) > 1:
            raise self.refuse(instruction, "WGSL has IEEE floating point only")
        if width == 16 and not self.has_f16:
            raise self.refuse(instruction, "f16 needs the device feature shader-f16")
        if width not in (16, 32):
            raise self.refuse(instruction, f"WGSL has no floating point of {width} bits")
        return _SCALARS[f"f{width}"]

    def _vector(self, instruction: Instruction, depth: int) -> Type:
        element = self.get(instruction.number(0), instruction, depth + 1)
        count = instruction.number(1)
        if element.lanes != 1 or element.kind == "vector" or not 2 <= count <= 4:
            raise self.refuse(instruction, f"no vector of {count} {element.wgsl}")
        return _VECTORS[element.kind, count]

    def _matrix(self, instruction: Instruction, depth: int) -> Type:
        column = self.get(instruction.number(0), instruction, depth + 1)
        count = instruction.number(1)
        if column.kind != "vector" or column.scalar not in ("f32", "f16") or not 2 <= count <= 4:
            raise self.refuse(instruction, f"no matrix of {count} {column.wgsl}")
        text = f"mat{count}x{column.count}<{column.scalar}>"
        return Type("matrix", text, column, count, identifier=instruction.result_id)

    def _array(self, instruction: Instruction, depth: int) -> Type:
        element = self.get(instruction.number(0), instruction, depth + 1)
        length = self.lengths.get(instruction.number(1))
        if length is None:
            raise self.refuse(instruction, "its length is not a constant")
        if not 0 < length < 1 << 28:
            raise self.refuse(instruction, f"its length is {length}")
        text = f"array<{element.wgsl}, {length}>"
        return Type("array", text, element, length, identifier=instruction.result_id)

    def _runtime_array(self, instruction: Instruction, depth: int) -> Type:
        element = self.get(instruction.number(0), instruction, depth + 1)
        return Type("runtime_array", f"array<{element.wgsl}>", element, identifier=instruction.result_id)

    def _struct(self, instruction: Instruction, depth: int) -> Type:
        members = tuple(self.get(number, instruction, depth + 1) for number in instruction.numbers())
        name = self.struct_names.get(instruction.result_id, f"Struct{instruction.result_id}")
        return Type("struct", name, members=members, identifier=instruction.result_id)

    def _pointer(self, instruction: Instruction, depth: int) -> Type:
        storage = enumerant_name("StorageClass", instruction.number(0))
        element = self.get(instruction.number(1), instruction, depth + 1)
        return Type("pointer", "", element, storage=storage, identifier=instruction.result_id)

    def _function(self, instruction: Instruction, depth: int) -> Type:
        members = tuple(self.get(number, instruction, depth + 1) for number in instruction.numbers())
        return Type("function", "", members=members, identifier=instruction.result_id)


_MAKERS = {
    "OpTypeVoid": Types._void,
    "OpTypeBool": Types._bool,
    "OpTypeInt": Types._int,
    "OpTypeFloat": Types._float,
    "OpTypeVector": Types._vector,
    "OpTypeMatrix": Types._matrix,
    "OpTypeArray": Types._array,
    "OpTypeRuntimeArray": Types._runtime_array,
    "OpTypeStruct": Types._struct,
    "OpTypePointer": Types._pointer,
    "OpTypeFunction": Types._function,
}
