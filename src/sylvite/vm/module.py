"""Bytecode modules: what contexts share of one, and its instance within a context."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import ClosedError, ProgramError, StatusCode
from ..translator import NUMERICS, TranslatedModule, translate
from ..vmfb import Archive, ModuleDef, open_archive
from .operations import OPERATIONS, checked_list, checked_range, hash_bytes
from .refs import HostHeap, VmBuffer, VmList
from .types import ReferenceTypes
from .watch import Watch

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..engines.code_cache import CodeCache

__all__ = ["INSTANCE_KEY", "BytecodeModule", "ModuleInstance"]

INSTANCE_KEY = "instance"
"""Where the namespace of generated code names its `ModuleInstance`."""


class BytecodeModule:
    """A module archive translated to Python. One may be linked into several contexts."""

    def __init__(self, archive: Archive, *, cache: CodeCache | None = None) -> None:
        """Translate ``archive``. The archive must stay open until every context has been made.

        Args:
            archive: the module; its bytecode is verified if that was not done.
            cache: where translations are kept on disk.

        Raises:
            FormatError: its bytecode is malformed or cannot be translated.
            UnsupportedFeatureError: it uses an extension that it does not require.
        """
        self.archive = archive
        self.definition: ModuleDef = archive.module
        self.translated: TranslatedModule = translate(archive.module, verified=archive.verified, cache=cache)
        self._lock = threading.Lock()
        self._rodata: tuple[VmBuffer, ...] | None = None
        self._is_closed = False

    @classmethod
    def open(cls, source: str | os.PathLike[str] | bytes | memoryview, *, where: str | None = None) -> Self:
        """Open and translate an archive. Raises what `sylvite.vmfb.open_archive` raises."""
        return cls(open_archive(source, where=where))

    @property
    def name(self) -> str:
        """The name under which others import from it."""
        return self.definition.name

    @property
    def version(self) -> int:
        """Its version."""
        return self.definition.version

    @property
    def rodata(self) -> tuple[VmBuffer, ...]:
        """The read-only data segments: views of the archive."""
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"module {self.name} is closed")
            if self._rodata is None:
                count = len(self.definition.rodata)
                self._rodata = tuple(VmBuffer(self.archive.rodata(index)) for index in range(count))
            return self._rodata

    def close(self) -> None:
        """Give the archive back; contexts that use the module keep what they need. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._rodata = None
        self.archive.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BytecodeModule {self.name!r} from {self.definition.where}>"


