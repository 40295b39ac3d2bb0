"""The types of the WebAssembly binary format, by the names of the specification.

Source: WebAssembly core specification 3.0, chapter 5.3 (binary format of types), and the threads and
exception-handling proposals.
"""

from __future__ import annotations

import dataclasses
import enum

__all__ = [
    "PAGE_BYTES",
    "BlockType",
    "ExternKind",
    "Feature",
    "FunctionType",
    "GlobalType",
    "MemoryType",
    "SectionId",
    "TableType",
    "TagType",
    "ValueType",
]

PAGE_BYTES = 65536
"""Size of a WebAssembly page in bytes."""


class ValueType(enum.IntEnum):
    """Value types by their binary encoding. Source: core specification, 5.3.5."""

    I32 = 0x7F
    I64 = 0x7E
    F32 = 0x7D
    F64 = 0x7C
    V128 = 0x7B
    FUNCREF = 0x70
    EXTERNREF = 0x6F
    EXNREF = 0x69

    @property
    def text(self) -> str:
        """Name in the text format: ``i32``, ``funcref``."""
        return self.name.lower()

    @property
    def is_reference(self) -> bool:
        """Whether values are references (function, extern, exception)."""
        return self <= ValueType.FUNCREF


class ExternKind(enum.IntEnum):
    """Kinds of imports and exports. Source: core specification, 5.5.5."""

    FUNCTION = 0
    TABLE = 1
    MEMORY = 2
    GLOBAL = 3
    TAG = 4


class SectionId(enum.IntEnum):
    """Section ids. Source: core specification, 5.5.2. ``CUSTOM`` sections may stand anywhere."""

    CUSTOM = 0
    TYPE = 1
    IMPORT = 2
    FUNCTION = 3
    TABLE = 4
    MEMORY = 5
    GLOBAL = 6
    EXPORT = 7
    START = 8
    ELEMENT = 9
    CODE = 10
    DATA = 11
    DATA_COUNT = 12
    TAG = 13

    @property
    def text(self) -> str:
        """Name for messages: ``data count``."""
        return self.name.lower().replace("_", " ")


class Feature(enum.Enum):
    """Proposals beyond the first release. Values are the names of the ``target_features`` section.

    Source: tool-conventions, "Linking.md", and LLVM's WebAssembly feature names.
    """

    MUTABLE_GLOBALS = "mutable-globals"
    SIGN_EXTENSION = "sign-ext"
    SATURATING = "nontrapping-fptoint"
    MULTI_VALUE = "multivalue"
    BULK_MEMORY = "bulk-memory"
    REFERENCE_TYPES = "reference-types"
    SIMD = "simd128"
    RELAXED_SIMD = "relaxed-simd"
    THREADS = "atomics"
    TAIL_CALL = "tail-call"
    EXTENDED_CONST = "extended-const"
    MEMORY64 = "memory64"
    MULTI_MEMORY = "multimemory"
    EXCEPTIONS = "exception-handling"
    WIDE_ARITHMETIC = "wide-arithmetic"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FunctionType:
    """Parameter and result types of a function."""

    parameters: tuple[ValueType, ...] = ()
    results: tuple[ValueType, ...] = ()

    def __str__(self) -> str:
        left = " ".join(t.text for t in self.parameters)
        right = " ".join(t.text for t in self.results)
        return f"[{left}] -> [{right}]"


BlockType = None | ValueType | int
"""What a block yields: nothing, one value, or an index into the module's types."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryType:
    """Size range of a memory, in pages of 64 KiB; ``is_64`` memories are addressed by i64."""

    minimum: int
    maximum: int | None = None
    shared: bool = False
    is_64: bool = False

    @property
    def address_type(self) -> ValueType:
        """Type of the memory's addresses."""
        return ValueType.I64 if self.is_64 else ValueType.I32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TableType:
    """Element type and size range of a table, in elements; ``is_64`` tables are indexed by i64."""

    element: ValueType = ValueType.FUNCREF
    minimum: int
    maximum: int | None = None
    is_64: bool = False

    @property
    def address_type(self) -> ValueType:
        """Type of the table's indices."""
        return ValueType.I64 if self.is_64 else ValueType.I32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GlobalType:
    """Type of a global variable."""

    value: ValueType
    mutable: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TagType:
    """An exception tag; ``type_index`` names a function type whose parameters are the payload."""

    type_index: int
