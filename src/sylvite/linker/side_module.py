"""A position-independent side module, read and checked before anything is done for it.

Source: WebAssembly tool-conventions, "DynamicLinking.md".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from .. import wasm
from ..errors import FormatError, InvalidArgumentError, LinkError, UnsupportedFeatureError
from ..wasm import ExternKind, Feature, FunctionType, SegmentMode, ValueType
from ..wasm.dylink import DylinkInfo, SymbolFlags
from .half_calls import repair_half_calls

__all__ = ["GOT_DATA", "GOT_FUNCTIONS", "SideModule", "read_side_module"]

GOT_FUNCTIONS = "GOT.func"
GOT_DATA = "GOT.mem"
ENVIRONMENT = "env"
MEMORY = "memory"
TABLE = "__indirect_function_table"
MEMORY_BASE = "__memory_base"
TABLE_BASE = "__table_base"

# No compiler asks for more, and a greater one would spread modules over the whole address space.
GREATEST_ALIGNMENT = 16

PLATFORM_GLOBALS = frozenset({MEMORY_BASE, TABLE_BASE, "__stack_pointer", "__stack_low", "__stack_high"})
"""Globals of ``env`` that the linker itself provides."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SideModule:
    """What the linker needs to know of a side module.

    Args:
        name: name for messages.
        data: the binary.
        module: the decoded module.
        info: its ``dylink.0`` section.
        features: proposals its code uses.
        function_imports: functions wanted of ``env`` or others, with their types.
        got_functions: symbols whose table index it wants in a ``GOT.func`` global.
        got_data: symbols whose address it wants in a ``GOT.mem`` global.
        weak: symbols that may stay undefined.
        function_exports: index of exported functions.
        data_exports: address of exported data, relative to ``__memory_base``.
        minimum_pages, minimum_entries: what its memory and table imports ask for.
    """

    name: str
    data: bytes
    module: wasm.Module
    info: DylinkInfo
    features: frozenset[Feature]
    function_imports: Mapping[tuple[str, str], FunctionType]
    got_functions: tuple[str, ...]
    got_data: tuple[str, ...]
    weak: frozenset[str]
    function_exports: Mapping[str, int]
    data_exports: Mapping[str, int]
    minimum_pages: int
    minimum_entries: int

    def check_segments(self, memory_base: int, table_base: int) -> None:
        """Check that active segments stay inside the module's own memory and table slots.

        Raises:
            FormatError: one does not.
        """
        read_global = self._global_reader(memory_base, table_base)
        for index, data in enumerate(self.module.data):
            if data.offset is not None:
                self._check_inside(
                    f"data segment {index}",
                    data.offset,
                    len(data.data),
                    (memory_base, self.info.memory_size),
                    read_global,
                )
        for index, element in enumerate(self.module.elements):
            if element.mode is SegmentMode.ACTIVE and element.offset is not None:
                self._check_inside(
                    f"element segment {index}",
                    element.offset,
                    len(_entries(element)),
                    (table_base, self.info.table_size),
                    read_global,
                )

    def table_functions(self, table_base: int) -> dict[int, int]:
        """Function index by table index, from the active element segments."""
        read_global = self._global_reader(0, table_base)
        entries: dict[int, int] = {}
        for element in self.module.elements:
            if element.mode is SegmentMode.ACTIVE and element.offset is not None:
                first = self._evaluate("element segment", element.offset, read_global)
                entries.update(
                    (first + position, function)
                    for position, function in enumerate(_entries(element))
                    if function is not None
                )
        return entries

    def function_names(self) -> dict[int, str]:
        """Names of functions by index: of the ``name`` section, else of the exports."""
        names = {index: name for name, index in self.function_exports.items()}
        try:
            names.update(wasm.names.read(self.module).functions)
        except FormatError:
            # A damaged name section costs names in messages, nothing else.
            return names
        return names

    def _global_reader(self, memory_base: int, table_base: int) -> Callable[[int], int | float]:
        known = {MEMORY_BASE: memory_base, TABLE_BASE: table_base}
        imports = [item.name for item in self.module.imported(ExternKind.GLOBAL)]

        def read(index: int) -> int | float:
            name = imports[index] if index < len(imports) else f"global {index}"
            if name not in known:
                raise InvalidArgumentError(f"{name} has no value yet")
            return known[name]

        return read

    def _evaluate(
        self, what: str, expression: wasm.Expression, read_global: Callable[[int], int | float]
    ) -> int:
        where = f"{what} of {self.name}"
        try:
            value = expression.evaluate(read_global)
        except InvalidArgumentError as error:
            raise FormatError(
                f"offset cannot be computed: {error}", where=where, offset=expression.offset
            ) from error
        if not isinstance(value, int):
            raise FormatError("offset is not an integer", where=where, offset=expression.offset)
        return value & 0xFFFFFFFF

    def _check_inside(
        self,
        what: str,
        expression: wasm.Expression,
        length: int,
        own: tuple[int, int],
        read_global: Callable[[int], int | float],
    ) -> None:
        start = self._evaluate(what, expression, read_global)
        first, size = own
        if start < first or start + length > first + size:
            raise FormatError(
                f"covers {start - first:#x}+{length} of the module's own {size} (relative to its base)",
                where=f"{what} of {self.name}",
                offset=expression.offset,
            )


