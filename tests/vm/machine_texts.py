"""Hand-written vm dialect text for operations that are more than values in, value out."""

from __future__ import annotations

GLOBALS = """
vm.global.i32 mutable @g_i32 = 7 : i32
vm.global.i64 mutable @g_i64 = -8 : i64
vm.global.f32 mutable @g_f32 = 1.5 : f32
vm.global.f64 mutable @g_f64 = 2.5 : f64
vm.global.ref mutable @g_ref : !vm.buffer
vm.global.ref mutable @g_list : !vm.list<i32>
vm.rodata private @bytes dense<[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 240]> : vector<16xi8>

vm.export @global_i32
vm.func @global_i32(%v: i32) -> (i32, i32) {
  %old = vm.global.load.i32 @g_i32 : i32
  vm.global.store.i32 %v, @g_i32 : i32
  vm.br ^next
^next:
  %new = vm.global.load.i32 @g_i32 : i32
  vm.return %old, %new : i32, i32
}
vm.export @global_i64
vm.func @global_i64(%v: i64) -> (i64, i64) {
  %old = vm.global.load.i64 @g_i64 : i64
  vm.global.store.i64 %v, @g_i64 : i64
  vm.br ^next
^next:
  %new = vm.global.load.i64 @g_i64 : i64
  vm.return %old, %new : i64, i64
}
vm.export @global_f32
vm.func @global_f32(%v: i32) -> (i32, i32) {
  %f = vm.bitcast.i32.f32 %v : i32 -> f32
  %old = vm.global.load.f32 @g_f32 : f32
  vm.global.store.f32 %f, @g_f32 : f32
  vm.br ^next
^next:
  %new = vm.global.load.f32 @g_f32 : f32
  %a = vm.bitcast.f32.i32 %old : f32 -> i32
  %b = vm.bitcast.f32.i32 %new : f32 -> i32
  vm.return %a, %b : i32, i32
}
vm.export @global_f64
vm.func @global_f64(%v: i64) -> (i64, i64) {
  %f = vm.bitcast.i64.f64 %v : i64 -> f64
  %old = vm.global.load.f64 @g_f64 : f64
  vm.global.store.f64 %f, @g_f64 : f64
  vm.br ^next
^next:
  %new = vm.global.load.f64 @g_f64 : f64
  %a = vm.bitcast.f64.i64 %old : f64 -> i64
  %b = vm.bitcast.f64.i64 %new : f64 -> i64
  vm.return %a, %b : i64, i64
}
vm.export @indirect_i32
vm.func @indirect_i32(%p: i32, %q: i32, %v: i32) -> i32 {
  vm.global.store.indirect.i32 %v, %p : i32 -> i32
  %r = vm.global.load.indirect.i32 %q : i32 -> i32
  vm.return %r : i32
}
vm.export @indirect_i64
vm.func @indirect_i64(%p: i32, %q: i32, %v: i64) -> i64 {
  vm.global.store.indirect.i64 %v, %p : i64 -> i32
  %r = vm.global.load.indirect.i64 %q : i32 -> i64
  vm.return %r : i64
}
vm.export @indirect_f64
vm.func @indirect_f64(%p: i32, %q: i32, %v: i64) -> i64 {
  %f = vm.bitcast.i64.f64 %v : i64 -> f64
  vm.global.store.indirect.f64 %f, %p : f64 -> i32
  %r = vm.global.load.indirect.f64 %q : i32 -> f64
  %b = vm.bitcast.f64.i64 %r : f64 -> i64
  vm.return %b : i64
}
vm.export @global_ref
vm.func @global_ref() -> i64 {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  vm.global.store.ref %bytes, @g_ref : !vm.buffer
  vm.br ^next
^next:
  %b = vm.global.load.ref @g_ref : !vm.buffer
  %n = vm.buffer.length %b : !vm.buffer -> i64
  vm.return %n : i64
}
vm.export @indirect_ref
vm.func @indirect_ref(%p: i32, %q: i32) -> i64 {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  vm.global.store.indirect.ref %bytes, %p : !vm.buffer -> i32
  %b = vm.global.load.indirect.ref %q : i32 -> !vm.buffer
  %n = vm.buffer.length %b : !vm.buffer -> i64
  vm.return %n : i64
}
vm.export @indirect_ref_of_wrong_type
vm.func @indirect_ref_of_wrong_type(%p: i32) -> i32 {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  vm.global.store.indirect.ref %bytes, %p : !vm.buffer -> i32
  %b = vm.global.load.indirect.ref %p : i32 -> !vm.list<i32>
  %n = vm.list.size %b : (!vm.list<i32>) -> i32
  vm.return %n : i32
}
"""

