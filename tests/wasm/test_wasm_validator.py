"""Context-dependent typing rules; the fixed signatures are covered with the instruction table."""

from __future__ import annotations

import pytest
import wasmtime

from sylvite import wasm
from sylvite.errors import FormatError

PREAMBLE = """
  (type $unary (func (param i32) (result i32))) (type $none (func))
  (import "e" "g" (global $constant i32))
  (memory 1) (table $t 1 funcref) (table $x 1 externref) (table $big i64 1 funcref)
  (global $mutable (mut i32) (i32.const 0)) (tag $tag (param i32)) (elem $e func $callee) (data $d "")
  (func $callee (type $unary) (local.get 0)) (func $undeclared)
"""

VALID = [
    "(func (result i32) unreachable)",
    "(func (result i32) (block (br 0)) i32.const 1)",
    "(func (result i32) i32.const 1 br 0)",
    "(func (result i32) (loop (result i32) i32.const 1))",
    "(func (param i32) (local.get 0) (loop (param i32) (drop)))",
    "(func unreachable i32.add f32.convert_i32_s f32.neg drop)",
    "(func unreachable select drop)",
    "(func (result i32) (if (result i32) (i32.const 1) (then i32.const 1) (else unreachable)))",
    "(func (drop (select (f32.const 1) (f32.const 2) (i32.const 0))))",
    "(func (drop (select (result funcref) (ref.null func) (ref.null func) (i32.const 0))))",
    "(func (block (block (br_table 0 1 (i32.const 0)))))",
    "(func (global.set $mutable (global.get $constant)))",
    "(func (table.set $x (i32.const 0) (ref.null extern)))",
    "(func (table.copy $t $big (i32.const 0) (i64.const 0) (i32.const 0)))",
    "(func (table.fill $big (i64.const 0) (ref.null func) (i64.const 0)))",
    "(func (table.init $t $e (i32.const 0) (i32.const 0) (i32.const 0)) (elem.drop $e))",
    "(func (memory.init $d (i32.const 0) (i32.const 0) (i32.const 0)) (data.drop $d))",
    "(func (drop (ref.is_null (ref.func $callee))))",
    "(func (result i32) (call_indirect (type $unary) (i32.const 1) (i32.const 0)))",
    "(func (result i32) (return_call $callee (i32.const 1)))",
    "(func (result i32) (return_call_indirect (type $unary) (i32.const 1) (i32.const 0)))",
    "(func (result i32) (block $h (result i32) (try_table (catch $tag $h)) (throw $tag (i32.const 1))))",
    "(func (block $h (result exnref) (try_table (catch_all_ref $h)) (return)) (throw_ref))",
    "(func (return) (return))",
    "(global i32 (global.get $constant)) (global i32 (i32.mul (global.get $constant) (i32.const 2)))",
]

INVALID = [
    ("(func (result i32))", "needs i32, but the stack of this function is empty"),
    ("(func i32.const 1)", "1 values are left"),
    ("(func (result i32) f32.const 1)", r"needs i32, but the stack is \[f32\]"),
    ("(func (block i32.const 1))", "1 values are left on the stack of this block"),
    ("(func (i32.const 1) (block drop))", "the stack of this block is empty"),
    ("(func br 1)", "label 1 does not exist"),
    ("(func unreachable i32.const 1 f32.neg drop)", "needs f32"),
    ("(func (if (result i32) (i32.const 1) (then i32.const 1)) drop)", "if without else"),
    ("(func (drop (select (f32.const 1) (i32.const 2) (i32.const 0))))", "select: needs i32"),
    ("(func (drop (select (ref.null func) (ref.null func) (i32.const 0))))", "select without a type"),
    ("(func (result i32) (block (br_table 0 1 (i32.const 0))) i32.const 1)", "different counts"),
    ("(func (local.get 5) drop)", "local 5 does not exist"),
    ("(func (global.set $constant (i32.const 1)))", "immutable"),
    ("(func (call 9))", "function 9 does not exist"),
    ("(func (call $callee) drop)", "call: needs i32"),
    ("(func (drop (call_indirect $x (type $unary) (i32.const 1) (i32.const 0))))", "holds externref"),
    ("(func (return_call $callee (i32.const 1)))", "does not return what"),
    ("(func (table.copy $t $x (i32.const 0) (i32.const 0) (i32.const 0)))", "cannot copy externref"),
    ("(func (table.init $x $e (i32.const 0) (i32.const 0) (i32.const 0)))", "cannot copy funcref"),
    ("(func (memory.init 3 (i32.const 0) (i32.const 0) (i32.const 0)))", "data segment 3"),
    ("(func (drop (ref.func $undeclared)))", "not declared"),
    ("(func (drop (ref.is_null (i32.const 1))))", "needs a reference"),
    ("(func (drop (i32.load align=8 (i32.const 0))))", r"above the natural 2\*\*2"),
    ("(func (drop (i32.atomic.load align=2 (i32.const 0))))", r"must be 2\*\*2"),
    ("(func (drop (i32.load 7 (i32.const 0))))", "memory 7 does not exist"),
    ("(func (throw $tag))", "throw: needs i32"),
    ("(func (try_table (catch $tag 0)))", "catch clause"),
    ("(global i32 (global.get $mutable))", "mutable"),
    ("(global i32 (i32.clz (i32.const 1)))", "i32.clz is not constant"),
    ("(global i64 (i32.const 1))", "needs i64"),
    ("(global i32 (global.get 3)) (global i32 (i32.const 1))", "global 3 does not exist"),
    ('(data (f32.const 1) "")', "needs i32"),
    ("(elem (table $x) (i32.const 0) func $callee)", "segment of funcref for a table of externref"),
    ("(tag (result i32))", "has results"),
]


@pytest.mark.parametrize("text", VALID)
def test_validate_accepts_what_wasmtime_accepts(text: str, judge: wasmtime.Engine) -> None:
    data = bytes(wasmtime.wat2wasm(f"(module {PREAMBLE} {text})"))
    wasmtime.Module.validate(judge, data)
    wasm.validate(wasm.decode(data))


@pytest.mark.parametrize(("text", "message"), INVALID)
def test_validate_refuses_what_wasmtime_refuses(text: str, message: str, judge: wasmtime.Engine) -> None:
    data = bytes(wasmtime.wat2wasm(f"(module {PREAMBLE} {text})"))
    with pytest.raises(wasmtime.WasmtimeError):
        wasmtime.Module.validate(judge, data)
    with pytest.raises(FormatError, match=message) as caught:
        wasm.validate(wasm.decode(data))
    assert caught.value.where is not None


def test_validate_error_stands_at_the_instruction() -> None:
    data = bytes(wasmtime.wat2wasm("(module (func) (func (local i32 f32) nop nop f32.const 2 i32.eqz drop))"))
    with pytest.raises(FormatError, match=r"i32.eqz: needs i32.*function 1") as caught:
        wasm.validate(wasm.decode(data))
    assert caught.value.offset == data.index(b"\x45\x1a")


def test_validate_function_checks_one_body_only() -> None:
    module = wasm.decode(wasmtime.wat2wasm("(module (func i32.const 1) (func nop))"))
    wasm.validate_function(module, 1)
    with pytest.raises(FormatError, match="left"):
        wasm.validate_function(module, 0)
