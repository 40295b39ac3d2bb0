"""Reading an executable's library structure out of guest memory.

The structure is written by the module itself, so nothing in it is believed: every pointer, count and
table index is checked before it is used, and errors name the member.

Source: ``iree/hal/local/executable_library.h`` (version 0.6).
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any, Final

from ...abi import structs
from ...engines.base import ValueType
from ...errors import FormatError, UnsupportedFeatureError, UnsupportedVersionError
from ...hal import ExecutableExport

if TYPE_CHECKING:
    from ...linker import LinkedModule, LinkSpace

__all__ = ["Library", "LibraryExport", "LibraryImport", "read_library"]

MAX_EXPORTS: Final = 65536
MAX_IMPORTS: Final = 65536
MAX_NAME_BYTES: Final = 65536
_KERNEL_PARAMETERS: Final = (ValueType.I32,) * 3
_KERNEL_RESULTS: Final = (ValueType.I32,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LibraryExport:
    """One kernel: what the HAL says about it and where it is in the table."""

    export: ExecutableExport
    table_index: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LibraryImport:
    """A function the library takes from its host through the import table."""

    name: str
    optional: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A checked version 0.6 library."""

    name: str
    exports: tuple[LibraryExport, ...]
    imports: tuple[LibraryImport, ...]
    constant_count: int


