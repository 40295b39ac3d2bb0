"""Functions of the wasmtime engine: checked calls, raw calls, host functions."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ...errors import ClosedError, InvalidArgumentError
from ..base import HostFunction, ValueType
from . import native
from .native import call_unchecked, ffi

if TYPE_CHECKING:
    from .deadlines import CallState
    from .store import WasmtimeStore

__all__ = ["WasmtimeFunction", "WasmtimeRawCall", "checked_number"]


class WasmtimeFunction:
    """A wasm or host function."""

    __slots__ = ("_signature", "native", "store")

    def __init__(self, store: WasmtimeStore, function: Any) -> None:
        self.store = store
        self.native = function
        self._signature: tuple[tuple[ValueType, ...], tuple[ValueType, ...]] | None = None

    @classmethod
    def create(
        cls,
        store: WasmtimeStore,
        parameter_types: tuple[ValueType, ...],
        result_types: tuple[ValueType, ...],
        function: HostFunction,
        thunks: list[Any],
        *,
        name: str,
    ) -> WasmtimeFunction:
        """Make a host function; ``thunks`` keeps its callback alive."""
        for value_type in (*parameter_types, *result_types):
            if value_type not in native.SLOT_TYPES:
                raise InvalidArgumentError(f"host function {name}: {value_type.name} cannot be passed to it")
        thunk = native.HostCallback(_host_thunk(store.state, parameter_types, result_types, function))
        thunks.append(thunk)
        result = ffi.wasmtime_func_t()
        function_type = native.function_type(parameter_types, result_types)
        native.new_host_function(
            native.address_of(store.context),
            native.address_of(function_type.ptr()),
            thunk,
            None,
            None,
            ctypes.addressof(result),
        )
        return cls(store, result)

    @property
    def parameter_types(self) -> Sequence[ValueType]:
        """Types of the parameters."""
        return self._types()[0]

    @property
    def result_types(self) -> Sequence[ValueType]:
        """Types of the results."""
        return self._types()[1]

    def __call__(self, *args: int | float) -> int | float | tuple[int | float, ...] | None:
        """Call it with conversions and checks; see the protocol."""
        parameters, results = self._types()
        if len(args) != len(parameters):
            raise InvalidArgumentError(f"the function takes {len(parameters)} arguments, got {len(args)}")
        count = max(len(parameters), len(results), 1)
        slots = (ctypes.c_uint8 * (count * native.SLOT_BYTES))()
        base = ctypes.addressof(slots)
        for index, (value_type, value) in enumerate(zip(parameters, args, strict=True)):
            slot_type = _slot_type(value_type)
            slot_type.from_address(base + index * native.SLOT_BYTES).value = checked_number(value_type, value)
        for value_type in results:
            _slot_type(value_type)
        trap = ctypes.c_void_p()
        store = self.store
        context = native.address_of(store.context)
        store.enter()
        try:
            error = call_unchecked(
                context, ctypes.addressof(self.native), base, count, ctypes.addressof(trap)
            )
        finally:
            store.leave()
        if error or trap.value:
            store.fail(error, trap.value)
        values = tuple(
            _slot_type(value_type).from_address(base + index * native.SLOT_BYTES).value
            for index, value_type in enumerate(results)
        )
        if len(values) == 1:
            single: int | float = values[0]
            return single
        return values or None

    def prepare(self) -> WasmtimeRawCall:
        """A prepared unchecked call with its own argument slots."""
        return WasmtimeRawCall(self)

    def _types(self) -> tuple[tuple[ValueType, ...], tuple[ValueType, ...]]:
        if self._signature is None:
            self._signature = native.signature_of(self.store.context, self.native)
        return self._signature


class WasmtimeRawCall:
    """The fast calling path: about a microsecond. Not re-entrant: it owns one set of slots."""

    __slots__ = (
        "_context",
        "_count",
        "_function",
        "_function_address",
        "_native_slots",
        "_result_type",
        "_slots",
        "_slots_address",
        "_state",
        "_store",
        "_trap",
        "_trap_address",
    )

    def __init__(self, function: WasmtimeFunction) -> None:
        parameters, results = function.parameter_types, function.result_types
        self._function = function
        self._store = function.store
        self._state = function.store.state
        self._context = function.store.context_address
        self._count = max(len(parameters), len(results), 1)
        self._native_slots = (ctypes.c_int64 * (2 * self._count))()
        self._slots = memoryview(self._native_slots).cast("B").cast("q")
        self._slots_address = ctypes.addressof(self._native_slots)
        self._function_address = ctypes.addressof(function.native)
        self._trap = ctypes.c_void_p()
        self._trap_address = ctypes.addressof(self._trap)
        if results and results[0] in (ValueType.I64, ValueType.F64):
            self._result_type: Any = ctypes.c_int64.from_buffer(self._native_slots)
        else:
            self._result_type = ctypes.c_int32.from_buffer(self._native_slots)
        if not results:
            self._result_type = ctypes.c_int32(0)

    def set_arguments(self, *args: int) -> None:
        """Store integer ``args`` for calls that give fewer; see the protocol."""
        for index, value in enumerate(args):
            self._slots[2 * index] = value

    def __call__(self, *args: int) -> int:
        """Store integer ``args``, call, return the first result; see the protocol."""
        slots = self._slots
        index = 0
        for value in args:
            slots[index] = value
            index += 2
        state = self._state
        thread = get_ident()
        # The body of enter() and leave(), inline.
        if state.depth:
            self._store.enter()
        else:
            state.depth = 1
            previous, state.thread = state.thread, thread
            state.interrupted = False
            try:
                if state.closed:
                    raise ClosedError("the store is closed")
                if thread != previous:
                    self._store.require_stack()
                if state.deadline_ns is not None:
                    expires_ns = time.monotonic_ns() + state.deadline_ns
                    state.expires_ns = expires_ns
                    self._store.watchdog.arm(expires_ns)
                if state.alarm:
                    state.settle()
            except BaseException:
                state.expires_ns = None
                state.thread = state.depth = 0
                raise
        try:
            error = call_unchecked(
                self._context, self._function_address, self._slots_address, self._count, self._trap_address
            )
        except BaseException:
            # Control-C while the guest ran: what the call returned is lost, and not the next call's.
            self._trap.value = None
            raise
        finally:
            if state.depth == 1:
                state.depth = 0
                state.expires_ns = None
            else:
                state.depth -= 1
        if error or self._trap.value:
            trap, self._trap.value = self._trap.value, None
            self._store.fail(error, trap)
        result: int = self._result_type.value
        return result


def _host_thunk(
    state: CallState,
    parameter_types: tuple[ValueType, ...],
    result_types: tuple[ValueType, ...],
    function: HostFunction,
) -> Callable[..., int]:
    """The C callback of a host function.

    An exception cannot cross the guest's frames: it waits in ``state.pending``, a trap unwinds the guest,
    and the call that entered the guest raises it again.
    """
    readers = [
        (native.SLOT_TYPES[value_type].from_address, index * native.SLOT_BYTES)
        for index, value_type in enumerate(parameter_types)
    ]
    writers = [
        (native.SLOT_TYPES[value_type].from_address, index * native.SLOT_BYTES)
        for index, value_type in enumerate(result_types)
    ]

    def thunk(_environment: int, _caller: int, slots: int, _count: int) -> int:
        try:
            values: Any = function(*[read(slots + offset).value for read, offset in readers])
            if len(writers) == 1:
                values = (values,)
            elif not writers:
                values = () if values is None else (values,)
            if len(values) != len(writers):
                raise InvalidArgumentError(
                    f"a host function returned {len(values)} values, its type has {len(writers)}"
                )
            for (write, offset), value in zip(writers, values, strict=True):
                write(slots + offset).value = value
        except BaseException as error:  # noqa: BLE001 - see above; it is raised again
            state.pending = error
            return native.address_of(ffi.wasmtime_trap_new(b"host", 4)) or 0
        return 0

    return thunk


def _slot_type(value_type: ValueType) -> Any:
    slot_type = native.SLOT_TYPES.get(value_type)
    if slot_type is None:
        raise InvalidArgumentError(f"values of type {value_type.name} cannot be passed by the host")
    return slot_type


def checked_number(value_type: ValueType, value: int | float) -> int | float:
    """``value`` as a number of a type; integers may be given signed or unsigned.

    Raises:
        InvalidArgumentError: not a number of that type.
    """
    if value_type in (ValueType.F32, ValueType.F64):
        if not isinstance(value, (int, float)):
            raise InvalidArgumentError(f"expected a number for {value_type.name}, got {value!r}")
        try:
            return float(value)
        except OverflowError as error:
            raise InvalidArgumentError(f"{value_type.name} cannot hold an int that large") from error
    if not isinstance(value, int):
        raise InvalidArgumentError(f"expected an int for {value_type.name}, got {value!r}")
    bits = 32 if value_type == ValueType.I32 else 64
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise InvalidArgumentError(f"{value} does not fit {value_type.name}")
    return value
