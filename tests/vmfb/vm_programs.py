"""Programs in the ``vm`` dialect that use every operation of the instruction table, one function per
operation, generated from the table itself."""

from __future__ import annotations

from collections.abc import Collection

from sylvite.vmfb import isa

BUFFER = "!vm.buffer"
LIST = "!vm.list<?>"

# Encoding -> (statement, argument types, result type). {T}, {U} are the row's types, {op} its mnemonic.
_FORMS = {
    "unary": ("%r = {op} %a0 : {T}", ["{T}"], "{T}"),
    "binary": ("%r = {op} %a0, %a1 : {T}", ["{T}", "{T}"], "{T}"),
    "ternary": ("%r = {op} %a0, %a1, %a2 : {T}", ["{T}"] * 3, "{T}"),
    "shift": ("%r = {op} %a0, %a1 : {T}", ["{T}", "i32"], "{T}"),
    "select": ("%r = {op} %a0, %a1, %a2 : {T}", ["i32", "{T}", "{T}"], "{T}"),
    "select_ref": ("%r = {op} %a0, %a1, %a2 : " + BUFFER, ["i32", BUFFER, BUFFER], BUFFER),
    "switch": ("%r = {op} %a0[%a1, %a2] else %a3 : {T}", ["i32", "{T}", "{T}", "{T}"], "{T}"),
    "switch_ref": (
        "%r = {op} %a0[%a1, %a2] else %a3 : " + BUFFER,
        ["i32", BUFFER, BUFFER, BUFFER],
        BUFFER,
    ),
    "test": ("%r = {op} %a0 : {T}", ["{T}"], "i32"),
    "compare": ("%r = {op} %a0, %a1 : {T}", ["{T}", "{T}"], "i32"),
    "convert": ("%r = {op} %a0 : {T} -> {U}", ["{T}"], "{U}"),
    "cast_any_ref": ("%r = {op} %a0 : !vm.ref<?> -> " + BUFFER, ["!vm.ref<?>"], BUFFER),
    "discard_refs": ("{op} %a0, %a1 : !vm.buffer, !vm.buffer", [BUFFER, BUFFER], None),
    "constant": ("%r = {op} {literal}", [], "{T}"),
    "zero": ("%r = {op}", [], "{T}"),
    "const_ref_zero": ("%r = {op} : !vm.buffer", [], BUFFER),
    "const_ref_rodata": ("%r = {op} @data : !vm.buffer", [], BUFFER),
    "global_load": ("%r = {op} @global_{T} : {T}", [], "{T}"),
    "global_store": ("{op} %a0, @global_{T} : {T}", ["{T}"], None),
    "global_load_indirect": ("%r = {op} %a0 : i32 -> {T}", ["i32"], "{T}"),
    "global_store_indirect": ("{op} %a1, %a0 : {T} -> i32", ["i32", "{T}"], None),
    "global_load_ref": ("%r = {op} @global_ref : !vm.buffer", [], BUFFER),
    "global_store_ref": ("{op} %a0, @global_ref : !vm.buffer", [BUFFER], None),
    "global_load_indirect_ref": ("%r = {op} %a0 : i32 -> !vm.buffer", ["i32"], BUFFER),
    "global_store_indirect_ref": ("{op} %a1, %a0 : !vm.buffer -> i32", ["i32", BUFFER], None),
    "list_alloc": ("%r = {op} %a0 : (i32) -> !vm.list<i32>", ["i32"], "!vm.list<i32>"),
    "list_reserve": ("{op} %a0, %a1 : (!vm.list<?>, i32)", [LIST, "i32"], None),
    "list_size": ("%r = {op} %a0 : (!vm.list<?>) -> i32", [LIST], "i32"),
    "list_resize": ("{op} %a0, %a1 : (!vm.list<?>, i32)", [LIST, "i32"], None),
    "list_get": ("%r = {op} %a0, %a1 : (!vm.list<?>, i32) -> {T}", [LIST, "i32"], "{T}"),
    "list_set": ("{op} %a0, %a1, %a2 : (!vm.list<?>, i32, {T})", [LIST, "i32", "{T}"], None),
    "list_get_ref": ("%r = {op} %a0, %a1 : (!vm.list<?>, i32) -> !vm.buffer", [LIST, "i32"], BUFFER),
    "list_set_ref": ("{op} %a0, %a1, %a2 : (!vm.list<?>, i32, !vm.buffer)", [LIST, "i32", BUFFER], None),
    "buffer_alloc": ("%r = {op} %a0, %a1 : !vm.buffer", ["i64", "i32"], BUFFER),
    "buffer_clone": (
        "%r = {op} %a0, %a1, %a2, %a3 : !vm.buffer -> !vm.buffer",
        [BUFFER, "i64", "i64", "i32"],
        BUFFER,
    ),
    "buffer_length": ("%r = {op} %a0 : !vm.buffer -> i64", [BUFFER], "i64"),
    "buffer_copy": (
        "{op} %a0, %a1, %a2, %a3, %a4 : !vm.buffer -> !vm.buffer",
        [BUFFER, "i64", BUFFER, "i64", "i64"],
        None,
    ),
    "buffer_compare": (
        "%r = {op} %a0, %a1, %a2, %a3, %a4 : !vm.buffer, !vm.buffer",
        [BUFFER, "i64", BUFFER, "i64", "i64"],
        "i32",
    ),
    "buffer_hash": ("%r = {op} %a0, %a1, %a2 : !vm.buffer -> i64", [BUFFER, "i64", "i64"], "i64"),
    "buffer_load": ("%r = {op} %a0[%a1] : !vm.buffer -> {T}", [BUFFER, "i64"], "{T}"),
    "buffer_store": ("{op} %a2, %a0[%a1] : {T} -> !vm.buffer", [BUFFER, "i64", "{T}"], None),
    "buffer_fill": ("{op} %a0, %a1, %a2, %a3 : {T} -> !vm.buffer", [BUFFER, "i64", "i64", "{T}"], None),
    "call": ("%r = {op} @identity(%a0) : (i32) -> i32", ["i32"], "i32"),
    "call_variadic": (
        "%r = {op} @test.variadic(%a0, [%a1, %a2], []) : (i32, i64 ..., !vm.buffer ...) -> i32",
        ["i32", "i64", "i64"],
        "i32",
    ),
    "import_resolved": ("%r = {op} @test.optional : i32", [], "i32"),
    "trace": ('{op} "an event"(%a0, %a1) : i32, !vm.buffer', ["i32", BUFFER], None),
}