class _Reader:
    """Reads structures of one module from guest memory; every failure names the member read."""

    def __init__(self, space: LinkSpace, module: LinkedModule) -> None:
        self.space = space
        self.module = module
        self.memory_length = space.memory.byte_length

    def refuse(self, member: str, problem: str, address: int | None = None) -> FormatError:
        where = f"executable library {self.module.name}"
        return FormatError(f"{member} {problem}", offset=address, where=where)

    def check(self, member: str, address: int, byte_length: int, alignment: int = 4) -> int:
        """Check a pointer read from the guest."""
        if address == 0:
            raise self.refuse(member, "is null")
        if address % alignment:
            raise self.refuse(member, f"is not aligned to {alignment}", address)
        if address + byte_length > self.memory_length:
            raise self.refuse(member, f"points to {byte_length} bytes outside of guest memory", address)
        return address

    def struct(self, member: str, address: int, layout: structs.Struct) -> dict[str, Any]:
        self.check(member, address, layout.byte_length, layout.alignment)
        return layout.unpack_from(self.space.read(address, layout.byte_length))

    def pointers(self, member: str, address: int, count: int) -> tuple[int, ...]:
        self.check(member, address, 4 * count)
        return struct.unpack(f"<{count}I", self.space.read(address, 4 * count))

    def string(self, member: str, address: int) -> str:
        self.check(member, address, 1, alignment=1)
        data = self.space.read(address, min(MAX_NAME_BYTES, self.memory_length - address))
        end = data.find(b"\0")
        if end < 0:
            raise self.refuse(member, "is not terminated", address)
        try:
            return data[:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.refuse(member, "is not UTF-8", address) from error

    def count(self, member: str, value: int, limit: int) -> int:
        if value > limit:
            raise self.refuse(member, f"is {value}, more than {limit}")
        return value


def read_library(space: LinkSpace, module: LinkedModule, address: int) -> Library:
    """Read what ``iree_hal_executable_library_query`` returned.

    Args:
        space: the link space the module lives in.
        module: the module.
        address: what the query returned; 0 means it supports no version we asked for.

    Raises:
        UnsupportedVersionError: the library is of another version.
        UnsupportedFeatureError: it needs host features or a sanitizer.
        FormatError: a member is malformed.
    """
    reader = _Reader(space, module)
    address &= 0xFFFFFFFF
    if address == 0:
        raise UnsupportedVersionError(
            f"supports no library version up to 0.{structs.LIBRARY_VERSION}",
            where=f"executable library {module.name}",
        )
    # The returned ``header**`` is the address of the first member of the library.
    header_address = reader.pointers("library", address, 1)[0]
    header = reader.struct("header", header_address, structs.LIBRARY_HEADER)
    _check_header(module.name, header)
    library = reader.struct("library", address, structs.LIBRARY)
    return Library(
        name=reader.string("header.name", header["name"]) if header["name"] else module.name,
        exports=_read_exports(reader, library),
        imports=_read_imports(reader, library),
        constant_count=reader.count("constants.count", library["constants.count"], MAX_IMPORTS),
    )


def _check_header(name: str, header: dict[str, Any]) -> None:
    where = f"executable library {name}"
    if header["version"] != structs.LIBRARY_VERSION:
        raise UnsupportedVersionError(
            f"library version {header['version']:#x}; this release reads {structs.LIBRARY_VERSION:#x} "
            f"(0.{structs.LIBRARY_VERSION})",
            where=where,
        )
    if header["features"]:
        raise UnsupportedFeatureError(f"needs host features {header['features']:#x}", where=where)
    if header["sanitizer"]:
        raise UnsupportedFeatureError(f"needs sanitizer {header['sanitizer']}", where=where)


def _read_imports(reader: _Reader, library: dict[str, Any]) -> tuple[LibraryImport, ...]:
    count = reader.count("imports.count", library["imports.count"], MAX_IMPORTS)
    if not count:
        return ()
    found = []
    for index, address in enumerate(reader.pointers("imports.symbols", library["imports.symbols"], count)):
        symbol = reader.string(f"imports.symbols[{index}]", address)
        found.append(LibraryImport(name=symbol.removeprefix("?"), optional=symbol.startswith("?")))
    return tuple(found)


def _read_exports(reader: _Reader, library: dict[str, Any]) -> tuple[LibraryExport, ...]:
    count = reader.count("exports.count", library["exports.count"], MAX_EXPORTS)
    if not count:
        return ()
    pointers = reader.pointers("exports.ptrs", library["exports.ptrs"], count)
    names = reader.pointers("exports.names", library["exports.names"], count)
    attributes_address = library["exports.attrs"]
    layout = structs.DISPATCH_ATTRIBUTES
    reader.check("exports.attrs", attributes_address, count * layout.byte_length, layout.alignment)
    found = []
    for ordinal in range(count):
        name = reader.string(f"exports.names[{ordinal}]", names[ordinal])
        address = attributes_address + ordinal * layout.byte_length
        attributes = reader.struct(f"exports.attrs[{ordinal}]", address, layout)
        _check_kernel(reader, f"exports.ptrs[{ordinal}]", pointers[ordinal])
        export = _export(reader, ordinal, name, attributes)
        found.append(LibraryExport(export=export, table_index=pointers[ordinal]))
    return tuple(found)


def _export(reader: _Reader, ordinal: int, name: str, attributes: dict[str, Any]) -> ExecutableExport:
    member = f"exports.attrs[{ordinal}]"
    pages = attributes["local_memory_pages"]
    return ExecutableExport(
        name=name,
        ordinal=ordinal,
        constant_count=reader.count(
            f"{member}.constant_count", attributes["constant_count"], structs.MAX_CONSTANT_COUNT
        ),
        binding_count=reader.count(
            f"{member}.binding_count", attributes["binding_count"], structs.MAX_BINDING_COUNT
        ),
        workgroup_size=(
            attributes["workgroup_size_x"],
            attributes["workgroup_size_y"],
            attributes["workgroup_size_z"],
        ),
        local_memory_bytes=pages * structs.LOCAL_MEMORY_PAGE_BYTES,
        flags=attributes["flags"],
    )


def _check_kernel(reader: _Reader, member: str, table_index: int) -> None:
    """A kernel must be a function of this module with the dispatch signature: the dispatcher calls it
    through the table, and another module's functions are none of this module's business."""
    module = reader.module
    if not module.table_base <= table_index < module.table_base + module.table_length:
        raise reader.refuse(member, f"is {table_index}, not a table slot of this module")
    function = reader.space.table.get(table_index)
    if function is None:
        raise reader.refuse(member, f"is table slot {table_index}, which is empty")
    if (
        tuple(function.parameter_types) != _KERNEL_PARAMETERS
        or tuple(function.result_types) != _KERNEL_RESULTS
    ):
        raise reader.refuse(member, "is a function of another type than (i32, i32, i32) -> i32")
