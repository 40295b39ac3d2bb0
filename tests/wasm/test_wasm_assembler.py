"""Assembled modules are validated and run by wasmtime."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import wasmtime

from sylvite import wasm
from sylvite.errors import InvalidArgumentError
from sylvite.wasm import FunctionType, ModuleBuilder, ValueType
from sylvite.wasm.instructions import INSTRUCTIONS

I32, I64, F32, F64, V128 = ValueType.I32, ValueType.I64, ValueType.F32, ValueType.F64, ValueType.V128


class Running:
    """An instance of an assembled module."""

    def __init__(self, judge: wasmtime.Engine, data: bytes, imports: list[object] | None = None) -> None:
        wasmtime.Module.validate(judge, data)
        module = wasm.decode(data)
        wasm.validate(module)
        assert wasm.encode(module) == wasm.encode(module, canonical=True) == data
        self.store = wasmtime.Store(judge)
        instance = wasmtime.Instance(self.store, wasmtime.Module(judge, data), imports or [])  # type: ignore[arg-type]
        self.exports = instance.exports(self.store)

    def __call__(self, name: str, *args: float) -> object:
        return self.exports[name](self.store, *args)  # type: ignore[operator]


def gemm_module(rows: int, columns: int) -> bytes:
    """C[rows x columns] += A[rows x k] * B[k x columns], f32, a register tile per call."""
    builder = ModuleBuilder("gemm")
    builder.add_memory(2)
    builder.export("memory", 0, wasm.ExternKind.MEMORY)
    kernel = builder.function("tile", params=[I32, I32, I32, I32], export=True)
    a, b, c, k = range(4)
    vectors = columns // 4
    tile = [[kernel.local(V128, f"c{i}{j}") for j in range(vectors)] for i in range(rows)]
    right = [kernel.local(V128, f"b{j}") for j in range(vectors)]
    left = kernel.local(V128, "a")
    for i in range(rows):
        for j in range(vectors):
            kernel.get(c).emit("v128.load", offset=(i * columns + j * 4) * 4).set(tile[i][j])
    with kernel.loop() as again:
        for j in range(vectors):
            kernel.get(b).emit("v128.load", offset=j * 16, align=2).set(right[j])
        for i in range(rows):
            kernel.get(a).emit("v128.load32_splat", offset=i * 4).set(left)
            for j in range(vectors):
                kernel.get(left).get(right[j]).emit("f32x4.mul").get(tile[i][j]).emit("f32x4.add").set(
                    tile[i][j]
                )
        kernel.get(a).i32(rows * 4).emit("i32.add").set(a)
        kernel.get(b).i32(columns * 4).emit("i32.add").set(b)
        kernel.get(k).i32(1).emit("i32.sub").tee(k).br_if(again)
    for i in range(rows):
        for j in range(vectors):
            kernel.get(c).get(tile[i][j]).emit("v128.store", offset=(i * columns + j * 4) * 4)
    return builder.build()


def test_assembled_gemm_kernel_computes_what_numpy_computes(judge: wasmtime.Engine) -> None:
    rows, columns, k = 4, 12, 37
    running = Running(judge, gemm_module(rows, columns))
    memory = running.exports["memory"]
    rng = np.random.default_rng(1)
    left = rng.standard_normal((k, rows)).astype(np.float32)
    right = rng.standard_normal((k, columns)).astype(np.float32)
    start = rng.standard_normal((rows, columns)).astype(np.float32)
    for address, array in ((1024, left), (16384, right), (65536, start)):
        memory.write(running.store, array.tobytes(), address)  # type: ignore[union-attr]
    running("tile", 1024, 16384, 65536, k)
    raw = memory.read(running.store, 65536, 65536 + start.nbytes)  # type: ignore[union-attr]
    result = np.frombuffer(raw, np.float32).reshape(rows, columns)
    np.testing.assert_allclose(result, start + left.T @ right, rtol=1e-5, atol=1e-5)


def test_assembled_control_flow_runs(judge: wasmtime.Engine) -> None:
    builder = ModuleBuilder("flow")
    collatz = builder.function("collatz", params=[I32], results=[I32], export="steps")
    steps = collatz.local(I32)
    with collatz.block() as done, collatz.loop() as again:
        collatz.get(0).i32(1).emit("i32.eq").br_if(done)
        collatz.get(0).i32(1).emit("i32.and")
        with collatz.if_(results=[I32]):
            collatz.get(0).i32(3).emit("i32.mul").i32(1).emit("i32.add")
            collatz.else_().get(0).i32(1).emit("i32.shr_u")
        collatz.set(0)
        collatz.get(steps).i32(1).emit("i32.add").set(steps)
        collatz.br(again)
    collatz.get(steps)
    switch = builder.function("switch", params=[I32], results=[I32], export=True)
    with switch.block() as two:
        with switch.block() as one:
            with switch.block() as zero:
                switch.get(0).br_table([zero, one], two)
            switch.i32(100).emit("return")
        switch.i32(101).emit("return")
    switch.i32(102)
    fact = builder.function("factorial", params=[I64], results=[I64], export=True)
    fact.get(0).emit("i64.eqz")
    with fact.if_(results=[I64]) as out:
        fact.i64(1).br(out)
        fact.else_().get(0).get(0).i64(1).emit("i64.sub").call(fact).emit("i64.mul").br(out)
    swap = builder.function("swap", params=[I32, F64], results=[F64, I32], export=True)
    swap.get(1).get(0)
    with swap.block(parameters=[F64, I32], results=[F64, I32]):
        swap.emit("nop")
    running = Running(judge, builder.build())
    assert running("steps", 27) == 111
    assert [running("switch", i) for i in (0, 1, 2, 9)] == [100, 101, 102, 102]
    assert running("factorial", 20) == math.factorial(20)
    assert running("swap", 3, 2.5) == [2.5, 3]


def test_assembled_imports_tables_globals_and_data_run(judge: wasmtime.Engine) -> None:
    builder = ModuleBuilder()
    callback = builder.import_function("env", "callback", [I32], [I32])
    builder.import_memory("env", "memory", 1, 4)
    base = builder.import_global("env", "base", I32)
    builder.add_table(5, 10)
    counter = builder.add_global(I32, 41, mutable=True, name="counter")
    address = builder.add_global(I32, wasm.expression(("global.get", base), ("i32.const", 4), ("i32.add",)))
    vector = builder.add_global(V128, wasm.vector("f32x4", (1, 2, 3, 4)))
    begin = builder.function("begin")
    begin.emit("global.get", counter).i32(1).emit("i32.add").emit("global.set", counter)
    builder.start(begin)
    twice = builder.function("twice", [I32], [I32])
    twice.get(0).get(0).emit("i32.add")
    builder.add_elements([twice, callback], 2)
    passive = builder.add_data(b"passive")
    builder.add_data(b"\x2a\0\0\0", wasm.expression(("global.get", base)))
    pick = builder.function("pick", [I32, I32], [I32], export=True)
    pick.get(1).get(0).emit("call_indirect", FunctionType(parameters=(I32,), results=(I32,)))
    state = builder.function("state", [], [I32, I32, I32, F32], export=True)
    state.emit("global.get", counter).emit("global.get", address)
    state.emit("global.get", base).emit("i32.load").emit("global.get", vector).emit("f32x4.extract_lane", 2)
    load = builder.function("load", [], [I32], export=True)
    load.i32(200).i32(1).i32(4).emit("memory.init", passive).i32(200).emit("i32.load")
    reference = builder.function("reference", [], [ValueType.FUNCREF], export=True)
    reference.emit("ref.func", begin)
    store = wasmtime.Store(judge)
    i32 = wasmtime.ValType.i32()
    running = Running.__new__(Running)
    running.store = store
    data = builder.build()
    module = wasmtime.Module(judge, data)
    wasm.validate(wasm.decode(data))
    imports = [
        wasmtime.Func(store, wasmtime.FuncType([i32], [i32]), lambda value: value + 1000),
        wasmtime.Memory(store, wasmtime.MemoryType(wasmtime.Limits(2, 3))),
        wasmtime.Global(store, wasmtime.GlobalType(i32, False), wasmtime.Val.i32(64)),
    ]
    running.exports = wasmtime.Instance(store, module, imports).exports(store)
    assert running("pick", 2, 21) == 42
    assert running("pick", 3, 21) == 1021
    assert running("state") == [42, 68, 42, 3.0]
    assert running("load") == int.from_bytes(b"assi", "little")
    with pytest.raises(wasmtime.Trap, match=r"undefined element|uninitialized"):
        running("pick", 0, 1)


def test_trap_shows_the_name_of_the_function(judge: wasmtime.Engine) -> None:
    builder = ModuleBuilder("kernels")
    builder.function("divide_rows", [I32], [I32], export="run").i32(1).get(0).emit("i32.div_s")
    with pytest.raises(wasmtime.Trap, match="divide_rows") as caught:
        Running(judge, builder.build())("run", 0)
    assert caught.value.frames[0].func_name == "divide_rows"
    assert caught.value.frames[0].module_name == "kernels"


@pytest.mark.parametrize("name", [name for name, info in INSTRUCTIONS.items() if info.signature is not None])
def test_every_instruction_with_a_fixed_signature_can_be_emitted(name: str, judge: wasmtime.Engine) -> None:
    samples = {
        "i32": 0xFFFFFFFF,
        "i64": 2**64 - 1,
        "f32": 1.5,
        "f64": -2.5,
        "v128": bytes(range(16)),
        "lane": 1,
        "shuffle": tuple(range(16, 32)),
        "function": 0,
    }
    info = INSTRUCTIONS[name]
    assert info.signature is not None
    builder = ModuleBuilder()
    builder.add_memory(1, 2, shared=True)
    builder.add_data(b"x")
    pops = [I32 if t is None else t for t in info.signature.pops]
    pushes = [I32 if t is None else t for t in info.signature.pushes]
    function = builder.function("f", pops, pushes)
    builder.add_elements([function], declarative=True)
    for index in range(len(pops)):
        function.get(index)
    given = [samples.get(o.kind, 0) for o in info.operands if o.kind not in ("memarg", "memory", "zero")]
    function.emit(name, *given, offset=9 if info.natural_alignment is not None else 0)
    assert list(function.stack) == pushes
    data = builder.build()
    wasmtime.Module.validate(judge, data)
    found = [i for i in wasm.decode(data).code[0].instructions() if i.name == name]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("emit", "message"),
    [
        (lambda f: f.emit("i32.sum"), "unknown instruction 'i32.sum'"),
        (lambda f: f.i32(1).emit("f32.sqrt"), r"f32.sqrt: needs f32, but the stack is \[i32\]"),
        (lambda f: f.emit("i32.add"), "i32.add: needs i32, but the stack of this function is empty"),
        (lambda f: f.i32(2**32), "4294967296 does not fit in 32 bits"),
        (lambda f: f.i32(-(2**31) - 1), "does not fit in 32 bits"),
        (lambda f: f.i32(1.5), "is not an integer"),
        (lambda f: f.f32(1e300), "constant 1e"),
        (lambda f: f.emit("f32.const", b"abc"), "needs 4 raw bytes"),
        (lambda f: f.emit("v128.const", 5), "needs 16 raw bytes"),
        (lambda f: f.get(7), "local 7 does not exist"),
        (lambda f: f.get(-1), "not a non-negative integer"),
        (lambda f: f.br(1), "label 1 does not exist"),
        (lambda f: f.emit("i32.const"), "needs a i32 immediate"),
        (lambda f: f.emit("nop", 1), "takes 0 immediates, 1 given"),
        (lambda f: f.emit("nop", offset=4), "is not a memory access"),
        (lambda f: f.i32(0).emit("i32.load", offset=-1), "cannot be negative"),
        (lambda f: f.i32(0).emit("i32.load", offset=2**32), "too large for this memory"),
        (lambda f: f.i32(0).emit("i32.load", align=3), "above the natural"),
        (lambda f: f.i32(0).emit("i32.load", memory=1), "memory 1 does not exist"),
        (lambda f: f.emit("i8x16.shuffle", *range(17, 33)), "16 lanes from 0 to 31"),
        (lambda f: f.call(99), "function 99 does not exist"),
        (lambda f: f.else_(), "there is no open if"),
        (lambda f: f.emit("ref.null", I32), "is not a reference type"),
    ],
)
def test_emit_mistakes_are_named_with_function_and_instruction(emit: object, message: str) -> None:
    builder = ModuleBuilder()
    builder.add_memory(1)
    function = builder.function("wrong")
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        emit(function)  # type: ignore[operator]
    assert "function 'wrong', instruction" in str(caught.value)


def test_build_unfinished_functions_are_refused() -> None:
    builder = ModuleBuilder()
    builder.function("missing", results=[F32])
    with pytest.raises(InvalidArgumentError, match=r"function 'missing'.*needs f32"):
        builder.build()
    builder = ModuleBuilder()
    builder.function("open").emit("block", None)
    with pytest.raises(InvalidArgumentError, match="a block is still open"):
        builder.build()


def test_build_indices_that_name_nothing_are_refused() -> None:
    builder = ModuleBuilder()
    builder.export("f", 3)
    with pytest.raises(InvalidArgumentError, match="function index 3 out of range"):
        builder.build()
    builder = ModuleBuilder()
    builder.function("f").emit("data.drop", 2)
    with pytest.raises(InvalidArgumentError, match="data segment 2 is used, but there are 0"):
        builder.build()


def test_import_after_definition_is_refused() -> None:
    builder = ModuleBuilder()
    builder.function("f")
    builder.import_memory("env", "m", 1)
    with pytest.raises(InvalidArgumentError, match=r"env\.g: imports must come before"):
        builder.import_function("env", "g")


def test_label_of_a_closed_block_is_refused() -> None:
    function = ModuleBuilder().function("f")
    with function.block() as label:
        function.emit("nop")
    with pytest.raises(InvalidArgumentError, match="block that is closed"):
        function.br(label)


def test_mistake_inside_a_block_comes_out_unchanged() -> None:
    function = ModuleBuilder().function("f")
    with pytest.raises(InvalidArgumentError, match=r"i32.add"), function.block():
        function.emit("i32.add")


def test_constants_keep_their_bits() -> None:
    builder = ModuleBuilder()
    signalling = bytes.fromhex("0100a07f")
    builder.function("f", results=[F32]).emit("f32.const", signalling)
    code = wasm.decode(builder.build()).code[0].instructions()
    assert code[0].immediates == (signalling,)


@pytest.mark.parametrize(
    ("shape", "lanes", "expected"),
    [
        ("i8x16", range(-1, 15), bytes([255, *range(15)])),
        ("i16x8", [0xFFFF, -1, 0, 1, 2, 3, 4, 5], struct.pack("<8h", -1, -1, 0, 1, 2, 3, 4, 5)),
        ("i64x2", [2**64 - 1, 1], struct.pack("<2q", -1, 1)),
        ("f64x2", [1.5, -2], struct.pack("<2d", 1.5, -2)),
    ],
)
def test_vector_packs_lanes(shape: str, lanes: list[int], expected: bytes) -> None:
    assert wasm.vector(shape, lanes) == expected


@pytest.mark.parametrize(
    ("shape", "lanes", "message"),
    [
        ("i32x5", [1], "unknown vector shape"),
        ("i32x4", [1, 2], "has 4 lanes, 2 given"),
        ("i8x16", [300] * 16, "does not fit in 8 bits"),
        ("f32x4", [1e300] * 4, "out of range"),
    ],
)
def test_vector_mistakes_are_refused(shape: str, lanes: list[float], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        wasm.vector(shape, lanes)


def test_add_memory64_addresses_are_i64(judge: wasmtime.Engine) -> None:
    builder = ModuleBuilder()
    builder.add_memory(1, is_64=True)
    builder.add_data(b"\5", 2**33)
    function = builder.function("f", results=[I32])
    function.i64(0).emit("i32.load", offset=2**40)
    data = builder.build()
    wasmtime.Module.validate(judge, data)
    wasm.validate(wasm.decode(data))
