"""A decoded module: frozen records in the order and with the names of the specification.

A `Module` remembers the bytes each section was decoded from; `encode` reuses them for every section
whose records were not replaced (`dataclasses.replace`), so unusual but valid encodings survive.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Callable, Iterator, Sequence

from ..errors import FormatError, InvalidArgumentError, NotFoundError
from .instructions import Instruction, decode_body
from .instructions.immediates import read_value_type
from .leb import Reader
from .types import (
    ExternKind,
    FunctionType,
    GlobalType,
    MemoryType,
    SectionId,
    TableType,
    TagType,
    ValueType,
)

__all__ = [
    "CustomSection",
    "DataSegment",
    "ElementSegment",
    "Export",
    "Expression",
    "FunctionBody",
    "Global",
    "Import",
    "Locals",
    "Module",
    "SectionSource",
    "SegmentMode",
]

MAXIMUM_LOCALS = 50_000
"""Most locals of a function. Source: WebAssembly JavaScript interface, implementation limits."""

_INTEGER_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}


def _wrap(value: int, bits: int) -> int:
    """``value`` as a signed integer of ``bits`` bits."""
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A constant expression: its bytes up to and with the final ``end``. ``offset`` is the place in the
    module it was read from."""

    code: bytes
    offset: int = dataclasses.field(default=0, compare=False)

    def instructions(self) -> list[Instruction]:
        """The decoded instructions; the last is ``end``."""
        return decode_body(self.code, base=self.offset, where="constant expression")

    def evaluate(self, read_global: Callable[[int], int | float]) -> int | float | None:
        """Compute the value. ``read_global`` gives the value of a global by index.

        Returns:
            A signed int, a float, or None for a null reference; the function index for ``ref.func``.

        Raises:
            InvalidArgumentError: it is not a constant scalar expression.
        """
        stack: list[int | float | None] = []
        for name, immediates, _ in self.instructions()[:-1]:
            head, _, operation = name.partition(".")
            if operation == "const" and head in ("i32", "i64"):
                stack.append(immediates[0])
            elif operation == "const" and head in ("f32", "f64"):
                stack.append(struct.unpack("<f" if head == "f32" else "<d", immediates[0])[0])
            elif name == "global.get":
                stack.append(read_global(immediates[0]))
            elif name == "ref.func":
                stack.append(immediates[0])
            elif name == "ref.null":
                stack.append(None)
            elif operation in _INTEGER_OPERATIONS and head in ("i32", "i64") and len(stack) >= 2:
                right, left = stack.pop(), stack.pop()
                if not isinstance(left, int) or not isinstance(right, int):
                    raise InvalidArgumentError(f"{name} on operands that are not integers")
                stack.append(_wrap(_INTEGER_OPERATIONS[operation](left, right), int(head[1:])))
            else:
                raise InvalidArgumentError(f"{name} is not allowed in a scalar constant expression")
        if len(stack) != 1:
            raise InvalidArgumentError(f"constant expression leaves {len(stack)} values")
        return stack[0]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """``description`` is a type index for functions, otherwise the type itself."""

    module: str
    name: str
    kind: ExternKind
    description: int | TableType | MemoryType | GlobalType | TagType

    @property
    def desc(self) -> int | TableType | MemoryType | GlobalType | TagType:
        """Short for ``description``."""
        return self.description


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A named item of an index space."""

    name: str
    kind: ExternKind
    index: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Global:
    """A global variable defined by the module."""

    type: GlobalType
    initializer: Expression


class SegmentMode(enum.Enum):
    """When the contents of a data or element segment are copied."""

    ACTIVE = "active"
    PASSIVE = "passive"
    DECLARATIVE = "declarative"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ElementSegment:
    """Table entries, either as function indices or as expressions (the other is None). ``offset`` is None
    unless the segment is active."""

    mode: SegmentMode = SegmentMode.ACTIVE
    table: int = 0
    offset: Expression | None = None
    element: ValueType = ValueType.FUNCREF
    functions: tuple[int, ...] | None = None
    expressions: tuple[Expression, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataSegment:
    """Memory contents. ``offset`` is None when the segment is passive."""

    offset: Expression | None = None
    data: bytes
    memory: int = 0

    @property
    def mode(self) -> SegmentMode:
        """Active or passive."""
        return SegmentMode.PASSIVE if self.offset is None else SegmentMode.ACTIVE


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Locals:
    """A run of ``count`` locals of one type."""

    count: int
    type: ValueType


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FunctionBody:
    """A function body: local declarations and code as raw bytes, decoded when asked for. ``offset`` is
    the place in the module it was read from."""

    data: bytes
    offset: int = dataclasses.field(default=0, compare=False)

    def split(self, *, where: str = "code section") -> tuple[tuple[Locals, ...], bytes, int]:
        """Local declarations, the code after them, and the code's offset in the module. ``where`` names
        the function in errors.

        Raises:
            FormatError: malformed, or more than 50,000 locals.
        """
        reader = Reader(self.data, where=where, base=self.offset)
        runs = []
        total = 0
        for _ in range(reader.count("local declarations", limit=MAXIMUM_LOCALS, minimum_bytes=2)):
            start = reader.position
            count = reader.u32()
            total += count
            if total > MAXIMUM_LOCALS:
                raise reader.error(f"{total} locals are more than {MAXIMUM_LOCALS}", start)
            runs.append(Locals(count=count, type=reader.read(read_value_type)))
        return tuple(runs), self.data[reader.position :], reader.offset

    @property
    def locals(self) -> tuple[Locals, ...]:
        """Local declarations."""
        return self.split()[0]

    def instructions(self, *, where: str = "code section") -> list[Instruction]:
        """The decoded instructions; the last is ``end``. ``where`` names the function in errors.

        Raises:
            FormatError, UnsupportedFeatureError
        """
        _, code, offset = self.split(where=where)
        return decode_body(code, base=offset, where=where)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CustomSection:
    """A custom section. ``after`` is the section it follows (``CUSTOM``: none, it is first)."""

    name: str
    data: bytes
    after: SectionId = SectionId.DATA
    offset: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SectionSource:
    """The bytes (id, size and contents) that ``records`` were decoded from, and their offset."""

    records: object
    encoded: memoryview
    offset: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module. Index spaces start with the imports of the kind."""

    types: tuple[FunctionType, ...] = ()
    imports: tuple[Import, ...] = ()
    functions: tuple[int, ...] = ()
    tables: tuple[TableType, ...] = ()
    memories: tuple[MemoryType, ...] = ()
    tags: tuple[TagType, ...] = ()
    globals: tuple[Global, ...] = ()
    exports: tuple[Export, ...] = ()
    start: int | None = None
    elements: tuple[ElementSegment, ...] = ()
    data_count: int | None = None
    code: tuple[FunctionBody, ...] = ()
    data: tuple[DataSegment, ...] = ()
    customs: tuple[CustomSection, ...] = ()
    sources: tuple[SectionSource, ...] = dataclasses.field(default=(), repr=False, compare=False)

    def imported(self, kind: ExternKind) -> Iterator[Import]:
        """Imports of one kind, in index order."""
        return (item for item in self.imports if item.kind == kind)

    def imported_count(self, kind: ExternKind) -> int:
        """How many imports of one kind there are: the index of the first item the module defines."""
        return sum(item.kind == kind for item in self.imports)

    def _space(self, kind: ExternKind, defined: Sequence[object]) -> list[object]:
        return [*(item.description for item in self.imported(kind)), *defined]

    @property
    def all_functions(self) -> list[int]:
        """Type indices of imported and defined functions."""
        return self._space(ExternKind.FUNCTION, self.functions)  # type: ignore[return-value]

    @property
    def all_tables(self) -> list[TableType]:
        """Types of imported and defined tables."""
        return self._space(ExternKind.TABLE, self.tables)  # type: ignore[return-value]

    @property
    def all_memories(self) -> list[MemoryType]:
        """Types of imported and defined memories."""
        return self._space(ExternKind.MEMORY, self.memories)  # type: ignore[return-value]

    @property
    def all_globals(self) -> list[GlobalType]:
        """Types of imported and defined globals."""
        return self._space(ExternKind.GLOBAL, [g.type for g in self.globals])  # type: ignore[return-value]

    @property
    def all_tags(self) -> list[TagType]:
        """Types of imported and defined tags."""
        return self._space(ExternKind.TAG, self.tags)  # type: ignore[return-value]

    def function_type(self, index: int) -> FunctionType:
        """Type of a function by its index.

        Raises:
            FormatError: the index is out of range.
        """
        functions = self.all_functions
        if not 0 <= index < len(functions) or not 0 <= functions[index] < len(self.types):
            raise FormatError(f"function index {index} out of range", where="module")
        return self.types[functions[index]]

    def export(self, name: str) -> Export:
        """The export of that name.

        Raises:
            NotFoundError
        """
        for item in self.exports:
            if item.name == name:
                return item
        raise NotFoundError(f"the module exports no {name!r}")

    def custom(self, name: str) -> CustomSection | None:
        """The first custom section of that name."""
        return next((section for section in self.customs if section.name == name), None)