def read_side_module(data: bytes, *, name: str) -> SideModule:
    """Decode a side module and check everything that can be checked without placing it.

    Raises:
        FormatError: malformed, or an import has a type the convention does not have.
        LinkError: not a side module, or it brings a memory or table of its own, or
            asks for an absurd alignment.
        UnsupportedFeatureError: it needs a proposal that is not supported, or waits for other threads.
    """
    decoded = wasm.decode(data, where=f"wasm module {name}")
    module = repair_half_calls(decoded)
    if module is not decoded:
        data = wasm.encode(module)
    info = wasm.dylink.read(module)
    if info is None:
        raise LinkError(
            f"module {name} is no position-independent side module (it has no dylink.0 section); "
            "link it with --experimental-pic --shared",
            module=name,
        )
    alignment = max(info.memory_alignment, info.table_alignment)
    if alignment > GREATEST_ALIGNMENT:
        raise LinkError(
            f"module {name} asks for an alignment of 2**{alignment}; more than a page (2**"
            f"{GREATEST_ALIGNMENT}) is not given",
            module=name,
        )
    for kind, own in (("memory", module.memories), ("table", module.tables)):
        if own:
            raise LinkError(f"module {name} defines a {kind} instead of importing one", module=name)
    sorter = _ImportSorter(name, module)
    for item in module.imports:
        sorter.add(item)
    features = wasm.features.required(module)
    if Feature.THREADS in features:
        _refuse_waits(name, module)
    return SideModule(
        name=name,
        data=data,
        module=module,
        info=info,
        features=features,
        function_imports=sorter.functions,
        got_functions=tuple(sorter.got_functions),
        got_data=tuple(sorter.got_data),
        weak=frozenset(item.name for item in info.imports if item.flags & SymbolFlags.WEAK),
        function_exports={
            item.name: item.index for item in module.exports if item.kind is ExternKind.FUNCTION
        },
        data_exports=_data_exports(module, info),
        minimum_pages=sorter.minimum_pages,
        minimum_entries=sorter.minimum_entries,
    )


def _refuse_waits(name: str, module: wasm.Module) -> None:
    """A guest that sleeps looks at nothing: neither a deadline nor Control-C would reach it."""
    for index, body in enumerate(module.code, module.imported_count(ExternKind.FUNCTION)):
        for instruction in body.instructions():
            if instruction.name.startswith("memory.atomic.wait"):
                raise UnsupportedFeatureError(
                    f"function {index} sleeps ({instruction.name}), and nothing could stop it then; "
                    "side modules may use all other atomic instructions",
                    where=f"wasm module {name}",
                    offset=instruction.offset,
                )


