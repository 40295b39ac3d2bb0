"""Side modules that lie or are broken: refused with a typed error, the space unchanged."""

from __future__ import annotations

import random

import pytest

from sylvite.engines.base import Limits, ValueType
from sylvite.errors import (
    FormatError,
    LinkError,
    OutOfMemoryError,
    SylviteError,
    TrapError,
    UnsupportedFeatureError,
)
from sylvite.linker import LinkSpace
from sylvite.wasm import ModuleBuilder, expression
from sylvite.wasm.dylink import DylinkInfo

I32, I64, F32 = ValueType.I32, ValueType.I64, ValueType.F32


def build(body=None, *, memory=True, table=True, info=None):
    """A side module; ``body`` gets the builder after env.memory, env.__indirect_function_table and the
    globals __memory_base (0) and __table_base (1)."""
    module = ModuleBuilder("lying")
    if info is not None:
        module.dylink(info)
    if memory:
        module.import_memory("env", "memory", 0)
    if table:
        module.import_table("env", "__indirect_function_table", 0)
    module.import_global("env", "__memory_base", I32)
    module.import_global("env", "__table_base", I32)
    if body is not None:
        body(module)
    return module.build()


def at(base, offset):
    """The constant expression ``global base + offset``."""
    return expression(("global.get", base), ("i32.const", offset), ("i32.add",))


def data_at(offset, data=b"12345678"):
    return lambda module: module.add_data(data, offset)


def elements_at(offset, count=1):
    def body(module):
        function = module.function("f", [], [I32], export=True).i32(1)
        module.add_elements([function] * count, offset)

    return body


def importing(method, *arguments, **options):
    return lambda module: getattr(module, f"import_{method}")(*arguments, **options)


def exporting(name, params=(), results=(), instruction="unreachable"):
    return lambda module: module.function(name, params, results, export=True).emit(instruction)


SMALL = DylinkInfo(memory_size=16, table_size=2)


def starting(module):
    module.start(module.function("boot").emit("unreachable"))


