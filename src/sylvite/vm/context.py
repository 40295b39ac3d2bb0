"""Contexts: modules linked together, with the state they run on.

Modules are linked in the order given. Each may import from those before it; its initializer runs
before the next is linked. A context is one program: calls into it are serialized by a lock, and the
machine's limits hold for each call.

Source: IREE ``runtime/src/iree/vm/context.h`` (order of linking, rules of imports).
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..engines.base import Limits
from ..errors import ClosedError, InvalidArgumentError, LinkError, NotFoundError, SylviteError
from ..trace import Tracer
from ..translator import is_repeatable
from ..vmfb import Archive, ImportFunction
from ..vmfb.calling_convention import CallingConvention, parse_calling_convention
from .frames import translate_error
from .module import BytecodeModule, ModuleInstance
from .native import NativeModule
from .recording import CallRecorder, Recording, is_recordable
from .refs import HostHeap
from .types import ReferenceTypes
from .values import make_converters
from .watch import Watch

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..hal import Device

__all__ = ["AnyModule", "Context", "FunctionHandle"]

AnyModule: TypeAlias = "NativeModule | BytecodeModule | Archive"

_INITIALIZER = "__init"
_DEINITIALIZER = "__deinit"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FunctionHandle:
    """An exported function of a module in a context. Calling it is `Context.invoke`."""

    context: Context = dataclasses.field(repr=False)
    module_name: str
    name: str
    calling_convention: str
    attrs: Mapping[str, str] = dataclasses.field(repr=False)
    _call: Callable[..., Any] = dataclasses.field(repr=False)
    _converters: tuple[Callable[[Any], Any], ...] = dataclasses.field(repr=False)

    @property
    def full_name(self) -> str:
        """``module.function``."""
        return f"{self.module_name}.{self.name}"

    @property
    def signature(self) -> CallingConvention:
        """The parsed calling convention."""
        return parse_calling_convention(self.calling_convention)

    def __call__(self, *arguments: Any) -> Any:
        """`Context.invoke` with this function."""
        return self.context.invoke(self, *arguments)


@dataclasses.dataclass(slots=True, kw_only=True)
class _Linked:
    """A module within a context: what it offers, and what has to be closed."""

    name: str
    version: int
    functions: Mapping[str, tuple[str, Callable[..., Any]]]
    attrs: Callable[[str], Mapping[str, str]]
    close: Callable[[], None]
    instance: ModuleInstance | None = None


class Context:
    """Modules linked together. See the module docstring."""

    def __init__(
        self,
        modules: Sequence[AnyModule],
        *,
        limits: Limits | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Link ``modules`` in order and run their initializers.

        Args:
            modules: native modules, bytecode modules, or archives of such.
            limits: ``deadline_ns`` bounds each call and each initializer; ``memory_bytes`` the host
                memory of buffers and lists that programs make.
            tracer: gets a span per call when anybody listens.

        Raises:
            LinkError: imports or dependencies that are missing or do not match; all of a module are
                named.
            GuestError: an initializer failed.
        """
        self._limits = limits or Limits()
        self._tracer = tracer
        self._lock = threading.RLock()
        self._watch = Watch()
        self._nesting = 0
        self._is_closed = False
        self.heap = HostHeap(self._limits.memory_bytes)
        self._types = ReferenceTypes(modules)
        self._linked: dict[str, _Linked] = {}
        self._handles: dict[str, FunctionHandle] = {}
        try:
            for module in modules:
                self._link(module)
        except BaseException:
            self._drop()
            raise

    # Linking.

    def _link(self, module: AnyModule) -> None:
        if isinstance(module, Archive):
            module = BytecodeModule(module)
        if module.name in self._linked:
            raise LinkError(f"a module named {module.name} is already linked", module=module.name)
        if isinstance(module, NativeModule):
            self._linked[module.name] = _link_native(module, self._watch)
            return
        imports = self._resolve(module)
        instance = ModuleInstance(module, imports, types=self._types, watch=self._watch, heap=self.heap)
        self._linked[module.name] = _link_bytecode(module, instance)
        self._run_hook(module.name, _INITIALIZER)

    def _resolve(self, module: BytecodeModule) -> list[Callable[..., Any] | None]:
        """Callables for the module's imports.

        Raises:
            LinkError: naming everything that is missing or does not match.
        """
        problems: list[str] = []
        symbols: list[str] = []
        for dependency in module.definition.dependencies:
            found = self._linked.get(dependency.name)
            if found is None:
                if not dependency.is_optional:
                    problems.append(f"module {dependency.name} is not there")
                    symbols.append(dependency.name)
            elif not dependency.is_optional and found.version < dependency.minimum_version:
                problems.append(
                    f"module {dependency.name} has version {found.version}, but at least "
                    f"{dependency.minimum_version} is needed"
                )
                symbols.append(dependency.name)
        callables: list[Callable[..., Any] | None] = []
        for wanted in module.definition.imports:
            try:
                callables.append(self._resolve_import(wanted))
            except LinkError as error:
                problems.append(str(error))
                symbols.append(wanted.full_name)
        if problems:
            raise LinkError(
                f"module {module.name} cannot be linked:\n" + "\n".join(f"  {text}" for text in problems),
                module=module.name,
                symbols=symbols,
            )
        return callables

    def _resolve_import(self, wanted: ImportFunction) -> Callable[..., Any] | None:
        linked = self._linked.get(wanted.module_name)
        found = linked.functions.get(wanted.local_name) if linked is not None else None
        if found is None:
            if wanted.is_optional:
                return None
            reason = "its module is not there" if linked is None else "its module does not have it"
            raise LinkError(f"import {wanted.full_name}: {reason}")
        convention, call = found
        if parse_calling_convention(convention) != wanted.signature:
            raise LinkError(
                f"import {wanted.full_name}: calling convention {wanted.calling_convention} is wanted, but "
                f"the function has {convention}"
            )
        return call

    def _run_hook(self, module_name: str, function_name: str) -> None:
        """Call an initializer or deinitializer, where there is one."""
        if function_name in self._linked[module_name].functions:
            self.invoke(f"{module_name}.{function_name}")

    # Calling.

    @property
    def module_names(self) -> tuple[str, ...]:
        """Names of the linked modules, in order."""
        return tuple(self._linked)

    def function_names(self, module_name: str) -> tuple[str, ...]:
        """Names that a module exports, without initializers.

        Raises:
            NotFoundError: there is no such module.
        """
        linked = self._linked.get(module_name)
        if linked is None:
            raise NotFoundError(f"no module {module_name!r}; there are: {', '.join(self._linked) or 'none'}")
        return tuple(name for name in linked.functions if not name.startswith("__"))

    def lookup(self, full_name: str) -> FunctionHandle:
        """The exported function ``module.function``.

        Raises:
            NotFoundError: there is none; the message lists what there is.
            ClosedError: the context is closed.
        """
        handle = self._handles.get(full_name)
        if handle is not None:
            return handle
        if self._is_closed:
            raise ClosedError("the context is closed")
        for module_name, linked in self._linked.items():
            name = full_name[len(module_name) + 1 :]
            if full_name.startswith(f"{module_name}.") and name in linked.functions:
                break
        else:
            known = [
                f"{module_name}.{name}"
                for module_name in self._linked
                for name in self.function_names(module_name)
            ]
            raise NotFoundError(f"no function {full_name!r}; there are: {', '.join(known) or 'none'}")
        convention, call = linked.functions[name]
        handle = FunctionHandle(
            context=self,
            module_name=module_name,
            name=name,
            calling_convention=convention,
            attrs=linked.attrs(name),
            _call=call,
            _converters=make_converters(parse_calling_convention(convention)),
        )
        return self._handles.setdefault(full_name, handle)

    def invoke(self, function: str | FunctionHandle, *arguments: Any, timeout_ns: int | None = None) -> Any:
        """Call an exported function and return its result: None, a value, or a tuple of several.

        Args:
            function: its name (``module.function``) or a handle of this context.
            arguments: ints, floats, and references (or None), as its calling convention says.
            timeout_ns: longest time the call may take; the context's limit holds too. Time within
                native functions counts, but is only looked at between them.

        Raises:
            InvalidArgumentError: wrong number, type or range of arguments.
            NotFoundError: no such function.
            ClosedError: the context is closed.
            GuestError: the program failed, by itself or at a limit.
        """
        handle = self.lookup(function) if isinstance(function, str) else function
        values = self._convert(handle, arguments)
        del arguments
        return self._run(handle, handle._call, values, timeout_ns)

    def record(
        self, handle: FunctionHandle, device: Device, *arguments: Any, timeout_ns: int | None = None
    ) -> tuple[Any, Recording | None]:
        """`invoke` a function of a bytecode module and note what it does.

        Args:
            handle: the function; it is repeatable (`is_repeatable`).
            device: the device it may use.
            arguments: buffer views.
            timeout_ns: as for `invoke`.

        Returns:
            What `invoke` returns; and the recording, or ``None`` when the call cannot be done again.

        Raises: as `invoke`.
        """
        values = self._convert(handle, arguments)
        recorder = CallRecorder(device, arguments)
        with self._lock:
            instance, ordinal = self._find(handle)
            with instance.wrapped(recorder.wrap) as functions:
                results = self._run(handle, functions[ordinal], values, timeout_ns)
        return results, recorder.finish(results)

    def is_repeatable(self, handle: FunctionHandle) -> bool:
        """Whether calls of a function may be recorded with `record`; takes a look at all of its module."""
        instance, ordinal = self._find(handle)
        return is_repeatable(instance.definition, ordinal, is_recordable)

    def _find(self, handle: FunctionHandle) -> tuple[ModuleInstance, int]:
        linked = self._linked.get(handle.module_name)
        if linked is None:
            raise ClosedError("the context is closed")
        instance = linked.instance
        ordinal = None if instance is None else instance.definition.export_ordinal(handle.name)
        if instance is None or ordinal is None:
            raise InvalidArgumentError(f"{handle.full_name} is not bytecode, which alone can be recorded")
        return instance, ordinal

    def _convert(self, handle: FunctionHandle, arguments: Sequence[Any]) -> list[Any]:
        if handle.context is not self:
            raise InvalidArgumentError(f"{handle.full_name} belongs to another context")
        converters = handle._converters
        if len(arguments) != len(converters):
            raise InvalidArgumentError(
                f"{handle.full_name} takes {len(converters)} arguments, not {len(arguments)}"
            )
        return [convert(value) for convert, value in zip(converters, arguments, strict=True)]

    def _run(
        self, handle: FunctionHandle, call: Callable[..., Any], values: list[Any], timeout_ns: int | None
    ) -> Any:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the context is closed")
            if self._nesting == 0:
                self._watch.start(_shorter(timeout_ns, self._limits.deadline_ns))
            self._nesting += 1
            try:
                return self._call(handle, call, values)
            except Exception as error:
                raised = translate_error(error)
                if raised is error:
                    raise
                raise raised from error
            finally:
                self._nesting -= 1

    def _call(self, handle: FunctionHandle, call: Callable[..., Any], values: list[Any]) -> Any:
        tracer = self._tracer
        if tracer is not None and tracer.enabled:
            with tracer.span(handle.full_name, category="vm"):
                return call(*values)
        return call(*values)

    def interrupt(self) -> None:
        """Stop the call that is running, from any thread: it raises ProgramError (``CANCELLED``) when
        it next closes a loop. Nothing happens when none is running."""
        self._watch.interrupt()

    # Closing.

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """Run the modules' deinitializers, last first, and drop all state. Idempotent.

        Raises:
            SylviteError: the first failure of a deinitializer, after everything was dropped.
        """
        with self._lock:
            if self._is_closed:
                return
            failure: SylviteError | None = None
            for name in reversed(self._linked):
                try:
                    self._run_hook(name, _DEINITIALIZER)
                except SylviteError as error:
                    failure = failure or error
            self._drop()
            if failure is not None:
                raise failure

    def _drop(self) -> None:
        self._is_closed = True
        for linked in reversed(self._linked.values()):
            linked.close()
        self._linked.clear()
        self._handles.clear()

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
        return f"<Context of {', '.join(self._linked)}{' (closed)' if self._is_closed else ''}>"


def _shorter(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _link_native(module: NativeModule, watch: Watch) -> _Linked:
    state = module.create_state()
    module.bound_state(state, watch)
    return _Linked(
        name=module.name,
        version=module.version,
        functions={
            name: (function.calling_convention, functools.partial(function.call, state))
            for name, function in module.functions.items()
        },
        attrs=lambda name: {},
        close=lambda: module.close_state(state),
    )


def _link_bytecode(module: BytecodeModule, instance: ModuleInstance) -> _Linked:
    definition = module.definition
    ordinals = {export.name: export.ordinal for export in definition.exports}
    return _Linked(
        name=module.name,
        version=module.version,
        functions={
            name: (definition.functions[ordinal].calling_convention, instance.functions[ordinal])
            for name, ordinal in ordinals.items()
        },
        attrs=lambda name: definition.functions[ordinals[name]].attrs,
        close=instance.close,
        instance=instance,
    )
