"""The runtime that pipelines import, for one store: what `guest_runtime` does not do inside the sandbox.

Every function of the host is in one table, by symbol. Failures are not raised through the guest: the
error functions note the first one and return Halide's code, so that the pipeline gives its memory back; the
call that entered the guest raises it.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ..engines.base import Function, RawCall
from ..errors import ClosedError, GuestError, OutOfMemoryError, PipelineError
from ..wasm.types import ValueType
from . import guest_runtime
from .failures import FAILURES, Failure
from .formatting import Formatter
from .guest_memory import GuestMemory, as_unsigned
from .memoization import MemoizationCache
from .profiler import Profiler
from .tasks import DEADLOCK, TaskRunner
from .team import HelperTeam, constant_per_worker
from .tracing import EventTracer
from .types import HalideType

if TYPE_CHECKING:
    from ..engines.base import Extern
    from ..linker import LinkSpace
    from .team import Workers

__all__ = ["HOST_SYMBOLS", "Runtime", "runtime_of"]

_I32, _I64, _F32, _F64 = ValueType.I32, ValueType.I64, ValueType.F32, ValueType.F64
_TYPES: Final = {"i": _I32, "l": _I64, "f": _F32, "d": _F64}

# Indices of halide_target_feature_t that pipelines may ask for at run time and that hold here.
_USABLE_FEATURES: Final = frozenset(
    {
        1,  # debug
        3,  # no_asserts
        4,  # no_bounds_query
        29,  # user_context
        30,  # profile
        31,  # no_runtime
        33,  # c_plus_plus_mangling
        47,  # trace_loads
        48,  # trace_stores
        49,  # trace_realizations
        50,  # trace_pipeline
        55,  # strict_float
        62,  # enable_llvm_loop_opt
        63,  # wasm_mvponly
        64,  # wasm_simd128
        65,  # wasm_threads
        66,  # wasm_bulk_memory
    }
)
_MOST_FEATURE_WORDS = 64

_runtimes: weakref.WeakKeyDictionary[LinkSpace, Runtime] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, slots=True)
class _HostFunction:
    """``types`` are the parameters, then ``:`` and the result, in letters of `_TYPES`."""

    types: str
    method: Callable[..., int | float | None]


class Runtime:
    """Halide's runtime over one link space. `runtime_of` makes one per space.

    With several workers its host functions are called in all of their threads at once.
    """

    def __init__(self, space: LinkSpace, workers: Workers | None = None) -> None:
        # Not owned: the runtime belongs to the space.
        self._space = weakref.ref(space)
        self.memory = GuestMemory(space.memory)
        self.print_sink: Callable[[str], object] = sys.stdout.write
        """Gets what pipelines print."""
        self.formatter = Formatter(self.memory)
        self.tasks = TaskRunner(self.memory, self._call_task)
        self.memoization = MemoizationCache(self.memory, space.heap)
        self.events = EventTracer(self.memory, space.tracer)
        self.profiler = Profiler(self.memory)
        self._heap = space.heap
        self._failure: Failure | None = None
        self._message: str | None = None
        self._blocks: set[int] = set()
        self._functions: dict[str, Function] = {}
        self._team = None if workers is None else HelperTeam(space, workers)
        self._list_count = 1 + len(space.replicas)
        self._lists = space.heap.allocate(guest_runtime.FREE_LISTS_BYTES * self._list_count)
        self._clear_lists(space)
        self._exports = self._instantiate(space)
        self.run: RawCall = self._exports["run"].prepare()
        """``run(entry, argv) -> code``: call a pipeline through the table on an empty shadow stack."""
        self._loop_calls = [self._exports["halide_do_loop_task"].prepare()]
        self._depth = 0

    def _instantiate(self, space: LinkSpace) -> Mapping[str, Function]:
        team = self._team
        lists = [self._lists + guest_runtime.FREE_LISTS_BYTES * number for number in range(self._list_count)]
        imports: dict[tuple[str, str], Extern] = {
            **space.platform,
            ("host", "free_lists"): constant_per_worker(space, lists),
            ("host", guest_runtime.HOST_ALLOCATE): space.make_function([_I32], [_I32], self._allocate),
            ("host", guest_runtime.HOST_FREE): space.make_function([_I32], [], self._free),
        }
        if team is not None:
            run_tasks = space.make_function([_I32] * 4, [_I32], self._do_parallel_tasks)
            imports |= {**team.imports(space), ("host", guest_runtime.HOST_RUN_TASKS): run_tasks}
        compiled = space.compile(guest_runtime.assemble(has_helpers=team is not None), name="halide_runtime")
        exports: Mapping[str, Function] = space.instantiate(compiled, imports).exports  # type: ignore[assignment]
        if team is not None:
            team.attach(space, exports)
        return exports

    def _clear_lists(self, space: LinkSpace) -> None:
        space.memory.clear(self._lists, guest_runtime.FREE_LISTS_BYTES * self._list_count)

    def run_parallel(self, entry: int, argv: int) -> int:
        """As `run`; the device's helpers take part in parallel loops."""
        if self._team is None or self._team.is_running:
            return self.run(entry, argv)
        return self._team.run(entry, argv)

    @property
    def worker_iterations(self) -> tuple[int, ...]:
        """By worker: iterations of parallel loops and tasks that it has begun in calls with helpers, ever."""
        return (0,) if self._team is None else self._team.iterations

    def symbols(self, names: Iterable[str]) -> dict[str, Function]:
        """Definitions of those of ``names`` that the runtime has."""
        found = {}
        for name in names:
            function = self._function(name)
            if function is not None:
                found[name] = function
        return found

    def _function(self, name: str) -> Function | None:
        if name in guest_runtime.RUNTIME_EXPORTS | guest_runtime.PARALLEL_SYMBOLS and name in self._exports:
            return self._exports[name]
        if name in self._functions:
            return self._functions[name]
        space = self._space()
        if space is None:
            return None
        if name in FAILURES:
            kind = FAILURES[name]

            def fail(_context: int, *values: int | float) -> int:
                self.note_failure(kind.decode(values, self.memory.text))
                return kind.code

            function = space.make_function(kind.parameter_types, [_I32], fail)
        elif name in HOST_SYMBOLS:
            item = HOST_SYMBOLS[name]
            parameters, _, result = item.types.partition(":")
            function = space.make_function(
                [_TYPES[letter] for letter in parameters],
                [_TYPES[letter] for letter in result],
                item.method.__get__(self),
            )
        else:
            return None
        self._functions[name] = function
        return function

    # Failures

    def note_failure(self, failure: Failure) -> None:
        """Remember the first failure of a call."""
        if self._failure is None:
            self._failure = failure

    def forget_failure(self) -> None:
        """Before a call: nothing has failed."""
        self._failure = None
        self._message = None

    def failure(self, code: int, pipeline: str) -> PipelineError:
        """The exception for a call that returned ``code``."""
        if self._failure is not None:
            return self._failure.to_error(pipeline)
        if self._team is not None and self._team.is_deadlocked:
            self._note_deadlock()
        message = self._message or f"the pipeline returned code {code}"
        return PipelineError(message, reason="generic_error", code=code, kernel=pipeline)

    def reset(self) -> None:
        """After a call that did not return: take back all memory it held."""
        self.tasks.reset()
        self.events.reset()
        self.profiler.reset()
        self.memoization.clear()
        self._depth = 0
        space = self._space()
        if space is None or space.closed:
            return
        self._clear_lists(space)
        if self._team is not None:
            self._team.reset()
        while self._blocks:
            self._heap.free(self._blocks.pop())

    # Memory

    def _allocate(self, byte_length: int) -> int:
        try:
            address = self._heap.allocate(as_unsigned(byte_length), guest_runtime.ALIGNMENT)
        except OutOfMemoryError:
            return 0
        self._blocks.add(address)
        return address

    def _free(self, address: int) -> None:
        address = as_unsigned(address)
        if address not in self._blocks:
            raise GuestError(f"a pipeline freed {address:#x}, which it was never given")
        self._blocks.discard(address)
        self._heap.free(address)

    def view(self, address: int, byte_length: int) -> memoryview:
        """Guest memory as a writable view. Raises as `sylvite.linker.LinkSpace.view` does."""
        space = self._space()
        if space is None:
            raise ClosedError("the link space is gone")
        return space.view(address, byte_length)

    @property
    def held_bytes(self) -> int:
        """Bytes of guest memory held for pipelines' intermediates, in use or kept for the next call."""
        return sum(self._heap.size_of(address) for address in self._blocks)

    # Tasks

    def _call_task(
        self, context: int, function: int, begin: int, extent: int, closure: int, parent: int
    ) -> int:
        # A prepared call owns its slots, and tasks call tasks: one for each depth.
        if self._depth == len(self._loop_calls):
            self._loop_calls.append(self._exports["halide_do_loop_task"].prepare())
        call = self._loop_calls[self._depth]
        self._depth += 1
        try:
            return call(context, function, begin, extent, closure, parent)
        finally:
            self._depth -= 1

    def _do_parallel_tasks(self, context: int, count: int, tasks: int, parent: int) -> int:
        code = self.tasks.run(context, count, as_unsigned(tasks), parent)
        if code == DEADLOCK:
            self._note_deadlock()
            return -1
        return code

    def _note_deadlock(self) -> None:
        self._message = (
            "the schedule's asynchronous stages wait for each other: it needs more threads than the "
            "device has"
        )

    def _thread_count(self, *_: int) -> int:
        return 1 if self._team is None else self._team.count

    # Text, errors, traces

    def _print(self, _context: int, text: int) -> None:
        self.print_sink(self.memory.text(text))

    def _error(self, _context: int, text: int) -> None:
        if self._message is None:
            self._message = self.memory.text(text).strip()

    def _string_to_string(self, target: int, end: int, text: int) -> int:
        return self.formatter.string(target, end, text)

    def _int64_to_string(self, target: int, end: int, value: int, digits: int) -> int:
        return self.formatter.signed(target, end, value, digits)

    def _uint64_to_string(self, target: int, end: int, value: int, digits: int) -> int:
        return self.formatter.unsigned(target, end, value, digits)

    def _double_to_string(self, target: int, end: int, value: float, scientific: int) -> int:
        return self.formatter.double(target, end, value, scientific)

    def _pointer_to_string(self, target: int, end: int, value: int) -> int:
        return self.formatter.pointer(target, end, value)

    def _type_to_string(self, target: int, end: int, value: int) -> int:
        return self.formatter.type(target, end, value)

    def _trace_helper(
        self,
        _context: int,
        func: int,
        value: int,
        coordinates: int,
        code: int,
        bits: int,
        lanes: int,
        event: int,
        parent: int,
        _value_index: int,
        dimensions: int,
        tag: int,
    ) -> int:
        value_type = HalideType.from_word((code & 0xFF) | (bits & 0xFF) << 8)
        return self.events.event(func, value, coordinates, value_type, lanes, event, parent, dimensions, tag)

    # Features, memoization, profiling

    def _can_use_target_features(self, count: int, features: int) -> int:
        if not 0 <= count <= _MOST_FEATURE_WORDS:
            return 0
        words = self.memory.unpack(f"{count}Q", features)
        wanted = {64 * at + bit for at, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1}
        return int(wanted <= _USABLE_FEATURES)

    def _cache_lookup(self, _c: int, key: int, size: int, bounds: int, count: int, buffers: int) -> int:
        return self.memoization.lookup(key, size, bounds, count, buffers)

    def _cache_store(
        self, _c: int, key: int, size: int, bounds: int, count: int, buffers: int, has: int, eviction: int
    ) -> int:
        return self.memoization.store(key, size, bounds, count, buffers, eviction if has else None)

    def _cache_release(self, _context: int, host: int) -> None:
        self.memoization.release(host)

    def _cache_evict(self, _context: int, eviction: int) -> None:
        self.memoization.evict(eviction)

    def _profiler_start(self, _context: int, name: int, count: int, names: int, instance: int) -> int:
        return self.profiler.begin(name, count, names, instance)

    def _profiler_end(self, _context: int, instance: int) -> int:
        return self.profiler.end(instance)

    def _profiler_allocate(self, _context: int, instance: int, stage: int, size: int) -> None:
        self.profiler.allocated(instance, stage, size)

    def _profiler_free(self, _context: int, instance: int, stage: int, size: int) -> None:
        self.profiler.allocated(instance, stage, -size)

    def _no_files(self, *_: int) -> int:
        return -1

    def _nothing(self, *_: int) -> int:
        return 0

    def _nothing_returned(self, *_: int) -> None:
        return None

    def _half_to_float(self, bits: int) -> float:
        value: float = struct.unpack("<e", (bits & 0xFFFF).to_bytes(2, "little"))[0]
        return value