REFUSED = {
    "no dylink.0": (build(), LinkError, "no dylink.0"),
    "memory of its own": (
        build(lambda m: m.add_memory(1), memory=False, info=SMALL),
        LinkError,
        "defines a memory",
    ),
    "second memory of its own": (build(lambda m: m.add_memory(1), info=SMALL), LinkError, "defines a memory"),
    "table of its own": (
        build(lambda m: m.add_table(1), table=False, info=SMALL),
        LinkError,
        "defines a table",
    ),
    "data too long": (build(data_at(at(0, 0), b"x" * 17), info=SMALL), FormatError, "data segment 0"),
    "data past the end": (build(data_at(at(0, 9)), info=SMALL), FormatError, "data segment 0"),
    "data before the start": (build(data_at(at(0, -1)), info=SMALL), FormatError, "data segment 0"),
    "data wrapped around": (build(data_at(at(0, -(2**31))), info=SMALL), FormatError, "data segment 0"),
    "data at an absolute address": (build(data_at(2048), info=SMALL), FormatError, "data segment 0"),
    "data at the table base": (build(data_at(at(1, 0)), info=SMALL), FormatError, "data segment 0"),
    "data without memory": (build(data_at(at(0, 0)), info=DylinkInfo()), FormatError, "data segment 0"),
    "elements too many": (build(elements_at(at(1, 0), 3), info=SMALL), FormatError, "element segment 0"),
    "elements past the end": (build(elements_at(at(1, 2)), info=SMALL), FormatError, "element segment 0"),
    "elements before the start": (
        build(elements_at(at(1, -1)), info=SMALL),
        FormatError,
        "element segment 0",
    ),
    "elements absolute": (build(elements_at(0), info=SMALL), FormatError, "element segment 0"),
    "memory_size of everything": (
        build(info=DylinkInfo(memory_size=2**32 - 1)),
        OutOfMemoryError,
        "4294967295 bytes",
    ),
    "memory_size above the cap": (build(info=DylinkInfo(memory_size=1 << 27)), OutOfMemoryError, "limit"),
    "memory alignment": (
        build(info=DylinkInfo(memory_size=1, memory_alignment=31)),
        LinkError,
        "alignment of 2\\*\\*31",
    ),
    "table alignment": (
        build(info=DylinkInfo(table_size=1, table_alignment=31)),
        LinkError,
        "alignment of 2\\*\\*31",
    ),
    "table_size huge": (build(info=DylinkInfo(table_size=2**32 - 1)), OutOfMemoryError, "table"),
    "memory import huge": (
        build(importing("memory", "env", "memory", 65536), memory=False, info=SMALL),
        OutOfMemoryError,
        "limit",
    ),
    "memory import shared": (
        build(importing("memory", "env", "memory", 1, 2, shared=True), memory=False, info=SMALL),
        LinkError,
        "shared memory",
    ),
    "memory import of 64 bits": (
        build(importing("memory", "env", "memory", 1, is_64=True), memory=False, info=SMALL),
        UnsupportedFeatureError,
        "64-bit",
    ),
    "memory import with a small maximum": (
        build(importing("memory", "env", "memory", 0, 1), memory=False, info=SMALL),
        LinkError,
        "memory",
    ),
    "memory of another name": (
        build(importing("memory", "env", "other", 0), memory=False, info=SMALL),
        LinkError,
        "env.other",
    ),
    "table import huge": (
        build(importing("table", "env", "__indirect_function_table", 1 << 31), table=False, info=SMALL),
        OutOfMemoryError,
        "table",
    ),
    "table of another name": (
        build(importing("table", "env", "other", 0), table=False, info=SMALL),
        LinkError,
        "env.other",
    ),
    "table of another type": (
        build(
            importing("table", "env", "__indirect_function_table", 0, element=ValueType.EXTERNREF),
            table=False,
            info=SMALL,
        ),
        LinkError,
        "table",
    ),
    "global of another name": (build(importing("global", "env", "g", I32), info=SMALL), LinkError, "env.g"),
    "global of another type": (
        build(importing("global", "env", "__memory_base", I64), info=SMALL),
        LinkError,
        "__memory_base",
    ),
    "global of another mutability": (
        build(importing("global", "env", "__stack_pointer", I32), info=SMALL),
        LinkError,
        "__stack_pointer",
    ),
    "GOT entry that is constant": (
        build(importing("global", "GOT.mem", "x", I32), info=SMALL),
        LinkError,
        "GOT.mem.x",
    ),
    "GOT entry of another type": (
        build(importing("global", "GOT.func", "x", F32, mutable=True), info=SMALL),
        LinkError,
        "GOT.func.x",
    ),
    "memory in the GOT": (
        build(importing("memory", "GOT.mem", "x", 0), memory=False, info=SMALL),
        LinkError,
        "GOT.mem.x",
    ),
    "needed modules": (build(info=DylinkInfo(needed=("a.so", "b.so"))), LinkError, "a.so, b.so"),
    "start that traps": (build(starting, info=SMALL), TrapError, "boot"),
    "relocations that trap": (
        build(exporting("__wasm_apply_data_relocs"), info=SMALL),
        TrapError,
        "unreachable in __wasm_apply_data_relocs",
    ),
    "constructor that traps": (build(exporting("__wasm_call_ctors"), info=SMALL), TrapError, "unreachable"),
    "constructor with parameters": (
        build(exporting("__wasm_call_ctors", [I32]), info=SMALL),
        LinkError,
        "another type",
    ),
    "constructor with results": (
        build(exporting("__wasm_call_ctors", [], [I32]), info=SMALL),
        LinkError,
        "another type",
    ),
    "exceptions": (build(lambda m: m.add_tag(), info=SMALL), UnsupportedFeatureError, "exception"),
    "not wasm": (b"MZ\x90\0", FormatError, "magic|WebAssembly"),
    "nothing": (b"", FormatError, ""),
}


@pytest.fixture(scope="module")
def capped(linker_engine):
    limits = Limits(memory_bytes=64 << 20, deadline_ns=2_000_000_000)
    with LinkSpace(linker_engine, limits=limits) as link_space:
        yield link_space


@pytest.mark.parametrize("case", REFUSED)
def test_load_lying_module_is_refused_and_leaves_the_space_unchanged(capped, case):
    data, kind, message = REFUSED[case]
    good = build(data_at(at(0, 0)), info=SMALL)
    with capped.load(good, name="good") as witness:
        before = capped.heap.statistics, capped.slots.live_count, capped.modules
        with pytest.raises(kind) as caught:
            capped.load(data, name="liar")
        if message:
            caught.match(message)
        if kind is not OutOfMemoryError and kind is not TrapError:
            assert "liar" in str(caught.value) or case == "start that traps"
        after = capped.heap.statistics, capped.slots.live_count, capped.modules
        assert after[0].live_bytes == before[0].live_bytes
        assert after[0].live_count == before[0].live_count
        assert after[1:] == before[1:]
        assert capped.read(witness.memory_base, 8) == b"12345678"
        assert capped.stack.pointer.value == capped.stack.top