CONSTANTS = """
vm.export @constants_i32
vm.func @constants_i32() -> (i32, i32, i32) {
  %a = vm.const.i32 -2147483648
  %b = vm.const.i32.zero
  %c = vm.const.i32 2147483647
  vm.return %a, %b, %c : i32, i32, i32
}
vm.export @constants_i64
vm.func @constants_i64() -> (i64, i64, i64) {
  %a = vm.const.i64 -9223372036854775808
  %b = vm.const.i64.zero
  %c = vm.const.i64 9223372036854775807
  vm.return %a, %b, %c : i64, i64, i64
}
vm.export @constants_f32
vm.func @constants_f32(%x: i32) -> (i32, i32, i32) {
  %x32 = vm.bitcast.i32.f32 %x : i32 -> f32
  %c0 = vm.const.f32.zero
  %c1 = vm.const.f32 0x7FC00123
  %c2 = vm.const.f32 0xFF800000
  %a = vm.max.f32 %x32, %c0 : f32
  %b = vm.add.f32 %x32, %c1 : f32
  %c = vm.min.f32 %x32, %c2 : f32
  %r = vm.bitcast.f32.i32 %a : f32 -> i32
  %s = vm.cmp.nan.f32 %b : f32
  %t = vm.bitcast.f32.i32 %c : f32 -> i32
  vm.return %r, %s, %t : i32, i32, i32
}
vm.export @constants_f64
vm.func @constants_f64(%x: i64) -> (i64, i64, i64) {
  %x64 = vm.bitcast.i64.f64 %x : i64 -> f64
  %c0 = vm.const.f64.zero
  %c1 = vm.const.f64 1.0e-310
  %c2 = vm.const.f64 0x7FF0000000000000
  %a = vm.max.f64 %x64, %c0 : f64
  %b = vm.add.f64 %x64, %c1 : f64
  %c = vm.max.f64 %x64, %c2 : f64
  %r = vm.bitcast.f64.i64 %a : f64 -> i64
  %s = vm.bitcast.f64.i64 %b : f64 -> i64
  %t = vm.bitcast.f64.i64 %c : f64 -> i64
  vm.return %r, %s, %t : i64, i64, i64
}
vm.export @references
vm.func @references(%c: i32, %i: i32) -> (i32, i32, i32, i32, i32, i32) {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %null = vm.const.ref.zero : !vm.buffer
  %length = vm.const.i64 4
  %alignment = vm.const.i32 1
  %made = vm.buffer.alloc %length, %alignment : !vm.buffer
  %s = vm.select.ref %c, %bytes, %null : !vm.buffer
  %w = vm.switch.ref %i[%bytes, %null, %made] else %bytes : !vm.buffer
  %eq = vm.cmp.eq.ref %s, %bytes : !vm.buffer
  %ne = vm.cmp.ne.ref %w, %bytes : !vm.buffer
  %nz = vm.cmp.nz.ref %s : !vm.buffer
  %weq = vm.cmp.eq.ref %w, %made : !vm.buffer
  %wnz = vm.cmp.nz.ref %w : !vm.buffer
  %both = vm.cmp.eq.ref %s, %w : !vm.buffer
  vm.return %eq, %ne, %nz, %weq, %wnz, %both : i32, i32, i32, i32, i32, i32
}
vm.export @cast_ref
vm.func @cast_ref(%c: i32) -> i64 {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %capacity = vm.const.i32 1
  %list = vm.list.alloc %capacity : (i32) -> !vm.list<i32>
  %a = vm.cast.ref.any %bytes : !vm.buffer -> !vm.ref<?>
  %b = vm.cast.ref.any %list : !vm.list<i32> -> !vm.ref<?>
  %s = vm.select.ref %c, %a, %b : !vm.ref<?>
  %r = vm.cast.any.ref %s : !vm.ref<?> -> !vm.buffer
  %n = vm.buffer.length %r : !vm.buffer -> i64
  vm.return %n : i64
}
vm.export @switch_i32
vm.func @switch_i32(%i: i32, %a: i32, %b: i32) -> i32 {
  %r = vm.switch.i32 %i[%a, %b, %i] else %i : i32
  vm.return %r : i32
}
vm.export @switch_i64
vm.func @switch_i64(%i: i32, %a: i64, %b: i64) -> i64 {
  %r = vm.switch.i64 %i[%a, %b, %a] else %b : i64
  vm.return %r : i64
}
vm.export @switch_f32
vm.func @switch_f32(%i: i32, %a: i32, %b: i32) -> i32 {
  %x = vm.bitcast.i32.f32 %a : i32 -> f32
  %y = vm.bitcast.i32.f32 %b : i32 -> f32
  %r = vm.switch.f32 %i[%x, %y] else %x : f32
  %s = vm.bitcast.f32.i32 %r : f32 -> i32
  vm.return %s : i32
}
vm.export @switch_f64
vm.func @switch_f64(%i: i32, %a: i64, %b: i64) -> i64 {
  %x = vm.bitcast.i64.f64 %a : i64 -> f64
  %y = vm.bitcast.i64.f64 %b : i64 -> f64
  %r = vm.switch.f64 %i[%x, %y] else %x : f64
  %s = vm.bitcast.f64.i64 %r : f64 -> i64
  vm.return %s : i64
}
"""