# Whole bodies for what ends a block; the functions take and give i32 values.
_TERMINATORS = {
    "br": """
vm.br ^next(%a1, %a0 : i32, i32)
^next(%x: i32, %y: i32):
vm.br ^more(%y, %x : i32, i32)
^more(%z: i32, %w: i32):
%r = vm.sub.i32 %z, %w : i32
%c = vm.cmp.nz.i32 %r : i32
vm.cond_br %c, ^next(%w, %r : i32, i32), ^end
^end:
vm.return %r : i32""",
    "cond_br": """
vm.cond_br %a0, ^yes(%a1 : i32), ^no
^yes(%x: i32):
vm.return %x : i32
^no:
vm.return %a0 : i32""",
    "br_table": """
vm.br_table %a0 {
 default: ^other(%a1 : i32),
 0: ^zero(%a0 : i32),
 1: ^other(%a0 : i32)
}
^zero(%x: i32):
vm.return %x : i32
^other(%y: i32):
%r = vm.add.i32 %y, %a1 : i32
vm.return %r : i32""",
    "return": "vm.return %a0 : i32",
    "fail": """
%z = vm.const.i32.zero
vm.cond_br %a0, ^bad, ^good
^bad:
vm.fail %a1, "it failed"
^good:
vm.return %z : i32""",
    "yield": "vm.yield ^next(%a0 : i32)\n^next(%x: i32):\nvm.return %x : i32",
    "break": "vm.break ^next(%a0 : i32)\n^next(%x: i32):\nvm.return %x : i32",
    "call.yieldable": """
vm.call.yieldable @test.slow(%a0) : (i32) -> ^next(i32)
^next(%x: i32):
vm.return %x : i32""",
}

