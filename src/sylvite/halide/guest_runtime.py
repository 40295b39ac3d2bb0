"""The part of Halide's runtime that runs inside the sandbox, as a generated module.

What pipelines call often is here, so that it costs no call to the host: memory, parallel loops,
semaphores and mutexes. One instance serves one store. Memory blocks of up to 1 MiB are kept in lists of
free blocks by size class, which start in a region of the host's; larger ones go to the host each time.
Every worker has lists of its own, so that they need no lock. With several workers `scheduler` does the
parallel part.

Source: ``HalideRuntime.h``: the functions' types and meaning.
"""

from __future__ import annotations

import functools
from typing import Final

from ..wasm import FunctionBuilder, ModuleBuilder
from ..wasm.types import FunctionType, ValueType
from . import layouts
from .jobs import SCHEDULER_IMPORTS
from .scheduler import Platform, Scheduler

__all__ = [
    "ALIGNMENT",
    "CLASS_COUNT",
    "FREE_LISTS_BYTES",
    "HEADER_BYTES",
    "HOST_ALLOCATE",
    "HOST_FREE",
    "HOST_RUN_TASKS",
    "LARGE_CLASS",
    "PARALLEL_SYMBOLS",
    "RUNTIME_EXPORTS",
    "assemble",
]

ALIGNMENT: Final = 128
"""Alignment of ``halide_malloc``, in bytes."""

HEADER_BYTES: Final = 128
"""Bytes before each block: its class at -128 and, while it is free, the next free block at -124."""

SMALLEST_LOG2: Final = 7
LARGEST_LOG2: Final = 20
STEPS_LOG2: Final = 2
CLASS_COUNT: Final = (LARGEST_LOG2 - SMALLEST_LOG2) << STEPS_LOG2
FREE_LISTS_BYTES: Final = 4 * CLASS_COUNT
LARGE_CLASS: Final = -1
"""Class of blocks that go back to the host."""

HOST_ALLOCATE: Final = "allocate"
HOST_FREE: Final = "free"
HOST_RUN_TASKS: Final = "run_tasks"
"""What ``halide_do_parallel_tasks`` calls outside of calls that have helpers."""

_I32 = ValueType.I32
_TASK = FunctionType(parameters=(_I32,) * 3, results=(_I32,))
_LOOP_TASK = FunctionType(parameters=(_I32,) * 5, results=(_I32,))
_ARGV = FunctionType(parameters=(_I32,), results=(_I32,))

RUNTIME_EXPORTS: Final = frozenset(
    {
        "halide_malloc",
        "halide_free",
        "halide_do_par_for",
        "halide_do_task",
        "halide_do_loop_task",
        "halide_semaphore_init",
        "halide_semaphore_release",
        "halide_semaphore_try_acquire",
        "halide_mutex_lock",
        "halide_mutex_unlock",
        "halide_mutex_array_create",
        "halide_mutex_array_destroy",
        "halide_mutex_array_lock",
        "halide_mutex_array_unlock",
        "halide_profiler_set_current_func",
        "halide_profiler_enable_instance",
        "halide_profiler_acquire_sampling_token",
        "halide_profiler_release_sampling_token",
        "halide_profiler_init_sampling_token",
        "halide_profiler_incr_active_threads",
        "halide_profiler_decr_active_threads",
    }
)
"""Symbols of the Halide runtime that the module defines."""

PARALLEL_SYMBOLS: Final = frozenset({"halide_do_par_for", "halide_do_parallel_tasks"})
"""Symbols whose import tells that a pipeline can use several workers."""


