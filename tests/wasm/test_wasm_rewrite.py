"""Rewritten modules are run by wasmtime."""

from __future__ import annotations

import pytest
import wasmtime

from sylvite import wasm
from sylvite.errors import InvalidArgumentError, NotFoundError
from sylvite.wasm import rewrite

TEXT = """
(module
  (import "env" "memory" (memory 1))
  (import "env" "log" (func $log (param i32)))
  (import "env" "base" (global $base i32))
  (func (export "first") (result i32) (i32.load8_u (global.get $base)))
  (func (export "third") (result i32) (i32.load8_u (i32.const 40)))
  (func (export "init") (memory.init 1 (i32.const 60) (i32.const 0) (i32.const 1)))
  (func (export "at") (result i32) (i32.load8_u (i32.const 60)))
  (data (global.get $base) "abc") (data "xyz") (data (i32.const 40) "def"))
"""


@pytest.fixture
def module() -> wasm.Module:
    return wasm.decode(wasmtime.wat2wasm(TEXT))


def run(judge: wasmtime.Engine, module: wasm.Module, **wanted: int) -> None:
    store = wasmtime.Store(judge)
    memory = wasmtime.Memory(store, wasmtime.MemoryType(wasmtime.Limits(1, None)))
    log = wasmtime.Func(store, wasmtime.FuncType([wasmtime.ValType.i32()], []), lambda value: None)
    base = wasmtime.Global(store, wasmtime.GlobalType(wasmtime.ValType.i32(), False), wasmtime.Val.i32(16))
    compiled = wasmtime.Module(judge, wasm.encode(module))
    exports = wasmtime.Instance(store, compiled, [memory, log, base]).exports(store)
    for name, value in wanted.items():
        assert exports[name](store) == (value or None if name == "init" else value), name


def test_unchanged_module_runs(module: wasm.Module, judge: wasmtime.Engine) -> None:
    run(judge, module, first=ord("a"), third=ord("d"), init=0, at=ord("x"))


def test_share_memory_import_changes_only_the_import_section(
    module: wasm.Module, judge: wasmtime.Engine
) -> None:
    shared = rewrite.share_memory_import(module, 2, 300)
    data = wasm.encode(shared)
    description = wasm.decode(data).imports[0].description
    assert description == wasm.MemoryType(minimum=2, maximum=300, shared=True)
    wasmtime.Module.validate(judge, data)
    original = wasm.encode(module)
    assert data[-100:] == original[-100:]
    types = wasmtime.Module(judge, data).imports
    assert types[0].type.limits.max == 300


def test_share_memory_import_without_one_is_refused() -> None:
    with pytest.raises(NotFoundError, match="imports no memory"):
        rewrite.share_memory_import(wasm.Module(), 1, 2)
    with pytest.raises(InvalidArgumentError):
        rewrite.share_memory_import(wasm.Module(), 3, 2)


def test_strip_active_data_gives_the_segments_and_keeps_indices(
    module: wasm.Module, judge: wasmtime.Engine
) -> None:
    stripped, taken = rewrite.strip_active_data(module)
    assert [segment.data for segment in taken] == [b"abc", b"def"]
    assert [s.offset.evaluate(lambda index: 16) for s in taken if s.offset] == [16, 40]
    run(judge, stripped, first=0, third=0, init=0, at=ord("x"))
    assert rewrite.strip_active_data(stripped) == (stripped, ())


def test_strip_active_data_without_passive_segments_removes_the_section() -> None:
    module = wasm.decode(wasmtime.wat2wasm('(module (memory 1) (data (i32.const 1) "abc"))'))
    stripped, taken = rewrite.strip_active_data(module)
    assert (stripped.data, len(taken)) == ((), 1)
    assert b"abc" not in wasm.encode(stripped)


def test_make_data_passive_keeps_contents_for_memory_init(
    module: wasm.Module, judge: wasmtime.Engine
) -> None:
    passive, active = rewrite.make_data_passive(module)
    assert len(active) == 2
    assert [segment.data for segment in passive.data] == [b"abc", b"xyz", b"def"]
    run(judge, passive, first=0, third=0, init=0, at=ord("x"))
    plain = wasm.decode(wasmtime.wat2wasm('(module (memory 1) (data (i32.const 1) "abc"))'))
    assert rewrite.make_data_passive(plain)[0].data_count == 1


def test_strip_active_elements_keeps_functions_declared(judge: wasmtime.Engine) -> None:
    text = """(module (table (export "t") 4 funcref) (func $f) (elem (i32.const 1) $f)
      (func (export "r") (result funcref) (ref.func $f)))"""
    stripped, taken = rewrite.strip_active_elements(wasm.decode(wasmtime.wat2wasm(text)))
    assert taken[0].functions == (0,)
    store = wasmtime.Store(judge)
    exports = wasmtime.Instance(store, wasmtime.Module(judge, wasm.encode(stripped)), []).exports(store)
    assert exports["t"].get(store, 1).value is None
    assert exports["r"](store) is not None


def test_rename_imports_renames_and_refuses_unknown_names(module: wasm.Module) -> None:
    renamed = rewrite.rename_imports(module, {("env", "log"): ("host", "print")})
    assert [(i.module, i.name) for i in renamed.imports] == [
        ("env", "memory"),
        ("host", "print"),
        ("env", "base"),
    ]
    assert renamed.imports[1].description == module.imports[1].description
    with pytest.raises(NotFoundError, match=r"env\.nothing, env\.no"):
        rewrite.rename_imports(module, {("env", "nothing"): ("a", "b"), ("env", "no"): ("a", "b")})


def test_rename_imports_takes_the_dylink_flags_along() -> None:
    builder = wasm.ModuleBuilder()
    builder.import_function("env", "f")
    weak = wasm.dylink.DylinkImport(module="env", name="f", flags=wasm.dylink.SymbolFlags.WEAK)
    builder.dylink(wasm.dylink.DylinkInfo(imports=(weak,), unknown=((6, b"keep"),)))
    renamed = rewrite.rename_imports(wasm.decode(builder.build()), {("env", "f"): ("env", "g")})
    info = wasm.dylink.read(wasm.decode(wasm.encode(renamed)))
    assert info is not None
    assert info.import_info == {"g": wasm.dylink.SymbolFlags.WEAK}
    assert info.unknown == ((6, b"keep"),)


def test_remove_customs_by_name_and_predicate(small_module: bytes) -> None:
    builder = wasm.ModuleBuilder("m")
    builder.target_features({"simd128": "+"})
    builder.function("f")
    module = builder.module()
    assert [s.name for s in rewrite.remove_customs(module).customs] == []
    assert [s.name for s in rewrite.remove_customs(module, ["name"]).customs] == ["name"]
    kept = rewrite.remove_customs(module, lambda section: section.name.startswith("target"))
    assert [s.name for s in kept.customs] == ["target_features"]
    plain = rewrite.remove_customs(wasm.decode(small_module))
    assert small_module.startswith(wasm.encode(plain))


def test_replace_body_runs_the_new_code(module: wasm.Module, judge: wasmtime.Engine) -> None:
    body = module.code[0]
    instructions = body.instructions()
    changed = [wasm.instructions.Instruction("i32.const", (7,)), instructions[-1]]
    new = wasm.FunctionBody(data=b"\0" + wasm.instructions.encode_body(changed))
    run(judge, rewrite.replace_body(module, 0, new), first=7, third=ord("d"))
    with pytest.raises(InvalidArgumentError, match="body 4 does not exist"):
        rewrite.replace_body(module, 4, new)
