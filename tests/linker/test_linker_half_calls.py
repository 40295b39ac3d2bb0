import struct

import numpy as np
import pytest
import wasmtime

from sylvite import wasm
from sylvite.linker.half_calls import repair_half_calls
from sylvite.wasm import FunctionType, ValueType

I32, F32, F64 = ValueType.I32, ValueType.F32, ValueType.F64
WRONG = {
    "__extendhfsf2": ((F32,), (F32,), "local.get"),
    "__extendhfdf2": ((F32,), (F64,), "f64.promote_f32"),
    "__truncsfhf2": ((F32,), (F32,), "local.get"),
    "__truncdfhf2": ((F64,), (F32,), "f32.demote_f64"),
}


def embedded(names=tuple(WRONG), *, leading_import=False):
    """A module that defines conversions the way IREE embeds them."""
    builder = wasm.ModuleBuilder("embedded")
    if leading_import:
        builder.import_function("env", "other", [I32], [I32])
    for name in names:
        parameters, results, conversion = WRONG[name]
        function = builder.function(name, parameters, results, export=name)
        function.get(0)
        if conversion != "local.get":
            function.emit(conversion)
    return wasm.decode(builder.build())


@pytest.fixture(scope="module")
def repaired():
    store = wasmtime.Store()
    module = repair_half_calls(embedded())
    instance = wasmtime.Instance(store, wasmtime.Module(store.engine, wasm.encode(module)), [])
    exports = instance.exports(store)
    return lambda name, value: exports[name](store, value)


def test_repair_gives_definitions_their_callers_types():
    module = repair_half_calls(embedded(leading_import=True))
    names = wasm.names.read(module).functions
    types = {name: module.function_type(index) for index, name in names.items() if name in WRONG}
    assert types == {
        "__extendhfsf2": FunctionType(parameters=(I32,), results=(F32,)),
        "__extendhfdf2": FunctionType(parameters=(I32,), results=(F64,)),
        "__truncsfhf2": FunctionType(parameters=(F32,), results=(I32,)),
        "__truncdfhf2": FunctionType(parameters=(F64,), results=(I32,)),
    }
    wasm.validate(module)
    wasmtime.Module.validate(wasmtime.Engine(), wasm.encode(module))


def test_repair_leaves_other_modules_alone():
    builder = wasm.ModuleBuilder("fine")
    builder.function("__extendhfsf2", [I32], [F32]).f32(1.0)
    builder.function("unrelated", [F32], [F32]).get(0)
    module = wasm.decode(builder.build())
    assert repair_half_calls(module) is module
    nameless = wasm.decode(wasm.ModuleBuilder().build())
    assert repair_half_calls(nameless) is nameless


def test_extend_is_exact_for_every_half(repaired):
    for bits in range(0, 1 << 16, 7):
        half = np.uint16(bits).view(np.float16)
        for name, code in (("__extendhfsf2", "<f"), ("__extendhfdf2", "<d")):
            value = repaired(name, bits)
            if np.isnan(half):
                assert np.isnan(value)
            else:
                assert struct.pack(code, value) == struct.pack(code, float(half)), hex(bits)


def test_truncate_rounds_like_numpy(repaired):
    rng = np.random.default_rng(3)
    patterns = rng.integers(0, 1 << 32, 4000, np.uint32)
    near = np.float32(rng.uniform(-70000, 70000, 2000)) * np.float32(2.0) ** rng.integers(-30, 1, 2000)
    edges = np.array(
        [0.0, -0.0, 65504, 65519.99, 65520, 65536, 6.1e-5, 5.96e-8, 2.98e-8, 2.99e-8, np.inf], np.float32
    )
    with np.errstate(over="ignore"):
        for value in (*patterns.view(np.float32), *near.astype(np.float32), *edges):
            found = np.uint16(repaired("__truncsfhf2", float(value)) & 0xFFFF).view(np.float16)
            expected = np.float16(value)
            assert (np.isnan(found) and np.isnan(expected)) or found.tobytes() == expected.tobytes(), value
            wide = float(value) * (1 + 2.0**-40)
            found = np.uint16(repaired("__truncdfhf2", wide) & 0xFFFF).view(np.float16)
            expected = np.float64(wide).astype(np.float16)
            assert (np.isnan(found) and np.isnan(expected)) or found.tobytes() == expected.tobytes(), wide