_PRELUDE = """
vm.rodata private @data dense<[1, 2, 3, 4, 5]> : tensor<5xi8>
vm.global.i32 private mutable @global_i32 = 7 : i32
vm.global.i64 private mutable @global_i64 = 8 : i64
vm.global.f32 private mutable @global_f32 = 1.5 : f32
vm.global.f64 private mutable @global_f64 = 2.5 : f64
vm.global.ref private mutable @global_ref : !vm.buffer
vm.import private @test.variadic(%a : i32, %b : i64 ..., %c : !vm.buffer ...) -> i32
vm.import private @test.slow(%a : i32) -> i32 attributes {vm.yield}
vm.import private optional @test.optional(%a : i32) -> i32
vm.func private @identity(%a: i32) -> i32 attributes {inlining_policy = #util.inline.never} {
  vm.return %a : i32
}
"""

# Operations no program in the dialect ends up with, and why. Tests assemble them by hand.
NOT_WRITTEN = {
    "block": "the marker of blocks, in every function",
    "assign.ref": "folded away when the module is optimized",
    "global.load.indirect.f32": "the compiler writes the f64 operation in its place",
    "cond_break": "the compiler leaves out its condition: IREE refuses the module, and so do we",
    "call.variadic.yieldable": "made from hal.fence.await when models are compiled",
    "cast.si32.f64": "not in the dialect",
    "cast.ui32.f64": "not in the dialect",
    "cast.f64.si32": "not in the dialect",
    "cast.f64.ui32": "not in the dialect",
}

# Operations iree-dump-module 3.13.0 cannot print.
TOOL_CANNOT_PRINT = {
    "switch.ref": "it does not skip the type, so everything after is out of step",
    "cast.ui64.f32": "it stops with 'unhandled ext opcode'",
}
_LITERALS = {"i32": "-123456", "i64": "-1234567890123", "f32": "1.1", "f64": "-2.7182818284590451"}


def _conversion(op: isa.OpInfo) -> bool:
    return op.encoding == "unary" and op.name.split(".")[0] in ("trunc", "ext")


def function_name(op: isa.OpInfo) -> str:
    """The name of the function that uses ``op``."""
    return "op_" + op.name.replace(".", "_")


def function_text(op: isa.OpInfo) -> str:
    """A function that uses ``op`` once."""
    if op.is_terminator:
        body, arguments, result = _TERMINATORS[op.name], ["i32", "i32"], "i32"
    else:
        form = "convert" if _conversion(op) else op.encoding
        statement, argument_forms, result_form = _FORMS[form]
        types = {letter: _mlir_type(value) for letter, value in zip("TU", op.types * 2, strict=False)}
        names = {"op": f"vm.{op.name}", "literal": _LITERALS.get(types.get("T", ""), ""), **types}
        body = statement.format_map(names)
        arguments = [form.format_map(names) for form in argument_forms]
        result = result_form.format_map(names) if result_form else None
        body += f"\nvm.return %r : {result}" if result else "\nvm.return"
    signature = ", ".join(f"%a{i}: {name}" for i, name in enumerate(arguments))
    arrow = f" -> {result}" if result else ""
    return (
        f"vm.export @{function_name(op)}\nvm.func @{function_name(op)}({signature}){arrow} {{\n{body}\n}}\n"
    )


def _mlir_type(value: isa.ValueType) -> str:
    return BUFFER if value is isa.ValueType.REF else value.value


def all_operations(*, without: Collection[str] = ()) -> str:
    """One module that uses every operation that can be written, but those in ``without``."""
    functions = [
        function_text(op) for op in isa.OPERATIONS if op.name not in NOT_WRITTEN and op.name not in without
    ]
    return "vm.module @every {\n" + _PRELUDE + "".join(functions) + "}\n"