@functools.cache
def assemble(*, has_helpers: bool = False) -> bytes:
    """The module. It imports ``env.memory``, ``env.__indirect_function_table``, the stack's globals,
    ``host.free_lists`` (address of `FREE_LISTS_BYTES` zero bytes), ``host.allocate(bytes) -> address or 0``
    and ``host.free(address)``. Besides `RUNTIME_EXPORTS` it exports ``run(entry, argv) -> code``, which
    calls a pipeline on an empty shadow stack, and ``call_loop_task``.

    With helpers it defines ``halide_do_parallel_tasks``, too, and imports from ``host`` what the scheduler
    needs: constants, and the device's functions to ``open`` a call for helpers, ``summon`` and ``gather``
    them."""
    module = ModuleBuilder("sylvite_halide_runtime")
    module.import_memory("env", "memory", 0)
    module.import_table("env", "__indirect_function_table", 0)
    stack_pointer = module.import_global("env", "__stack_pointer", _I32, mutable=True)
    stack_top = module.import_global("env", "__stack_high", _I32)
    lists = module.import_global("host", "free_lists", _I32)
    platform, constants = None, {}
    if has_helpers:
        constants = {name: module.import_global("host", name, _I32) for name in SCHEDULER_IMPORTS}
        stack_low = module.import_global("env", "__stack_low", _I32)
    allocate = module.import_function("host", HOST_ALLOCATE, [_I32], [_I32])
    free = module.import_function("host", HOST_FREE, [_I32], [])
    if has_helpers:
        platform = Platform(
            stack_pointer=stack_pointer,
            stack_low=stack_low,
            stack_top=stack_top,
            open=module.import_function("host", "open", [_I32, _I32], []),
            summon=module.import_function("host", "summon", [_I32], []),
            gather=module.import_function("host", "gather", [_I32], []),
            run_alone=module.import_function("host", HOST_RUN_TASKS, [_I32] * 4, [_I32]),
        )

    run = module.function("run", [_I32, _I32], [_I32], export=True)
    run.emit("global.get", stack_top).emit("global.set", stack_pointer)
    run.get(1).get(0).emit("call_indirect", _ARGV, 0)

    malloc = _emit_malloc(module, lists, allocate)
    release = _emit_free(module, lists, free)
    if platform is None:
        _emit_parallel_for(module)
        _emit_semaphores(module)
        _emit_mutexes(module)
    else:
        scheduler = Scheduler(module, constants, platform)
        _emit_shared_mutexes(module, scheduler, malloc, release)
    _emit_tasks(module)
    _emit_profiler(module)
    return module.build()


def _emit_malloc(module: ModuleBuilder, lists: int, allocate: int) -> FunctionBuilder:
    code = module.function("halide_malloc", [_I32, _I32], [_I32], export=True)
    size = 1
    octave, step, slot, block = (code.local(_I32, name) for name in ("octave", "step", "slot", "block"))
    code.get(size).i32(1 << LARGEST_LOG2).emit("i32.gt_u")
    with code.if_():
        # Sizes near 4 GiB would wrap; the host refuses them by this.
        code.get(size).i32(-HEADER_BYTES).emit("i32.gt_u")
        with code.if_():
            code.i32(0).emit("return")
        code.get(size).i32(HEADER_BYTES).emit("i32.add").call(allocate).tee(block).emit("i32.eqz")
        with code.if_():
            code.i32(0).emit("return")
        code.get(block).i32(LARGE_CLASS).emit("i32.store")
        code.get(block).i32(HEADER_BYTES).emit("i32.add").emit("return")
    # The class: the octave of size - 1, in quarters.
    least = (1 << SMALLEST_LOG2) + 1
    code.get(size).i32(least).get(size).i32(least).emit("i32.gt_u").emit("select")
    code.i32(1).emit("i32.sub").tee(size)
    code.emit("i32.clz").set(octave)
    code.i32(31).get(octave).emit("i32.sub").i32(STEPS_LOG2).emit("i32.sub").set(octave)
    code.get(size).get(octave).emit("i32.shr_u").set(step)
    code.get(octave).i32(SMALLEST_LOG2 - STEPS_LOG2).emit("i32.sub").i32(STEPS_LOG2).emit("i32.shl")
    code.get(step).emit("i32.add").i32(1 << STEPS_LOG2).emit("i32.sub").set(size)
    code.emit("global.get", lists).get(size).i32(2).emit("i32.shl").emit("i32.add").tee(slot)
    code.emit("i32.load").tee(block)
    with code.if_():
        code.get(slot).get(block).i32(HEADER_BYTES).emit("i32.sub").emit("i32.load", offset=4)
        code.emit("i32.store").get(block).emit("return")
    code.get(step).i32(1).emit("i32.add").get(octave).emit("i32.shl").i32(HEADER_BYTES).emit("i32.add")
    code.call(allocate).tee(block).emit("i32.eqz")
    with code.if_():
        code.i32(0).emit("return")
    code.get(block).get(size).emit("i32.store")
    return code.get(block).i32(HEADER_BYTES).emit("i32.add")


def _emit_free(module: ModuleBuilder, lists: int, free: int) -> FunctionBuilder:
    code = module.function("halide_free", [_I32, _I32], [], export=True)
    pointer = 1
    block, slot = code.local(_I32, "block"), code.local(_I32, "slot")
    code.get(pointer).emit("i32.eqz")
    with code.if_():
        code.emit("return")
    code.get(pointer).i32(HEADER_BYTES).emit("i32.sub").tee(block).emit("i32.load").tee(slot)
    code.i32(CLASS_COUNT).emit("i32.ge_u")
    with code.if_():
        code.get(block).call(free).emit("return")
    code.emit("global.get", lists).get(slot).i32(2).emit("i32.shl").emit("i32.add").set(slot)
    code.get(block).get(slot).emit("i32.load").emit("i32.store", offset=4)
    return code.get(slot).get(pointer).emit("i32.store")