_LOADS = "\n".join(
    f"""
vm.export @load_{name.replace(".", "_")}
vm.func @load_{name.replace(".", "_")}(%offset: i64) -> {kind} {{
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %v = vm.buffer.load.{name} %bytes[%offset] : !vm.buffer -> {kind}
  vm.return %v : {kind}
}}"""
    for name, kind in (
        ("i8.u", "i32"),
        ("i8.s", "i32"),
        ("i16.u", "i32"),
        ("i16.s", "i32"),
        ("i32", "i32"),
        ("i64", "i64"),
    )
)

_FLOAT_LOADS = "\n".join(
    f"""
vm.export @load_{name}
vm.func @load_{name}(%offset: i64) -> {kind} {{
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %v = vm.buffer.load.{name} %bytes[%offset] : !vm.buffer -> {name}
  %b = vm.bitcast.{name}.{kind} %v : {name} -> {kind}
  vm.return %b : {kind}
}}"""
    for name, kind in (("f32", "i32"), ("f64", "i64"))
)

_STORES = "\n".join(
    f"""
vm.export @store_{name}
vm.func @store_{name}(%offset: i64, %v: {kind}) -> (i64, i64) {{
  %n = vm.const.i64 16
  %zero = vm.const.i64 0
  %alignment = vm.const.i32 16
  %b = vm.buffer.alloc %n, %alignment : !vm.buffer
  {cast}
  vm.buffer.store.{name} {value}, %b[%offset] : {held} -> !vm.buffer
  %one = vm.const.i64 1
  %low = vm.buffer.load.i64 %b[%zero] : !vm.buffer -> i64
  %high = vm.buffer.load.i64 %b[%one] : !vm.buffer -> i64
  vm.return %low, %high : i64, i64
}}
vm.export @fill_{name}
vm.func @fill_{name}(%offset: i64, %length: i64, %v: {kind}) -> (i64, i64) {{
  %n = vm.const.i64 16
  %zero = vm.const.i64 0
  %alignment = vm.const.i32 16
  %b = vm.buffer.alloc %n, %alignment : !vm.buffer
  {cast}
  vm.buffer.fill.{name} %b, %offset, %length, {value} : {held} -> !vm.buffer
  %one = vm.const.i64 1
  %low = vm.buffer.load.i64 %b[%zero] : !vm.buffer -> i64
  %high = vm.buffer.load.i64 %b[%one] : !vm.buffer -> i64
  vm.return %low, %high : i64, i64
}}"""
    for name, kind, held, value, cast in (
        ("i8", "i32", "i32", "%v", ""),
        ("i16", "i32", "i32", "%v", ""),
        ("i32", "i32", "i32", "%v", ""),
        ("i64", "i64", "i64", "%v", ""),
        ("f32", "i32", "f32", "%x", "%x = vm.bitcast.i32.f32 %v : i32 -> f32"),
        ("f64", "i64", "f64", "%x", "%x = vm.bitcast.i64.f64 %v : i64 -> f64"),
    )
)