def test_load_data_at_every_place_inside_is_accepted(capped):
    for offset in range(9):
        with capped.load(build(data_at(at(0, offset)), info=SMALL), name="good") as module:
            assert capped.read(module.memory_base + offset, 8) == b"12345678"


def test_load_element_expressions_are_checked_and_named(capped, linker_engine):
    import wasmtime

    text = """(module
      (@custom "dylink.0" (before first) "\\01\\04\\00\\00\\03\\00")
      (import "env" "memory" (memory 0))
      (import "env" "__indirect_function_table" (table 0 funcref))
      (import "env" "__table_base" (global $base i32))
      (func $f (export "f")) (func $g)
      (elem (offset global.get $base) funcref (ref.func $f) (ref.null func) (ref.func $g))
    )"""
    data = bytes(wasmtime.wat2wasm(text))
    with capped.load(data, name="m") as module:
        names = [module.function_name(module.table_base + i) for i in range(3)]
        assert names == ["f", None, "g"]
        assert module.slot_of("f") == module.table_base


def mutants(data, count, seed):
    """Seeded damage: flipped bits, changed bytes, cut and doubled pieces."""
    generator = random.Random(seed)
    for _ in range(count):
        mutant = bytearray(data)
        for _ in range(generator.randint(1, 3)):
            at_ = generator.randrange(len(mutant))
            kind = generator.randrange(5)
            if kind == 0:
                mutant[at_] ^= 1 << generator.randrange(8)
            elif kind == 1:
                mutant[at_] = generator.choice([0, 0x7F, 0x80, 0xFF, 0x0B])
            elif kind == 2:
                del mutant[at_ : at_ + generator.randint(1, 8)]
            elif kind == 3:
                mutant[at_:at_] = mutant[at_ : at_ + generator.randint(1, 8)]
            else:
                del mutant[max(at_, 8) :]
            if not mutant:
                mutant = bytearray(b"\0")
        yield bytes(mutant)


def load_mutants(linker_engine, data, count, seed):
    limits = Limits(memory_bytes=64 << 20, deadline_ns=500_000_000)
    loaded = 0
    with LinkSpace(linker_engine, limits=limits) as space:
        space.load(data, name="good").close()
        before = space.heap.statistics.live_bytes, space.slots.live_count
        for mutant in mutants(data, count, seed):
            try:
                space.load(mutant, name="mutant").close()
                loaded += 1
            except SylviteError:
                pass
            assert (space.heap.statistics.live_bytes, space.slots.live_count) == before
        space.load(data, name="good")
    return loaded


MUTANT_SOURCE = """
extern float fmaxf(float, float);
int numbers[8] = {1, 2, 3};
int *pointer = &numbers[2];
static int twice(int x) { return 2 * x; }
int (*function)(int) = twice;
volatile int made;
__attribute__((constructor)) static void make(void) { made = 1; }
int run(int x) { return function(x) + *pointer; }
float most(float a, float b) { return fmaxf(a, b); }
"""


@pytest.mark.compiler
def test_load_mutated_modules_are_loaded_or_refused(linker_engine, build_c):
    loaded = load_mutants(linker_engine, build_c(MUTANT_SOURCE), 250, seed=1)
    assert 0 < loaded < 250


@pytest.mark.slow
@pytest.mark.compiler
def test_load_many_mutated_modules_are_loaded_or_refused(linker_engine, build_c, iree_executable):
    for seed, data in enumerate((build_c(MUTANT_SOURCE), iree_executable)):
        load_mutants(linker_engine, data, 3000, seed=seed + 2)


@pytest.mark.compiler
def test_load_truncated_module_is_refused_at_every_length(capped, build_c):
    data = build_c(MUTANT_SOURCE)
    for length in range(0, len(data), 7):
        try:
            capped.load(data[:length], name="cut").close()
        except (FormatError, LinkError):
            continue


@pytest.mark.parametrize(
    ("instruction", "word"), [("memory.atomic.wait32", "i32"), ("memory.atomic.wait64", "i64")]
)
def test_module_that_waits_for_other_threads_is_refused(space, instruction, word):
    def waits(module):
        function = module.function("waits", [], [I32], export=True)
        function.emit("i32.const", 2048).emit(f"{word}.const", 0).emit("i64.const", -1)
        function.emit(instruction, offset=0)

    with pytest.raises(UnsupportedFeatureError, match=f"function 0 sleeps .{instruction}.") as caught:
        space.load(build(waits, info=DylinkInfo()), name="waits")
    assert caught.value.offset is not None