def _emit_parallel_for(module: ModuleBuilder) -> None:
    """``halide_do_par_for(uc, task, min, extent, closure)``: all iterations here, one after the other."""
    code = module.function("halide_do_par_for", [_I32] * 5, [_I32], export=True)
    context, task, index, extent, closure = range(5)
    result = code.local(_I32, "result")
    with code.block() as done:
        code.get(extent).i32(0).emit("i32.le_s").br_if(done)
        with code.loop() as again:
            code.get(context).get(index).get(closure).get(task).emit("call_indirect", _TASK, 0).tee(result)
            with code.if_():
                code.get(result).emit("return")
            code.get(index).i32(1).emit("i32.add").set(index)
            code.get(extent).i32(1).emit("i32.sub").tee(extent).br_if(again)
    code.i32(0)


def _emit_tasks(module: ModuleBuilder) -> None:
    code = module.function("halide_do_task", [_I32] * 4, [_I32], export=True)
    code.get(0).get(2).get(3).get(1).emit("call_indirect", _TASK, 0)
    code = module.function("halide_do_loop_task", [_I32] * 6, [_I32], export=True)
    code.get(0).get(2).get(3).get(4).get(5).get(1).emit("call_indirect", _LOOP_TASK, 0)


def _emit_semaphores(module: ModuleBuilder) -> None:
    """The count is the first word. One thread runs all, so plain loads and stores do."""
    code = module.function("halide_semaphore_init", [_I32, _I32], [_I32], export=True)
    code.get(0).get(1).emit("i32.store").get(1)
    code = module.function("halide_semaphore_release", [_I32, _I32], [_I32], export=True)
    code.get(0).get(0).emit("i32.load").get(1).emit("i32.add").emit("i32.store")
    code.get(0).emit("i32.load")
    code = module.function("halide_semaphore_try_acquire", [_I32, _I32], [_I32], export=True)
    code.get(0).emit("i32.load").get(1).emit("i32.lt_s")
    with code.if_():
        code.i32(0).emit("return")
    code.get(0).get(0).emit("i32.load").get(1).emit("i32.sub").emit("i32.store").i32(1)


def _emit_mutexes(module: ModuleBuilder) -> None:
    """One thread runs all and no lock is held over a call, so there is nothing to wait for."""
    for name in ("halide_mutex_lock", "halide_mutex_unlock"):
        module.function(name, [_I32], [], export=True)
    for name in ("halide_mutex_array_lock", "halide_mutex_array_unlock"):
        module.function(name, [_I32, _I32], [_I32], export=True).i32(0)
    # Any non-null pointer that is no one's data will do.
    module.function("halide_mutex_array_create", [ValueType.I64], [_I32], export=True).i32(8)
    module.function("halide_mutex_array_destroy", [_I32, _I32], [], export=True)


def _emit_shared_mutexes(
    module: ModuleBuilder, scheduler: Scheduler, malloc: FunctionBuilder, release: FunctionBuilder
) -> None:
    """The first word is the lock. An array of them is one allocation of words."""
    module.function("halide_mutex_lock", [_I32], [], export=True).get(0).call(scheduler.lock)
    module.function("halide_mutex_unlock", [_I32], [], export=True).get(0).call(scheduler.unlock)
    for name, function in (("lock", scheduler.lock), ("unlock", scheduler.unlock)):
        code = module.function(f"halide_mutex_array_{name}", [_I32, _I32], [_I32], export=True)
        code.get(0).get(1).i32(2).emit("i32.shl").emit("i32.add").call(function).i32(0)
    code = module.function("halide_mutex_array_create", [ValueType.I64], [_I32], export=True)
    size, made = code.local(_I32, "size"), code.local(_I32, "made")
    code.get(0).i64(1 << 28).emit("i64.gt_u")
    with code.if_():
        code.i32(0).emit("return")
    code.get(0).emit("i32.wrap_i64").i32(2).emit("i32.shl").set(size)
    code.i32(0).get(size).call(malloc).tee(made)
    with code.if_():
        code.get(made).i32(0).get(size).emit("memory.fill")
    code.get(made)
    code = module.function("halide_mutex_array_destroy", [_I32, _I32], [], export=True)
    code.get(0).get(1).call(release)


def _emit_profiler(module: ModuleBuilder) -> None:
    """What profiled pipelines call at every change of stage: a note for the host's sampler."""
    code = module.function("halide_profiler_set_current_func", [_I32] * 3, [_I32], export=True)
    code.get(0).get(1).emit("i32.store", offset=layouts.PROFILER_INSTANCE.offsets["current_func"]).i32(0)
    for name in ("enable_instance", "incr_active_threads", "decr_active_threads"):
        module.function(f"halide_profiler_{name}", [_I32], [_I32], export=True).i32(0)
    for name in ("acquire_sampling_token", "release_sampling_token", "init_sampling_token"):
        module.function(f"halide_profiler_{name}", [_I32, _I32], [_I32], export=True).i32(0)
