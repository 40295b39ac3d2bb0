"""The generated module that runs all workgroups of a dispatch in one engine call.

Source: ``iree/hal/local/executable_library.h`` 0.6: the entry's type and the workgroup state's layout.
"""

from __future__ import annotations

import functools

from ..wasm import ModuleBuilder
from ..wasm.types import FunctionType, ValueType

__all__ = ["EXPORT_NAME", "assemble"]

EXPORT_NAME = "loop"

# Offsets in the workgroup state: u32 x, u32 y, u16 z.
WORKGROUP_ID_X = 0
WORKGROUP_ID_Y = 4
WORKGROUP_ID_Z = 8

_I32 = ValueType.I32
ENTRY_TYPE = FunctionType(parameters=(_I32, _I32, _I32), results=(_I32,))
_COORDINATES = (
    ("z", "i32.store16", WORKGROUP_ID_Z),
    ("y", "i32.store", WORKGROUP_ID_Y),
    ("x", "i32.store", WORKGROUP_ID_X),
)


@functools.cache
def assemble() -> bytes:
    """The module. It exports ``loop(entry, environment, dispatch_state, workgroup_state, count_x, count_y,
    count_z) -> code``, which calls table entry ``entry`` for every workgroup, x fastest, and stops at the
    first that returns other than 0.

    It starts with an empty shadow stack: what a trapped call left on it is forgotten.
    """
    module = ModuleBuilder("sylvite_dispatcher")
    module.import_memory("env", "memory", 0)
    module.import_table("env", "__indirect_function_table", 0)
    stack_pointer = module.import_global("env", "__stack_pointer", _I32, mutable=True)
    stack_top = module.import_global("env", "__stack_high", _I32)
    loop = module.function(EXPORT_NAME, [_I32] * 7, [_I32], export=True)
    entry, environment, dispatch_state, workgroup_state = range(4)
    counts = {"x": 4, "y": 5, "z": 6}
    ids = {name: loop.local(_I32, name) for name in counts}
    code = loop.local(_I32, "code")

    loop.emit("global.get", stack_top).emit("global.set", stack_pointer)
    for count in counts.values():
        loop.get(count).emit("i32.eqz")
        with loop.if_():
            loop.i32(0).emit("return")

    def nest(remaining: tuple[tuple[str, str, int], ...]) -> None:
        if not remaining:
            loop.get(environment).get(dispatch_state).get(workgroup_state).get(entry)
            loop.emit("call_indirect", ENTRY_TYPE, 0).tee(code)
            with loop.if_():
                loop.get(code).emit("return")
            return
        (name, store, offset), *inner = remaining
        loop.i32(0).set(ids[name])
        with loop.loop() as again:
            loop.get(workgroup_state).get(ids[name]).emit(store, offset=offset)
            nest(tuple(inner))
            loop.get(ids[name]).i32(1).emit("i32.add").tee(ids[name])
            loop.get(counts[name]).emit("i32.ne")
            loop.br_if(again)

    nest(_COORDINATES)
    loop.i32(0)
    return module.build()
