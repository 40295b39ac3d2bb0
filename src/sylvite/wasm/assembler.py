"""Building modules: `ModuleBuilder` collects items and writes the binary.

>>> from sylvite import wasm
>>> builder = wasm.ModuleBuilder("sums")
>>> add = builder.function("add", params=[wasm.ValueType.I32] * 2, results=[wasm.ValueType.I32], export=True)
>>> _ = add.get(0).get(1).emit("i32.add")
>>> binary = builder.build()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import FormatError, InvalidArgumentError
from . import dylink, names, target_features
from .checks import check_module
from .encoder import encode
from .function_builder import FunctionBuilder
from .instructions import Instruction, encode_body
from .module import (
    CustomSection,
    DataSegment,
    ElementSegment,
    Export,
    Expression,
    FunctionBody,
    Global,
    Import,
    Module,
    SegmentMode,
)
from .stack import Context
from .types import (
    ExternKind,
    FunctionType,
    GlobalType,
    MemoryType,
    TableType,
    TagType,
    ValueType,
)

__all__ = ["ModuleBuilder", "constant", "expression"]


def expression(*instructions: tuple[object, ...]) -> Expression:
    """A constant expression from instructions given as ``(name, *immediates)``; the ``end`` is added:
    ``expression(("global.get", 0), ("i32.const", 16), ("i32.add",))``."""
    body = [Instruction(str(name), tuple(immediates)) for name, *immediates in instructions]
    return Expression(code=encode_body([*body, Instruction("end")]))


def constant(value_type: ValueType, value: int | float | bytes | None) -> Expression:
    """The constant expression of one value: a number, 16 bytes for v128, a function index or None for
    references.

    Raises:
        InvalidArgumentError: the value is not of the type.
    """
    scratch = ModuleBuilder()
    function = scratch.function("constant", results=[value_type])
    if value_type.is_reference:
        if value is None:
            function.emit("ref.null", value_type)
            return Expression(code=function.encode()[1:])
        return expression(("ref.func", value))
    function.emit(f"{value_type.text}.const", value)
    return Expression(code=function.encode()[1:])


class ModuleBuilder:
    """Collects the parts of a module. Imports of a kind must come before definitions of that kind, so the
    indices it returns are final.

    Args:
        name: name of the module for traps and debuggers.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self._types: list[FunctionType] = []
        self._type_indices: dict[FunctionType, int] = {}
        self._imports: list[Import] = []
        self._functions: list[int] = []
        self._tables: list[TableType] = []
        self._memories: list[MemoryType] = []
        self._globals: list[GlobalType] = []
        self._tags: list[TagType] = []
        self._initializers: list[Global] = []
        self._builders: list[FunctionBuilder] = []
        self._exports: list[Export] = []
        self._elements: list[ElementSegment] = []
        self._data: list[DataSegment] = []
        self._customs: list[CustomSection] = []
        self._function_names: dict[int, str] = {}
        self._global_names: dict[int, str] = {}
        self._start: int | None = None
        self._segments_used = {"data": -1, "element": -1}
        self._dylink: CustomSection | None = None
        self._referenced: set[int] = set()
        self.context = Context(
            types=self._types,
            functions=self._functions,
            tables=self._tables,
            memories=self._memories,
            globals=self._globals,
            tags=self._tags,
            elements=None,
            data_count=None,
        )

    def type_index(self, params: Sequence[ValueType], results: Sequence[ValueType]) -> int:
        """Index of a function type, added when it is new."""
        function_type = FunctionType(parameters=tuple(params), results=tuple(results))
        index = self._type_indices.get(function_type)
        if index is None:
            index = self._type_indices[function_type] = len(self._types)
            self._types.append(function_type)
        return index

    # Imports

    def _import(
        self,
        module: str,
        name: str,
        kind: ExternKind,
        description: int | TableType | MemoryType | GlobalType | TagType,
        space: list[object],
    ) -> int:
        imported = sum(item.kind == kind for item in self._imports)
        if len(space) != imported:
            raise InvalidArgumentError(
                f"import {module}.{name}: imports must come before definitions of the same kind"
            )
        self._imports.append(Import(module=module, name=name, kind=kind, description=description))
        space.append(description)
        return imported

    def import_function(
        self, module: str, name: str, params: Sequence[ValueType] = (), results: Sequence[ValueType] = ()
    ) -> int:
        """Import a function; return its index."""
        type_index = self.type_index(params, results)
        index = self._import(module, name, ExternKind.FUNCTION, type_index, self._functions)  # type: ignore[arg-type]
        self._function_names[index] = name
        return index

    def import_memory(
        self,
        module: str,
        name: str,
        minimum: int,
        maximum: int | None = None,
        *,
        shared: bool = False,
        is_64: bool = False,
    ) -> int:
        """Import a memory (sizes in pages); return its index."""
        memory = MemoryType(minimum=minimum, maximum=maximum, shared=shared, is_64=is_64)
        return self._import(module, name, ExternKind.MEMORY, memory, self._memories)  # type: ignore[arg-type]

    def import_table(
        self,
        module: str,
        name: str,
        minimum: int,
        maximum: int | None = None,
        *,
        element: ValueType = ValueType.FUNCREF,
    ) -> int:
        """Import a table; return its index."""
        table = TableType(element=element, minimum=minimum, maximum=maximum)
        return self._import(module, name, ExternKind.TABLE, table, self._tables)  # type: ignore[arg-type]

    def import_global(self, module: str, name: str, value_type: ValueType, *, mutable: bool = False) -> int:
        """Import a global; return its index."""
        global_type = GlobalType(value=value_type, mutable=mutable)
        index = self._import(module, name, ExternKind.GLOBAL, global_type, self._globals)  # type: ignore[arg-type]
        self._global_names[index] = name
        return index

    # Definitions

    def add_memory(
        self, minimum: int, maximum: int | None = None, *, shared: bool = False, is_64: bool = False
    ) -> int:
        """Define a memory (sizes in pages); return its index."""
        self._memories.append(MemoryType(minimum=minimum, maximum=maximum, shared=shared, is_64=is_64))
        return len(self._memories) - 1

    def add_table(
        self, minimum: int, maximum: int | None = None, *, element: ValueType = ValueType.FUNCREF
    ) -> int:
        """Define a table; return its index."""
        self._tables.append(TableType(element=element, minimum=minimum, maximum=maximum))
        return len(self._tables) - 1

    def add_global(
        self,
        value_type: ValueType,
        initial: int | float | bytes | Expression | None = 0,
        *,
        mutable: bool = False,
        name: str | None = None,
    ) -> int:
        """Define a global; ``initial`` is a value or a constant expression. Return its index."""
        initializer = initial if isinstance(initial, Expression) else constant(value_type, initial)
        global_type = GlobalType(value=value_type, mutable=mutable)
        self._globals.append(global_type)
        self._initializers.append(Global(type=global_type, initializer=initializer))
        index = len(self._globals) - 1
        if name is not None:
            self._global_names[index] = name
        return index

    def add_tag(self, params: Sequence[ValueType] = ()) -> int:
        """Define an exception tag; return its index."""
        self._tags.append(TagType(type_index=self.type_index(params, ())))
        return len(self._tags) - 1

    def function(
        self,
        name: str,
        params: Sequence[ValueType] = (),
        results: Sequence[ValueType] = (),
        *,
        export: bool | str = False,
    ) -> FunctionBuilder:
        """Define a function; its body is emitted through the returned builder, at any time before `build`.
        ``export`` exports it under its own or the given name."""
        type_index = self.type_index(params, results)
        index = len(self._functions)
        self._functions.append(type_index)
        self._function_names[index] = name
        builder = FunctionBuilder(
            self, name=name, index=index, type_index=type_index, function_type=self._types[type_index]
        )
        self._builders.append(builder)
        if export:
            self.export(name if export is True else export, builder)
        return builder

    def add_data(
        self, data: bytes | bytearray | memoryview, offset: int | Expression | None = None, *, memory: int = 0
    ) -> int:
        """Add memory contents at ``offset``; a passive segment when it is None. Return its index."""
        self._data.append(
            DataSegment(data=bytes(data), offset=self._offset(offset, self._memories, memory), memory=memory)
        )
        return len(self._data) - 1

    def add_elements(
        self,
        functions: Sequence[FunctionBuilder | int],
        offset: int | Expression | None = None,
        *,
        table: int = 0,
        declarative: bool = False,
    ) -> int:
        """Add table entries at ``offset``; a passive segment when it is None. Return its index."""
        mode = SegmentMode.PASSIVE if offset is None else SegmentMode.ACTIVE
        self._elements.append(
            ElementSegment(
                mode=SegmentMode.DECLARATIVE if declarative else mode,
                table=table,
                offset=self._offset(offset, self._tables, table),
                functions=tuple(f.index if isinstance(f, FunctionBuilder) else f for f in functions),
            )
        )
        return len(self._elements) - 1

    @staticmethod
    def _offset(
        offset: int | Expression | None, space: Sequence[MemoryType | TableType], index: int
    ) -> Expression | None:
        if offset is None or isinstance(offset, Expression):
            return offset
        if index >= len(space):
            raise InvalidArgumentError(f"segment for index {index}, but there are {len(space)}")
        return constant(space[index].address_type, offset)

    def export(self, name: str, item: FunctionBuilder | int, kind: ExternKind = ExternKind.FUNCTION) -> None:
        """Export an item by its index (or a function itself)."""
        index = item.index if isinstance(item, FunctionBuilder) else item
        self._exports.append(Export(name=name, kind=kind, index=index))

    def start(self, function: FunctionBuilder | int) -> None:
        """Run a function when the module is instantiated."""
        self._start = function.index if isinstance(function, FunctionBuilder) else function

    def add_custom(self, section: CustomSection) -> None:
        """Add a custom section."""
        self._customs.append(section)

    def dylink(self, info: dylink.DylinkInfo) -> None:
        """Make it a side module that wants this of its linker."""
        self._dylink = dylink.section(info)

    def target_features(self, features: Mapping[str, str]) -> None:
        """State the features used; see `target_features`."""
        self._customs.append(target_features.section(features))

    def note_use(self, name: str, immediates: tuple[object, ...]) -> None:
        """Internal, for `FunctionBuilder`: remember segments and functions that an instruction names."""
        if name in ("memory.init", "data.drop"):
            self._note_segment("data", immediates[0])
        elif name in ("table.init", "elem.drop"):
            self._note_segment("element", immediates[0])
        elif name == "ref.func" and isinstance(immediates[0], int):
            self._referenced.add(immediates[0])

    def _note_segment(self, kind: str, index: object) -> None:
        if isinstance(index, int):
            self._segments_used[kind] = max(self._segments_used[kind], index)

    # Output

    def _declared_elements(self) -> tuple[ElementSegment, ...]:
        """The element segments, with one more that declares functions only ref.func names."""
        declared = {index for segment in self._elements for index in segment.functions or ()}
        declared |= {export.index for export in self._exports if export.kind is ExternKind.FUNCTION}
        missing = tuple(sorted(self._referenced - declared))
        if not missing:
            return tuple(self._elements)
        return (*self._elements, ElementSegment(mode=SegmentMode.DECLARATIVE, functions=missing))

    def _name_section(self) -> CustomSection:
        locals_by_function = {b.index: b.local_names for b in self._builders if b.local_names}
        return names.section(
            names.NameMap(
                module=self.name,
                functions=self._function_names,
                locals=locals_by_function,
                globals=self._global_names,
            )
        )

    def _check_segments(self) -> None:
        for kind, segments in (("data", self._data), ("element", self._elements)):
            if self._segments_used[kind] >= len(segments):
                raise InvalidArgumentError(
                    f"{kind} segment {self._segments_used[kind]} is used, but there are {len(segments)}"
                )

    def _defined(self, kind: ExternKind, space: list[object]) -> tuple[object, ...]:
        return tuple(space[sum(item.kind == kind for item in self._imports) :])

    def module(self) -> Module:
        """The module as records.

        Raises:
            InvalidArgumentError: a function is unfinished, or an index names nothing.
        """
        self._check_segments()
        code = tuple(FunctionBody(data=builder.encode()) for builder in self._builders)
        customs = [] if self._dylink is None else [self._dylink]
        built = Module(
            types=tuple(self._types),
            imports=tuple(self._imports),
            functions=tuple(builder.type_index for builder in self._builders),
            tables=self._defined(ExternKind.TABLE, self._tables),  # type: ignore[arg-type]
            memories=self._defined(ExternKind.MEMORY, self._memories),  # type: ignore[arg-type]
            tags=tuple(self._tags),
            globals=tuple(self._initializers),
            exports=tuple(self._exports),
            start=self._start,
            elements=self._declared_elements(),
            data_count=len(self._data) if self._segments_used["data"] >= 0 else None,
            code=code,
            data=tuple(self._data),
            customs=(*customs, *self._customs, self._name_section()),
        )
        try:
            check_module(built, where="built module")
        except FormatError as error:
            raise InvalidArgumentError(str(error)) from error
        return built

    def build(self) -> bytes:
        """The module as bytes.

        Raises:
            InvalidArgumentError: a function is unfinished, or an index names nothing.
        """
        return encode(self.module())