BUFFERS = (
    _LOADS
    + _FLOAT_LOADS
    + _STORES
    + """
vm.export @store_read_only
vm.func @store_read_only(%offset: i64, %v: i32) {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  vm.buffer.store.i32 %v, %bytes[%offset] : i32 -> !vm.buffer
  vm.return
}
vm.export @load_null
vm.func @load_null(%c: i32, %offset: i64) -> i32 {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %null = vm.const.ref.zero : !vm.buffer
  %b = vm.select.ref %c, %bytes, %null : !vm.buffer
  %v = vm.buffer.load.i32 %b[%offset] : !vm.buffer -> i32
  vm.return %v : i32
}
vm.export @length
vm.func @length(%n: i64) -> i64 {
  %alignment = vm.const.i32 16
  %b = vm.buffer.alloc %n, %alignment : !vm.buffer
  %r = vm.buffer.length %b : !vm.buffer -> i64
  vm.return %r : i64
}
vm.export @clone
vm.func @clone(%offset: i64, %n: i64, %at: i64) -> (i64, i32) {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %alignment = vm.const.i32 1
  %b = vm.buffer.clone %bytes, %offset, %n, %alignment : !vm.buffer -> !vm.buffer
  %r = vm.buffer.length %b : !vm.buffer -> i64
  %zero = vm.const.i32 99
  vm.buffer.store.i8 %zero, %b[%at] : i32 -> !vm.buffer
  %zero64 = vm.const.i64 0
  %v = vm.buffer.load.i8.u %b[%zero64] : !vm.buffer -> i32
  vm.return %r, %v : i64, i32
}
vm.export @copy
vm.func @copy(%from: i64, %to: i64, %n: i64) -> (i64, i64) {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %c16 = vm.const.i64 16
  %alignment = vm.const.i32 16
  %b = vm.buffer.alloc %c16, %alignment : !vm.buffer
  vm.buffer.copy %bytes, %from, %b, %to, %n : !vm.buffer -> !vm.buffer
  %zero = vm.const.i64 0
  %one = vm.const.i64 1
  %low = vm.buffer.load.i64 %b[%zero] : !vm.buffer -> i64
  %high = vm.buffer.load.i64 %b[%one] : !vm.buffer -> i64
  vm.return %low, %high : i64, i64
}
vm.export @compare
vm.func @compare(%a: i64, %b: i64, %n: i64) -> i32 {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %r = vm.buffer.compare %bytes, %a, %bytes, %b, %n : !vm.buffer, !vm.buffer
  vm.return %r : i32
}
vm.export @hash
vm.func @hash(%offset: i64, %n: i64) -> i64 {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %r = vm.buffer.hash %bytes, %offset, %n : !vm.buffer -> i64
  vm.return %r : i64
}
"""
)

_LIST_NUMBERS = "\n".join(
    f"""
vm.export @{name}
vm.func @{name}(%i: i32, %v: {bits[stored]}, %j: i32) -> {bits[loaded]} {{
  %n = vm.const.i32 3
  %list = vm.list.alloc %n : (i32) -> !vm.list<{element}>
  vm.list.resize %list, %n : (!vm.list<{element}>, i32)
  {f"%x = vm.bitcast.{bits[stored]}.{stored} %v : {bits[stored]} -> {stored}" if stored[0] == "f" else ""}
  vm.list.set.{stored} %list, %i, {"%x" if stored[0] == "f" else "%v"} : (!vm.list<{element}>, i32, {stored})
  %r = vm.list.get.{loaded} %list, %j : (!vm.list<{element}>, i32) -> {loaded}
  {f"%s = vm.bitcast.{loaded}.{bits[loaded]} %r : {loaded} -> {bits[loaded]}" if loaded[0] == "f" else ""}
  vm.return {"%s" if loaded[0] == "f" else "%r"} : {bits[loaded]}
}}"""
    for bits in [{"i32": "i32", "i64": "i64", "f32": "i32", "f64": "i64"}]
    for element, stored, loaded in (
        ("i32", "i32", "i32"),
        ("i64", "i64", "i64"),
        ("f32", "f32", "f32"),
        ("f64", "f64", "f64"),
        ("i8", "i32", "i32"),
        ("i16", "i32", "i32"),
        ("?", "i32", "i32"),
        ("?", "i32", "i64"),
        ("?", "i64", "i32"),
        ("?", "f32", "f64"),
        ("?", "f64", "f32"),
        ("?", "f32", "i32"),
        ("?", "i64", "f64"),
    )
    for name in [f"list_{element.replace('?', 'any')}_as_{stored}_as_{loaded}"]
)