class _ImportSorter:
    """Takes imports one by one and refuses those that no side module may have."""

    def __init__(self, name: str, module: wasm.Module) -> None:
        self._name = name
        self._module = module
        self.functions: dict[tuple[str, str], FunctionType] = {}
        self.got_functions: dict[str, None] = {}
        self.got_data: dict[str, None] = {}
        self.minimum_pages = 0
        self.minimum_entries = 0

    def add(self, item: wasm.Import) -> None:
        """Take one import."""
        description = item.description
        if isinstance(description, int):
            self._add_function(item, description)
        elif isinstance(description, wasm.MemoryType) and (item.module, item.name) == (ENVIRONMENT, MEMORY):
            self._add_memory(description)
        elif isinstance(description, wasm.TableType) and (item.module, item.name) == (ENVIRONMENT, TABLE):
            self.minimum_entries = max(self.minimum_entries, description.minimum)
        elif isinstance(description, wasm.GlobalType) and self._add_global(item, description):
            return
        else:
            raise self._unknown(item)

    def _add_function(self, item: wasm.Import, type_index: int) -> None:
        if not type_index < len(self._module.types):
            raise FormatError(f"import {item.module}.{item.name} has no type", where=f"module {self._name}")
        wanted = self._module.types[type_index]
        known = self.functions.setdefault((item.module, item.name), wanted)
        if known != wanted:
            raise LinkError(
                f"module {self._name} imports {item.module}.{item.name} as {known} and as {wanted}",
                module=self._name,
                symbols=[item.name],
            )

    def _add_memory(self, memory: wasm.MemoryType) -> None:
        if memory.is_64:
            raise UnsupportedFeatureError("64-bit memories cannot be linked", where=f"module {self._name}")
        if memory.shared:
            raise LinkError(
                f"module {self._name} imports a shared memory; this one is not", module=self._name
            )
        self.minimum_pages = max(self.minimum_pages, memory.minimum)

    def _add_global(self, item: wasm.Import, wanted: wasm.GlobalType) -> bool:
        if wanted.value is not ValueType.I32:
            return False
        if item.module == ENVIRONMENT:
            return item.name in PLATFORM_GLOBALS
        if item.module == GOT_FUNCTIONS:
            self.got_functions[item.name] = None
        elif item.module == GOT_DATA:
            self.got_data[item.name] = None
        else:
            return False
        return wanted.mutable

    def _unknown(self, item: wasm.Import) -> LinkError:
        return LinkError(
            f"module {self._name} imports {item.module}.{item.name} as a {item.kind.name.lower()} "
            f"({item.description}), which the dynamic-linking convention does not have",
            module=self._name,
            symbols=[item.name],
        )


def _entries(element: wasm.ElementSegment) -> list[int | None]:
    """Function indices of a segment's entries; None for null and for what is no plain function."""
    if element.functions is not None:
        return list(element.functions)
    entries: list[int | None] = []
    for expression in element.expressions or ():
        instruction = expression.instructions()[0]
        entries.append(instruction.immediates[0] if instruction.name == "ref.func" else None)
    return entries


def _data_exports(module: wasm.Module, info: DylinkInfo) -> dict[str, int]:
    imported = module.imported_count(ExternKind.GLOBAL)
    addresses = {}
    for item in module.exports:
        if item.kind is not ExternKind.GLOBAL or item.index < imported:
            continue
        if info.export_info.get(item.name, SymbolFlags(0)) & SymbolFlags.TLS:
            continue
        variable = module.globals[item.index - imported]
        if variable.type != wasm.GlobalType(value=ValueType.I32):
            continue
        instructions = variable.initializer.instructions()
        if len(instructions) == 2 and instructions[0].name == "i32.const":
            addresses[item.name] = instructions[0].immediates[0] & 0xFFFFFFFF
    return addresses