class ModuleInstance:
    """A bytecode module's state within one context: globals, imports, and its bound functions."""

    def __init__(
        self,
        module: BytecodeModule,
        imports: Sequence[Callable[..., Any] | None],
        *,
        types: ReferenceTypes,
        watch: Watch,
        heap: HostHeap,
    ) -> None:
        """Bind ``module``. ``imports`` has a callable for each of its imports, or None for an
        optional one that is not there."""
        self.module = module
        self.definition = module.definition
        self._globals = bytearray(-(-module.definition.global_bytes // 8) * 8)
        self._references: list[Any] = [None] * module.definition.global_ref_count
        namespace: dict[str, Any] = {"__builtins__": {}, INSTANCE_KEY: self, **NUMERICS, **OPERATIONS}
        namespace |= {
            "C": module.translated.constants,
            "R": module.rodata,
            "fail": _fail,
            "tick": watch.look,
            "enter": watch.enter,
            "leave": watch.leave,
        }
        namespace |= self._import_names(imports)
        namespace |= self._global_names()
        namespace |= self._heap_names(types, watch, heap)
        for index, type_name in enumerate(module.definition.types):
            check = types[type_name]
            namespace[f"k{index}"] = check.known
            namespace[f"t{index}"] = check.check
        exec(module.translated.code, namespace)  # built from integers and fixed text only
        self.namespace = namespace
        self.functions: tuple[Callable[..., Any], ...] = self._functions_of(namespace)

    def _functions_of(self, namespace: dict[str, Any]) -> tuple[Callable[..., Any], ...]:
        return tuple(namespace[f"F{ordinal}"] for ordinal in range(len(self.definition.functions)))

    @contextlib.contextmanager
    def wrapped(
        self, wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]
    ) -> Iterator[tuple[Callable[..., Any], ...]]:
        """The functions over the same state, but calling ``wrap(full name, import)`` for each import."""
        namespace = dict(self.namespace)
        for ordinal, wanted in enumerate(self.definition.imports):
            namespace[f"I{ordinal}"] = wrap(wanted.full_name, namespace[f"I{ordinal}"])
        exec(self.module.translated.code, namespace)  # as in __init__
        try:
            yield self._functions_of(namespace)
        finally:
            # As in close.
            namespace.clear()

    def _import_names(self, imports: Sequence[Callable[..., Any] | None]) -> dict[str, Any]:
        names: dict[str, Any] = {"P": tuple(0 if function is None else 1 for function in imports)}
        for ordinal, function in enumerate(imports):
            if function is None:
                function = _make_unresolved(self.definition.imports[ordinal].full_name)
            names[f"I{ordinal}"] = function
        return names

    def _global_names(self) -> dict[str, Any]:
        """Names of the globals: views by type, and accessors for computed places."""
        names: dict[str, Any] = {"gr": self._references}
        view: Any = memoryview(self._globals)
        for kind, letter, name in (
            ("i32", "i", "gi"),
            ("i64", "q", "gq"),
            ("f32", "f", "gf"),
            ("f64", "d", "gd"),
        ):
            names[name] = view.cast(letter)
            limit = self.definition.global_bytes
            names[f"get_{kind}"], names[f"set_{kind}"] = _make_accessors(view, letter, limit)
        names["get_ref"], names["set_ref"] = _make_reference_accessors(self._references)
        return names

    def _heap_names(self, types: ReferenceTypes, watch: Watch, heap: HostHeap) -> dict[str, Any]:
        """Names of what allocates, or looks at types or the deadline."""
        type_names = self.definition.types
        matchers = [types.matcher(name) for name in type_names]

        def buffer_alloc(length: int, alignment: int) -> VmBuffer:
            return VmBuffer.allocate(length & 0xFFFFFFFFFFFFFFFF, heap=heap)

        def buffer_clone(source: object, offset: int, length: int, alignment: int) -> VmBuffer:
            view = checked_range(source, offset, length, write=False)
            clone = VmBuffer.allocate(length, heap=heap)
            clone.data[:] = view
            return clone

        def buffer_hash(source: object, offset: int, length: int) -> int:
            return hash_bytes(checked_range(source, offset, length, write=False), watch.look)

        def list_alloc(type_index: int, capacity: int) -> VmList:
            name = type_names[type_index]
            result = VmList("?" if name == "!vm.opaque" else name, heap=heap)
            result.check_capacity(capacity & 0xFFFFFFFF)
            return result

        def list_get_ref(source: object, index: int, type_index: int, move: bool) -> Any:
            value = checked_list(source).get_reference(index & 0xFFFFFFFF, move=move)
            return value if matchers[type_index](value) else None

        def list_set_ref(target: object, index: int, value: object) -> None:
            known = checked_list(target)
            if known.element_type != "?":
                types[known.element_type].check(value)
            known.set_reference(index & 0xFFFFFFFF, value)

        return {
            "buffer_alloc": buffer_alloc,
            "buffer_clone": buffer_clone,
            "buffer_hash": buffer_hash,
            "list_alloc": list_alloc,
            "list_get_ref": list_get_ref,
            "list_set_ref": list_set_ref,
        }

    def close(self) -> None:
        """Drop globals, imports and functions. Idempotent."""
        self.functions = ()
        self._references.clear()
        # Functions refer to the namespace and it to them: without this they would wait for the
        # garbage collector, and the buffers in globals with them.
        self.namespace.clear()


def _fail(code: int, message: str) -> ProgramError:
    """The error of ``vm.fail``. A code that is none of IREE's becomes ``UNKNOWN``."""
    try:
        status = StatusCode(code & 0x1F)
    except ValueError:
        status = StatusCode.UNKNOWN
    return ProgramError(
        message or "the program failed", status=StatusCode.UNKNOWN if status is StatusCode.OK else status
    )


def _make_unresolved(name: str) -> Callable[..., Any]:
    def call(*arguments: object) -> Any:
        raise ProgramError(f"optional import {name} is not resolved", status=StatusCode.NOT_FOUND)

    return call


def _make_accessors(
    view: Any, letter: str, limit: int
) -> tuple[Callable[[int], Any], Callable[[int, Any], None]]:
    """Checked access to a global at any byte offset."""

    def place(byte_offset: int) -> Any:
        start = byte_offset & 0xFFFFFFFF
        size = 8 if letter in "qd" else 4
        if start + size > limit:
            raise ProgramError(
                f"global at byte {start} is out of range of {limit} bytes", status=StatusCode.OUT_OF_RANGE
            )
        return view[start : start + size].cast(letter)

    def get(byte_offset: int) -> Any:
        return place(byte_offset)[0]

    def set_(byte_offset: int, value: Any) -> None:
        place(byte_offset)[0] = value

    return get, set_


def _make_reference_accessors(
    references: list[Any],
) -> tuple[Callable[[int, bool], Any], Callable[[int, Any], None]]:
    """Checked access to a global reference by its ordinal."""

    def check(ordinal: int) -> int:
        if not 0 <= ordinal < len(references):
            raise ProgramError(
                f"global reference {ordinal & 0xFFFFFFFF} is out of range of {len(references)}",
                status=StatusCode.OUT_OF_RANGE,
            )
        return ordinal

    def get(ordinal: int, move: bool) -> Any:
        value = references[check(ordinal)]
        if move:
            references[ordinal] = None
        return value

    def set_(ordinal: int, value: Any) -> None:
        references[check(ordinal)] = value

    return get, set_


def exports_of(definition: ModuleDef) -> Mapping[str, int]:
    """Exported names and the ordinals of their functions."""
    return {export.name: export.ordinal for export in definition.exports}