LISTS = (
    _LIST_NUMBERS
    + """
vm.export @list_size
vm.func @list_size(%capacity: i32, %reserve: i32, %a: i32, %b: i32) -> (i32, i32, i32) {
  %list = vm.list.alloc %capacity : (i32) -> !vm.list<i64>
  %x = vm.list.size %list : (!vm.list<i64>) -> i32
  vm.list.reserve %list, %reserve : (!vm.list<i64>, i32)
  vm.list.resize %list, %a : (!vm.list<i64>, i32)
  %y = vm.list.size %list : (!vm.list<i64>) -> i32
  vm.list.resize %list, %b : (!vm.list<i64>, i32)
  %z = vm.list.size %list : (!vm.list<i64>) -> i32
  vm.return %x, %y, %z : i32, i32, i32
}
vm.export @list_refs
vm.func @list_refs(%i: i32, %j: i32) -> (i32, i32, i32) {
  %n = vm.const.i32 2
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %list = vm.list.alloc %n : (i32) -> !vm.list<?>
  vm.list.resize %list, %n : (!vm.list<?>, i32)
  vm.list.set.ref %list, %i, %bytes : (!vm.list<?>, i32, !vm.buffer)
  %a = vm.list.get.ref %list, %j : (!vm.list<?>, i32) -> !vm.buffer
  %b = vm.list.get.ref %list, %j : (!vm.list<?>, i32) -> !vm.list<i8>
  %x = vm.cmp.nz.ref %a : !vm.buffer
  %y = vm.cmp.nz.ref %b : !vm.list<i8>
  %z = vm.cmp.eq.ref %a, %bytes : !vm.buffer
  vm.return %x, %y, %z : i32, i32, i32
}
vm.export @list_of_lists
vm.func @list_of_lists(%i: i32, %v: i32) -> (i32, i32) {
  %n = vm.const.i32 2
  %inner = vm.list.alloc %n : (i32) -> !vm.list<i32>
  vm.list.resize %inner, %v : (!vm.list<i32>, i32)
  %list = vm.list.alloc %n : (i32) -> !vm.list<!vm.list<i32>>
  vm.list.resize %list, %n : (!vm.list<!vm.list<i32>>, i32)
  vm.list.set.ref %list, %i, %inner : (!vm.list<!vm.list<i32>>, i32, !vm.list<i32>)
  %a = vm.list.get.ref %list, %i : (!vm.list<!vm.list<i32>>, i32) -> !vm.list<i32>
  %r = vm.list.size %a : (!vm.list<i32>) -> i32
  %q = vm.cmp.eq.ref %a, %inner : !vm.list<i32>
  vm.return %r, %q : i32, i32
}
vm.export @list_ref_as_number
vm.func @list_ref_as_number(%i: i32) -> i32 {
  %n = vm.const.i32 2
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %list = vm.list.alloc %n : (i32) -> !vm.list<?>
  vm.list.resize %list, %n : (!vm.list<?>, i32)
  vm.list.set.ref %list, %i, %bytes : (!vm.list<?>, i32, !vm.buffer)
  %r = vm.list.get.i32 %list, %i : (!vm.list<?>, i32) -> i32
  vm.return %r : i32
}
vm.export @list_number_as_ref
vm.func @list_number_as_ref(%i: i32) -> i32 {
  %n = vm.const.i32 2
  %list = vm.list.alloc %n : (i32) -> !vm.list<?>
  vm.list.resize %list, %n : (!vm.list<?>, i32)
  vm.list.set.i32 %list, %i, %n : (!vm.list<?>, i32, i32)
  %a = vm.list.get.ref %list, %i : (!vm.list<?>, i32) -> !vm.buffer
  %r = vm.cmp.nz.ref %a : !vm.buffer
  vm.return %r : i32
}
vm.export @list_null
vm.func @list_null(%c: i32) -> i32 {
  %n = vm.const.i32 2
  %list = vm.list.alloc %n : (i32) -> !vm.list<i32>
  %null = vm.const.ref.zero : !vm.list<i32>
  %l = vm.select.ref %c, %list, %null : !vm.list<i32>
  %r = vm.list.size %l : (!vm.list<i32>) -> i32
  vm.return %r : i32
}
"""
)