_R = Runtime

HOST_SYMBOLS: Final[Mapping[str, _HostFunction]] = {
    "halide_do_parallel_tasks": _HostFunction("iiii:i", _R._do_parallel_tasks),
    "halide_get_num_threads": _HostFunction(":i", _R._thread_count),
    "halide_set_num_threads": _HostFunction("i:i", _R._thread_count),
    "halide_shutdown_thread_pool": _HostFunction(":", _R._nothing_returned),
    "halide_print": _HostFunction("ii:", _R._print),
    "halide_error": _HostFunction("ii:", _R._error),
    "halide_string_to_string": _HostFunction("iii:i", _R._string_to_string),
    "halide_int64_to_string": _HostFunction("iili:i", _R._int64_to_string),
    "halide_uint64_to_string": _HostFunction("iili:i", _R._uint64_to_string),
    "halide_double_to_string": _HostFunction("iidi:i", _R._double_to_string),
    "halide_pointer_to_string": _HostFunction("iii:i", _R._pointer_to_string),
    "halide_type_to_string": _HostFunction("iii:i", _R._type_to_string),
    "halide_trace_helper": _HostFunction("iiiiiiiiiiii:i", _R._trace_helper),
    "halide_can_use_target_features": _HostFunction("ii:i", _R._can_use_target_features),
    "halide_memoization_cache_lookup": _HostFunction("iiiiii:i", _R._cache_lookup),
    "halide_memoization_cache_store": _HostFunction("iiiiiiil:i", _R._cache_store),
    "halide_memoization_cache_release": _HostFunction("ii:", _R._cache_release),
    "halide_memoization_cache_evict": _HostFunction("il:", _R._cache_evict),
    "halide_profiler_instance_start": _HostFunction("iiiii:i", _R._profiler_start),
    "halide_profiler_instance_end": _HostFunction("ii:i", _R._profiler_end),
    "halide_profiler_memory_allocate": _HostFunction("iiil:", _R._profiler_allocate),
    "halide_profiler_memory_free": _HostFunction("iiil:", _R._profiler_free),
    "halide_debug_to_file": _HostFunction("iii:i", _R._no_files),
    "halide_msan_check_memory_is_initialized": _HostFunction("iili:i", _R._nothing),
    "halide_msan_check_buffer_is_initialized": _HostFunction("iii:i", _R._nothing),
    "halide_msan_annotate_memory_is_initialized": _HostFunction("iil:i", _R._nothing),
    "halide_msan_annotate_buffer_is_initialized": _HostFunction("ii:i", _R._nothing),
    "halide_msan_annotate_buffer_is_initialized_as_destructor": _HostFunction("ii:", _R._nothing_returned),
    "halide_float16_bits_to_float": _HostFunction("i:f", _R._half_to_float),
    "halide_float16_bits_to_double": _HostFunction("i:d", _R._half_to_float),
}
"""The host's functions by symbol."""


def runtime_of(space: LinkSpace, workers: Workers | None = None) -> Runtime:
    """The runtime of a link space, made when first asked for, and so with helpers or without."""
    runtime = _runtimes.get(space)
    if runtime is None:
        runtime = _runtimes[space] = Runtime(space, workers)
    return runtime