CONTROL = """
vm.export @count
vm.func @count(%n: i32) -> (i32, i64) {
  %zero = vm.const.i32 0
  %one = vm.const.i32 1
  %one64 = vm.const.i64 1
  vm.br ^head(%zero, %one64 : i32, i64)
^head(%i: i32, %product: i64):
  %more = vm.cmp.lt.i32.s %i, %n : i32
  vm.cond_br %more, ^body, ^done
^body:
  %next = vm.add.i32 %i, %one : i32
  %wide = vm.ext.i32.i64.s %next : i32 -> i64
  %p = vm.mul.i64 %product, %wide : i64
  vm.br ^head(%next, %p : i32, i64)
^done:
  vm.return %i, %product : i32, i64
}
vm.export @swap
vm.func @swap(%n: i32, %a: i64, %b: i64, %x: i32, %y: i32) -> (i64, i64, i32, i32) {
  %zero = vm.const.i32 0
  %one = vm.const.i32 1
  vm.br ^head(%zero, %a, %b, %x, %y : i32, i64, i64, i32, i32)
^head(%i: i32, %c: i64, %d: i64, %u: i32, %v: i32):
  %more = vm.cmp.lt.i32.s %i, %n : i32
  %next = vm.add.i32 %i, %one : i32
  vm.cond_br %more, ^head(%next, %d, %c, %v, %u : i32, i64, i64, i32, i32), ^done
^done:
  vm.return %c, %d, %u, %v : i64, i64, i32, i32
}
vm.export @swap_refs
vm.func @swap_refs(%n: i32) -> (i64, i64) {
  %zero = vm.const.i32 0
  %one = vm.const.i32 1
  %n1 = vm.const.i64 11
  %n2 = vm.const.i64 22
  %a = vm.buffer.alloc %n1, %one : !vm.buffer
  %b = vm.buffer.alloc %n2, %one : !vm.buffer
  vm.br ^head(%zero, %a, %b : i32, !vm.buffer, !vm.buffer)
^head(%i: i32, %c: !vm.buffer, %d: !vm.buffer):
  %more = vm.cmp.lt.i32.s %i, %n : i32
  %next = vm.add.i32 %i, %one : i32
  vm.cond_br %more, ^head(%next, %d, %c : i32, !vm.buffer, !vm.buffer), ^done
^done:
  %x = vm.buffer.length %c : !vm.buffer -> i64
  %y = vm.buffer.length %d : !vm.buffer -> i64
  vm.return %x, %y : i64, i64
}
vm.export @nested_loops
vm.func @nested_loops(%n: i32, %m: i32) -> i32 {
  %zero = vm.const.i32 0
  %one = vm.const.i32 1
  vm.br ^outer(%zero, %zero : i32, i32)
^outer(%i: i32, %sum: i32):
  %more = vm.cmp.lt.i32.s %i, %n : i32
  vm.cond_br %more, ^inner(%zero, %sum : i32, i32), ^done
^inner(%j: i32, %s: i32):
  %again = vm.cmp.lt.i32.s %j, %m : i32
  %ij = vm.mul.i32 %i, %j : i32
  %t = vm.add.i32 %s, %ij : i32
  %k = vm.add.i32 %j, %one : i32
  vm.cond_br %again, ^test(%k, %t : i32, i32), ^after
^test(%kk: i32, %tt: i32):
  %limit = vm.const.i32 1000
  %big = vm.cmp.lt.i32.s %limit, %tt : i32
  vm.cond_br %big, ^done2(%tt : i32), ^inner(%kk, %tt : i32, i32)
^after:
  %l = vm.add.i32 %i, %one : i32
  vm.br ^outer(%l, %s : i32, i32)
^done:
  vm.return %sum : i32
^done2(%r: i32):
  %minus = vm.sub.i32 %zero, %r : i32
  vm.return %minus : i32
}
vm.export @table
vm.func @table(%i: i32, %a: i32, %b: i32) -> i32 {
  vm.br_table %i {
    default: ^plain(%a : i32),
    0: ^plain(%b : i32),
    1: ^double(%a : i32),
    2: ^negate
  }
^plain(%x: i32):
  vm.return %x : i32
^double(%y: i32):
  %d = vm.add.i32 %y, %y : i32
  vm.br ^plain(%d : i32)
^negate:
  %n = vm.not.i32 %a : i32
  vm.br ^double(%n : i32)
}
vm.export @breaks
vm.func @breaks(%c: i32, %a: i32) -> i32 {
  vm.trace "event"(%a) : i32
  vm.print "message"(%a, %c) : i32, i32
  vm.break ^last(%a : i32)
^last(%y: i32):
  vm.return %y : i32
}
vm.export @yields
vm.func @yields(%n: i32) -> i32 attributes {vm.yield} {
  %zero = vm.const.i32 0
  %one = vm.const.i32 1
  vm.yield ^head(%zero : i32)
^head(%i: i32):
  %next = vm.add.i32 %i, %one : i32
  %more = vm.cmp.lt.i32.s %next, %n : i32
  vm.cond_br %more, ^again, ^done
^again:
  vm.yield ^head(%next : i32)
^done:
  vm.return %next : i32
}
vm.export @calls_yielding
vm.func @calls_yielding(%n: i32, %w: i64) -> (i32, i64) attributes {vm.yield} {
  vm.call.yieldable @yields(%n) : (i32) -> ^next(i32)
^next(%r: i32):
  %x = vm.ext.i32.i64.s %r : i32 -> i64
  %s = vm.add.i64 %x, %w : i64
  vm.return %r, %s : i32, i64
}
vm.export @fails
vm.func @fails(%code: i32) {
  vm.cond_br %code, ^bad, ^good
^bad:
  vm.fail %code, "as asked"
^good:
  vm.return
}
vm.export @cond_fails
vm.func @cond_fails(%a: i32) -> i32 {
  %code = vm.const.i32 3
  %limit = vm.const.i32 10
  %big = vm.cmp.lt.i32.s %limit, %a : i32
  vm.cond_fail %big, %code, "too big"
  vm.return %a : i32
}
vm.export @calls_mixed
vm.func @calls_mixed(%a: i32, %b: i64, %c: i32) -> (i64, i32, i64) {
  %bytes = vm.const.ref.rodata @bytes : !vm.buffer
  %x, %y, %z = vm.call @mixed(%a, %bytes, %b, %c) : (i32, !vm.buffer, i64, i32) -> (i64, i32, !vm.buffer)
  %n = vm.buffer.length %z : !vm.buffer -> i64
  vm.return %x, %y, %n : i64, i32, i64
}
vm.func private @mixed(%a: i32, %r: !vm.buffer, %b: i64, %c: i32) -> (i64, i32, !vm.buffer)
    attributes {inlining_policy = #util.inline.never} {
  %one = vm.const.i64 1
  %s = vm.add.i64 %b, %one : i64
  %t = vm.sub.i32 %a, %c : i32
  vm.return %s, %t, %r : i64, i32, !vm.buffer
}
"""

RECURSION = """
vm.export @factorial
vm.func @factorial(%n: i32) -> i64 attributes {inlining_policy = #util.inline.never} {
  %one = vm.const.i32 1
  %one64 = vm.const.i64 1
  %small = vm.cmp.lt.i32.s %n, %one : i32
  vm.cond_br %small, ^base, ^step
^base:
  vm.return %one64 : i64
^step:
  %m = vm.sub.i32 %n, %one : i32
  %rest = vm.call @stand_in(%m) : (i32) -> i64
  %wide = vm.ext.i32.i64.s %n : i32 -> i64
  %r = vm.mul.i64 %wide, %rest : i64
  vm.return %r : i64
}
vm.func private @stand_in(%n: i32) -> i64 attributes {inlining_policy = #util.inline.never} {
  %wide = vm.ext.i32.i64.s %n : i32 -> i64
  vm.return %wide : i64
}
"""
"""iree-compile does not end on recursive functions: a test redirects the call to the caller."""

CAST_STAND_INS = """
vm.export @f32_to_f64
vm.func @f32_to_f64(%a: f32) -> i64 {
  %r = vm.ext.f32.f64 %a : f32 -> f64
  %b = vm.bitcast.f64.i64 %r : f64 -> i64
  vm.return %b : i64
}
vm.export @f64_to_f32
vm.func @f64_to_f32(%a: i64) -> f32 {
  %x = vm.bitcast.i64.f64 %a : i64 -> f64
  %r = vm.trunc.f64.f32 %x : f64 -> f32
  vm.return %r : f32
}
"""
"""The dialect has no casts between i32 and f64: a test replaces these opcodes and signatures."""

INDIRECT_F32 = """
vm.global.f32 mutable @g_f32 = 1.5 : f32
vm.global.f32 mutable @g_other = 2.5 : f32
vm.export @indirect_f32
vm.func @indirect_f32(%p: i32, %q: i32, %v: i32) -> i32 {
  %f = vm.bitcast.i32.f32 %v : i32 -> f32
  vm.global.store.indirect.f32 %f, %p : f32 -> i32
  %r = vm.global.load.indirect.f32 %q : i32 -> f32
  %b = vm.bitcast.f32.i32 %r : f32 -> i32
  vm.return %b : i32
}
"""
"""iree-compile 3.13 gives the load of this the prefix of f64 operations: a test puts it right."""

IMPORTS = """
vm.import private @native.add(%a : i32, %b : i32) -> i32
vm.import private @native.sum(%first : i64, %rest : i64 ...) -> i64
vm.import private @native.pairs(%scale : i32, %pairs : tuple<i32, i64> ..., %tail : i32) -> (i64, i32)
vm.import private @native.later(%a : i32) -> i32 attributes {vm.yield}
vm.import private @native.later_sum(%rest : i32 ...) -> i32 attributes {vm.yield}
vm.import private @native.keep(%b : !vm.buffer) -> !vm.buffer
vm.import private @native.none()
vm.import private @native.raise(%code : i32)
vm.import private optional @native.missing(%a : i32) -> i32
vm.import private optional @native.present(%a : i32) -> i32

vm.export @add
vm.func @add(%a: i32, %b: i32) -> i32 {
  vm.call @native.none() : () -> ()
  %r = vm.call @native.add(%a, %b) : (i32, i32) -> i32
  vm.return %r : i32
}
vm.export @sum
vm.func @sum(%a: i64, %b: i64) -> (i64, i64) {
  %r = vm.call.variadic @native.sum(%a, [%b, %b, %a]) : (i64, i64 ...) -> i64
  %s = vm.call.variadic @native.sum(%a, []) : (i64, i64 ...) -> i64
  vm.return %r, %s : i64, i64
}
vm.export @pairs
vm.func @pairs(%a: i32, %b: i64) -> (i64, i32) {
  %r, %s = vm.call.variadic @native.pairs(%a, [(%a, %b), (%a, %b)], %a)
      : (i32, tuple<i32, i64> ..., i32) -> (i64, i32)
  vm.return %r, %s : i64, i32
}
vm.export @later
vm.func @later(%a: i32) -> i32 attributes {vm.yield} {
  %r = vm.call @native.later(%a) : (i32) -> i32
  %s = vm.call.variadic @native.later_sum([%r, %a]) : (i32 ...) -> i32
  vm.return %s : i32
}
vm.export @keep
vm.func @keep(%n: i64) -> i64 {
  %alignment = vm.const.i32 16
  %b = vm.buffer.alloc %n, %alignment : !vm.buffer
  %k = vm.call @native.keep(%b) : (!vm.buffer) -> !vm.buffer
  %l = vm.buffer.length %k : !vm.buffer -> i64
  vm.return %l : i64
}
vm.export @raise
vm.func @raise(%code: i32) {
  vm.call @native.raise(%code) : (i32) -> ()
  vm.return
}
vm.export @optional
vm.func @optional(%a: i32) -> (i32, i32) {
  %m = vm.import.resolved @native.missing : i32
  %p = vm.import.resolved @native.present : i32
  vm.return %m, %p : i32, i32
}
vm.export @call_missing
vm.func @call_missing(%a: i32) -> i32 {
  %r = vm.call @native.missing(%a) : (i32) -> i32
  vm.return %r : i32
}
"""
