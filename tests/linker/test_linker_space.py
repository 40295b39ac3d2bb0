"""Linking C modules built by clang and lld, and modules assembled here."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

from sylvite import engines
from sylvite.engines.base import Limits, ValueType
from sylvite.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    LinkError,
    NotFoundError,
    OutOfMemoryError,
    TrapError,
)
from sylvite.linker import HostFunctionSpec, LinkSpace
from sylvite.trace import Tracer
from sylvite.wasm import ExternKind, ModuleBuilder
from sylvite.wasm.dylink import DylinkInfo

I32, I64, F32, F64 = ValueType.I32, ValueType.I64, ValueType.F32, ValueType.F64
PAGE = 65536

# Everything a module can have: data that points to data and functions, a table, a constructor, a stack.
PROVIDER = """
int counter = 5;
int numbers[4] = {10, 20, 30, 40};
int *third = &numbers[2];
int add_counter(int x) { return x + counter; }
void bump(void) { counter++; }
"""

CONSUMER = """
extern int counter;
extern int numbers[4];
extern int add_counter(int);
extern void bump(void);
__attribute__((weak)) extern int maybe(int);
__attribute__((weak)) extern int maybe_data;

static int twice(int x) { return 2 * x; }
static int thrice(int x) { return 3 * x; }
static int (*const operations[2])(int) = {twice, thrice};
int (*imported)(int) = add_counter;
int *pointer = &numbers[1];
static volatile int constructed;
volatile int seed = 21;
static int zeros[1000];

__attribute__((constructor)) static void construct(void) { constructed = 2 * seed; }

int run(int which, int x) { return operations[which](x); }
int run_imported(int x) { return imported(x); }
int call_directly(int x) { return add_counter(x); }
int read_pointer(void) { return *pointer; }
int read_counter(void) { return counter; }
void call_bump(void) { bump(); }
int get_constructed(void) { return constructed; }
int has_maybe(void) { return maybe != 0; }
int *address_of_maybe(void) { return &maybe_data; }
int call_maybe(int x) { return maybe(x); }
void *address_of_import(void) { return (void *)add_counter; }
int all_zero(void) { for (int i = 0; i < 1000; i++) if (zeros[i]) return 0; return 1; }
void spoil(void) { for (int i = 0; i < 1000; i++) zeros[i] = i | 1; }
__attribute__((noinline, optnone)) int use_stack(int depth) {
  volatile char buffer[1024];
  buffer[0] = (char)depth;
  return depth ? use_stack(depth - 1) + (buffer[0] == (char)depth) : 0;
}
int divide(int a, int b) { return a / b; }
"""


@pytest.fixture
def linked(space, build_c):
    provider = space.load(build_c(PROVIDER), name="provider")
    consumer = space.load(build_c(CONSUMER), name="consumer")
    return provider, consumer


def side_module(body=None, *, imports=(), **info):
    """A small side module; ``body`` adds to the builder after memory, table and ``imports``."""
    module = ModuleBuilder("small")
    module.dylink(DylinkInfo(**info))
    for kind, space, name, *rest in imports:
        getattr(module, f"import_{kind}")(space, name, *rest)
    module.import_memory("env", "memory", 0)
    module.import_table("env", "__indirect_function_table", 0)
    if body is not None:
        body(module)
    return module.build()


def returns(value):
    """A body that exports ``f() -> value``."""
    return lambda module: module.function("f", [], [I32], export=True).i32(value)


# Real modules


@pytest.mark.compiler
def test_load_functions_call_across_modules(linked):
    _, consumer = linked
    assert consumer.exports["call_directly"](3) == 8
    consumer.exports["call_bump"]()
    assert consumer.exports["call_directly"](3) == 9


@pytest.mark.compiler
def test_load_function_pointers_work_in_data_and_across_modules(linked, space):
    provider, consumer = linked
    exports = consumer.exports
    assert [exports["run"](which, 7) for which in (0, 1)] == [14, 21]
    assert exports["run_imported"](1) == 6
    slot = exports["address_of_import"]()
    assert slot == provider.slot_of("add_counter")
    assert space.table.get(slot)(10) == 15


@pytest.mark.compiler
def test_load_data_pointers_reach_other_modules(linked, space):
    provider, consumer = linked
    assert consumer.exports["read_pointer"]() == 20
    assert consumer.exports["read_counter"]() == 5
    address = provider.data_address("numbers")
    space.write(address + 4, (77).to_bytes(4, "little"))
    assert consumer.exports["read_pointer"]() == 77
    third = int.from_bytes(space.read(provider.data_address("third"), 4), "little")
    assert third == address + 8
    with pytest.raises(NotFoundError):
        provider.data_address("nothing")


@pytest.mark.compiler
def test_load_runs_constructors_after_relocation(linked):
    assert linked[1].exports["get_constructed"]() == 42


@pytest.mark.compiler
def test_load_weak_symbols_may_be_undefined(linked):
    exports = linked[1].exports
    assert exports["has_maybe"]() == 0
    assert exports["address_of_maybe"]() == 0
    with pytest.raises(TrapError, match="unreachable in maybe < call_maybe"):
        exports["call_maybe"](1)


@pytest.mark.compiler
def test_load_weak_symbols_are_used_when_defined(space, build_c):
    space.load(build_c(PROVIDER), name="provider")
    spec = HostFunctionSpec(parameter_types=[I32], result_types=[I32], function=lambda x: x * 11)
    symbols = {"maybe": spec, "maybe_data": 4096}
    exports = space.load(build_c(CONSUMER), name="consumer", symbols=symbols).exports
    assert exports["has_maybe"]() == 1
    assert exports["address_of_maybe"]() == 4096
    assert exports["call_maybe"](3) == 33


@pytest.mark.compiler
def test_load_reused_memory_is_zeroed(space, build_c):
    space.load(build_c(PROVIDER), name="provider")
    first = space.load(build_c(CONSUMER), name="first")
    first.exports["spoil"]()
    base = first.memory_base
    assert not first.exports["all_zero"]()
    first.close()
    second = space.load(build_c(CONSUMER), name="second")
    assert second.memory_base == base
    assert second.exports["all_zero"]()


@pytest.mark.compiler
def test_load_twice_gives_independent_modules(space, build_c):
    first = space.load(build_c(PROVIDER), name="first")
    second = space.load(build_c(PROVIDER), name="second")
    first.exports["bump"]()
    assert first.exports["add_counter"](0) == 6
    assert second.exports["add_counter"](0) == 5
    assert first.memory_base != second.memory_base
    # The latest one is what a new module is linked against.
    assert space.load(build_c(CONSUMER), name="c").exports["read_counter"]() == 5
    second.exports["bump"]()
    second.exports["bump"]()
    assert space.modules[-1].exports["read_counter"]() == 7


@pytest.mark.compiler
def test_load_private_modules_are_not_linked_against(space, build_c):
    space.load(build_c(PROVIDER), name="hidden", public=False)
    with pytest.raises(LinkError) as caught:
        space.load(build_c(CONSUMER), name="consumer")
    assert set(caught.value.symbols) == {"add_counter", "bump", "counter", "numbers"}
    assert caught.value.module == "consumer"
    for symbol in caught.value.symbols:
        assert symbol in str(caught.value)


@pytest.mark.compiler
def test_load_names_functions_by_table_index(linked, space):
    _, consumer = linked
    names = {space.function_name(consumer.table_base + i) for i in range(consumer.table_length)}
    assert {"consumer!twice", "consumer!thrice"} <= names
    assert space.function_name(consumer.exports["address_of_import"]()) == "provider!add_counter"
    assert space.function_name(0) is None
    assert space.function_name(1 << 20) is None


@pytest.mark.compiler
def test_stack_overflow_of_the_shadow_stack_traps(space, build_c):
    space.load(build_c(PROVIDER), name="provider")
    exports = space.load(build_c(CONSUMER), name="consumer").exports
    assert exports["use_stack"](900) == 900
    depth = space.stack.byte_length // 1024 + 10
    with pytest.raises(TrapError) as caught:
        exports["use_stack"](depth)
    assert caught.value.code in ("memory_out_of_bounds", "stack_overflow")
    assert space.stack.pointer.value != space.stack.top
    space.reset_stack()
    assert exports["use_stack"](900) == 900


@pytest.mark.compiler
def test_trap_in_linked_code_names_the_function(linked):
    with pytest.raises(TrapError, match="integer divide by zero in divide"):
        linked[1].exports["divide"](1, 0)


@pytest.mark.compiler
def test_load_needed_modules_must_be_there(space, build_c, tmp_path, lld):
    import subprocess

    provider, consumer = build_c(PROVIDER), tmp_path / "consumer.wasm"
    (tmp_path / "libprovider.so").write_bytes(provider)
    source, target = tmp_path / "c.c", tmp_path / "c.o"
    source.write_text(CONSUMER)
    clang = [sys.executable, "-m", "ziglang", "clang", "--target=wasm32-unknown-emscripten", "-fPIC"]
    subprocess.run([*clang, "-c", str(source), "-o", str(target)], check=True)
    command = [lld, "-flavor", "wasm", "--no-entry", "--experimental-pic", "--shared", "--export-all"]
    command += ["--unresolved-symbols=import-dynamic", str(target), str(tmp_path / "libprovider.so")]
    subprocess.run([*command, "-o", str(consumer)], check=True)
    with pytest.raises(LinkError, match=r"not loaded: libprovider\.so") as caught:
        space.load(consumer.read_bytes(), name="consumer")
    assert caught.value.symbols == ("libprovider.so",)
    space.load(provider, name="libprovider.so")
    assert space.load(consumer.read_bytes(), name="consumer").exports["call_directly"](1) == 6


@pytest.mark.compiler
def test_load_libcalls_of_the_compiler_are_all_resolved(space, build_c):
    source = """
    typedef __fp16 half;
    float maximum(float a, float b) { return __builtin_fmaxf(a, b); }
    float remainder_(float a, float b) { return __builtin_fmodf(a, b); }
    float exponential(float a) { return __builtin_expf(a); }
    double power(double a, double b) { return __builtin_pow(a, b); }
    float scaled(float a, int n) { return __builtin_ldexpf(a, n); }
    float rounded(float a) { return __builtin_roundf(a); }
    long away(double a) { return __builtin_lround(a); }
    float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
    float integral(float a, int n) { return __builtin_powif(a, n); }
    void widen(const half *h, float *f) { *f = *h; }
    void narrow(const float *f, half *h) { *h = *f; }
    void narrow64(const double *f, half *h) { *h = *f; }
    typedef __int128 wide;
    void multiply(wide *r, const wide *a, const wide *b) { *r = *a * *b; }
    void divide(wide *r, const wide *a, const wide *b) { *r = *a / *b; }
    void remain(wide *r, const wide *a, const wide *b) { *r = *a % *b; }
    void left(wide *r, const wide *a, int n) { *r = *a << n; }
    void right(wide *r, const wide *a, int n) { *r = *a >> n; }
    void both(float x, float *s, float *c) { *s = __builtin_sinf(x); *c = __builtin_cosf(x); }
    """
    flags = ("-O1", "-fno-math-errno")
    module = space.load(build_c(source, compile_flags=flags), name="libcalls")
    call = module.exports
    assert call["maximum"](float("nan"), 2.0) == 2.0
    assert call["remainder_"](-7.5, 2.0) == -1.5
    assert call["exponential"](1.0) == float(np.float32(np.e))
    assert call["power"](2.0, 0.5) == 2**0.5
    assert call["scaled"](1.5, 4) == 24.0
    assert call["rounded"](-2.5) == -3.0
    assert call["away"](2.5) == 3
    assert call["fused"](2.0, 3.0, 4.0) == 10.0
    assert call["integral"](2.0, -2) == 0.25
    a, b, r = (space.reserve(16) for _ in range(3))
    space.write(a, np.float16(0.1))
    call["widen"](a, b)
    assert space.read(b, 4) == np.float32(np.float16(0.1)).tobytes()
    space.write(b, np.float32(0.3333))
    call["narrow"](b, a)
    assert space.read(a, 2) == np.float16(np.float32(0.3333)).tobytes()
    space.write(b, np.float64(0.3333))
    call["narrow64"](b, a)
    assert space.read(a, 2) == np.float16(0.3333).tobytes()
    x, y = -(10**30), 7**20

    def run(name, *arguments):
        call[name](r, *arguments)
        return int.from_bytes(space.read(r, 16), "little", signed=True)

    space.write(a, x.to_bytes(16, "little", signed=True))
    space.write(b, y.to_bytes(16, "little"))
    assert run("divide", a, b) == -(10**30 // y)
    assert run("remain", a, b) == -(10**30 % y)
    assert run("left", a, 5) == x << 5
    assert run("right", a, 70) == x >> 70
    space.write(b, (12345).to_bytes(16, "little"))
    assert run("multiply", a, b) == x * 12345
    call["both"](0.5, a, b)
    assert space.read(a, 4) == np.float32(np.sin(0.5)).tobytes()
    assert space.read(b, 4) == np.float32(np.cos(0.5)).tobytes()


# Symbols


def test_define_symbols_resolve_in_order(space):
    body = [("function", "env", "value", [], [I32])]

    def call_value(module):
        module.function("f", [], [I32], export=True).call(0)

    def constant(value):
        return HostFunctionSpec(parameter_types=(), result_types=(I32,), function=lambda: value)

    data = side_module(call_value, imports=body)
    with pytest.raises(LinkError) as caught:
        space.load(data, name="m")
    assert caught.value.symbols == ("value",)
    space.load(
        side_module(lambda module: module.function("value", [], [I32], export=True).i32(1)), name="other"
    )
    assert space.load(data, name="m").exports["f"]() == 1
    space.define("value", constant(2))
    assert space.load(data, name="m").exports["f"]() == 2
    assert space.load(data, name="m", symbols={"value": constant(3)}).exports["f"]() == 3
    with pytest.raises(InvalidArgumentError, match="defined already"):
        space.define("value", constant(4))


def test_define_function_of_another_module(space):
    provider = space.load(side_module(returns(9)), name="provider", public=False)
    space.define("g", provider.exports["f"])
    data = side_module(
        lambda module: module.function("h", [], [I32], export=True).call(0),
        imports=[("function", "env", "g", [], [I32])],
    )
    assert space.load(data, name="m").exports["h"]() == 9


def test_load_symbol_of_another_type_is_a_link_error(space):
    data = side_module(imports=[("function", "env", "fmaxf", [I32], [I32])])
    before = space.heap.statistics
    with pytest.raises(LinkError, match="fmaxf"):
        space.load(data, name="m")
    assert space.heap.statistics.live_bytes == before.live_bytes


def test_load_undefined_symbols_of_all_kinds_are_named_at_once(space):
    imports = [
        ("function", "env", "alpha", [], []),
        ("function", "wasi_snapshot_preview1", "fd_write", [], []),
    ]

    def body(module):
        module.import_global("GOT.func", "beta", I32, mutable=True)
        module.import_global("GOT.mem", "gamma", I32, mutable=True)

    with pytest.raises(LinkError) as caught:
        space.load(side_module(body, imports=imports), name="m")
    assert caught.value.symbols == ("alpha", "wasi_snapshot_preview1.fd_write", "beta", "gamma")


def test_load_own_symbols_through_the_got_are_its_own(space):
    """Two modules that export the same names do not get mixed up."""

    def body(value):
        def build(module):
            function_entry = module.import_global("GOT.func", "helper", I32, mutable=True)
            data_entry = module.import_global("GOT.mem", "cell", I32, mutable=True)
            module.add_global(I32, 16, name="cell")
            module.export("cell", 2, kind=ExternKind.GLOBAL)
            module.function("helper", [], [I32], export=True).i32(value)
            module.function("call", [], [I32], export=True).emit("global.get", function_entry).emit(
                "call_indirect", module.type_index([], [I32]), 0
            )
            module.function("cell_address", [], [I32], export=True).emit("global.get", data_entry)

        return build

    first = space.load(side_module(body(1), memory_size=64), name="first")
    second = space.load(side_module(body(2), memory_size=64), name="second")
    assert first.exports["call"]() == 1
    assert second.exports["call"]() == 2
    for module in (first, second):
        assert module.exports["cell_address"]() == module.data_address("cell") == module.memory_base + 16
    assert second.slot_of("helper") != first.slot_of("helper")


def test_host_functions_are_counted(linker_engine):
    tracer = Tracer()
    with LinkSpace(linker_engine, tracer=tracer) as space:
        data = side_module(
            lambda module: (
                module.function("both", [F32], [F32], export=True)
                .get(0)
                .call(0)
                .get(0)
                .call(1)
                .emit("f32.add")
            ),
            imports=[
                ("function", "env", "expf", [F32], [F32]),
                ("function", "env", "fmaxf_", [F32], [F32]),
            ],
        )
        spec = HostFunctionSpec(parameter_types=(F32,), result_types=(F32,), function=lambda x: x)
        both = space.load(data, name="m", symbols={"fmaxf_": spec}).exports["both"]
        assert both(0.0) == 1.0
        assert tracer.counters.host_callbacks == 2
        space.support["fmaxf"](1.0, 2.0)
        assert tracer.counters.host_callbacks == 2


def test_host_function_exception_passes_through_linked_code(space):
    def fail():
        raise ZeroDivisionError("mine")

    spec = HostFunctionSpec(parameter_types=(), result_types=(), function=fail)
    data = side_module(
        lambda module: module.function("f", export=True).call(0),
        imports=[("function", "env", "g", [], [])],
    )
    with pytest.raises(ZeroDivisionError, match="mine"):
        space.load(data, name="m", symbols={"g": spec}).exports["f"]()


def test_sincos_writes_to_guest_memory(space):
    data = side_module(
        lambda module: module.function("f", [F64, I32, I32], export=True).get(0).get(1).get(2).call(0),
        imports=[("function", "env", "sincos", [F64, I32, I32], [])],
    )
    address = space.reserve(16)
    exports = space.load(data, name="m").exports
    exports["f"](1.0, address, address + 8)
    assert space.read(address, 16) == np.array([np.sin(1.0), np.cos(1.0)]).tobytes()
    with pytest.raises(InvalidArgumentError, match="outside the memory"):
        exports["f"](1.0, -4, address)


# Unloading


def test_close_gives_memory_and_slots_back(space):
    data = side_module(
        lambda module: (
            module.import_global("env", "__table_base", I32),
            module.add_elements([module.function("f", [], [I32], export=True).i32(7)], offset=_table_base()),
        ),
        memory_size=1000,
        memory_alignment=8,
        table_size=3,
        table_alignment=2,
    )
    memory, slots = space.heap.statistics, space.slots.live_count
    module = space.load(data, name="m")
    assert module.memory_base % 256 == 0
    assert module.table_base % 4 == 0
    assert module.memory_length == 1000
    assert space.table.get(module.table_base)() == 7
    assert space.slots.live_count == slots + 3
    slot = module.table_base
    module.close()
    module.close()
    assert space.heap.statistics.live_bytes == memory.live_bytes
    assert space.heap.statistics.free_bytes == memory.free_bytes
    assert space.slots.live_count == slots
    assert space.table.get(slot) is None
    assert space.modules == ()
    assert space.load(data, name="m").table_base == slot


def _table_base():
    from sylvite.wasm import expression

    return expression(("global.get", 0))


def test_close_of_a_module_in_use_waits_for_its_users(space):
    def provide(module):
        module.add_global(I32, 0, name="cell")
        module.export("cell", 0, kind=ExternKind.GLOBAL)
        module.function("g", [], [I32], export=True).i32(3)

    def consume(module):
        module.import_global("GOT.mem", "cell", I32, mutable=True)
        module.import_global("GOT.func", "g", I32, mutable=True)
        module.function("h", [], [I32], export=True).call(0)

    before = space.heap.statistics.live_bytes, space.slots.live_count
    provider = space.load(side_module(provide, memory_size=256), name="provider")
    data = side_module(consume, imports=[("function", "env", "g", [], [I32])])
    consumer = space.load(data, name="consumer")
    provider.close()
    assert consumer.exports["h"]() == 3
    assert space.heap.statistics.live_bytes == before[0] + 256
    with pytest.raises(LinkError):
        space.load(data, name="late")
    consumer.close()
    assert (space.heap.statistics.live_bytes, space.slots.live_count) == before


def test_load_and_close_a_thousand_times_stays_flat(space):
    def body(module):
        module.import_global("GOT.func", "fmaxf", I32, mutable=True)
        module.import_global("GOT.func", "f", I32, mutable=True)
        module.function("f", [], [I32], export=True).i32(7)

    data = side_module(body, memory_size=100_000, table_size=5)
    space.load(data, name="m").close()
    before = space.heap.statistics, space.slots.live_count, space.table.size
    for _ in range(1000):
        with space.load(data, name="m") as module:
            assert module.exports["f"]() == 7
    after = space.heap.statistics, space.slots.live_count, space.table.size
    assert after[1:] == before[1:]
    assert after[0].free_bytes == before[0].free_bytes
    assert after[0].memory_bytes == before[0].memory_bytes


# The space


def test_space_memory_does_not_move_while_modules_load(space):
    base = space.memory.base_address
    view = space.view(space.reserve(16), 16)
    view[:] = b"0123456789abcdef"
    length = space.memory.byte_length
    for _ in range(40):
        space.load(side_module(memory_size=1 << 20), name="big")
    assert space.memory.byte_length > length + (30 << 20)
    assert space.memory.base_address == base
    assert bytes(view) == b"0123456789abcdef"


def test_space_view_outlives_close(linker_engine):
    space = LinkSpace(linker_engine)
    view = np.frombuffer(space.view(space.reserve(64), 64), dtype=np.float32)
    view[:] = 1.5
    space.close()
    space.close()
    gc.collect()
    assert (view == 1.5).all()
    view += 1
    for use in (
        lambda: space.view(2048, 4),
        lambda: space.reserve(8),
        lambda: space.load(side_module(), name="m"),
    ):
        with pytest.raises(ClosedError):
            use()


def test_space_close_before_its_modules_is_fine(linker_engine):
    space = LinkSpace(linker_engine)
    module = space.load(side_module(returns(1), memory_size=100, table_size=2), name="m")
    space.close()
    module.close()
    with pytest.raises(ClosedError):
        module.exports["f"]()


def test_space_fill_copy_read_write(space):
    address = space.reserve(64)
    space.fill(address, 64, b"\xff")
    space.fill(address + 4, 12, b"\1\2\3\4")
    space.fill(address + 16, 16, bytes(range(16)))
    space.fill(address, 0, b"\0\0")
    assert space.read(address, 34) == b"\xff" * 4 + b"\1\2\3\4" * 3 + bytes(range(16)) + b"\xff\xff"
    space.copy(address + 5, address + 4, 8)
    assert space.read(address + 4, 9) == b"\1" + b"\1\2\3\4" * 2
    space.write(address, np.arange(4, dtype=np.float32))
    assert space.read(address + 4, 4) == np.float32(1).tobytes()
    for bad in (lambda: space.fill(address, 7, b"\0\1"), lambda: space.fill(address, 6, b"\0\1\2")):
        with pytest.raises(InvalidArgumentError, match="pattern"):
            bad()
    end = space.memory.byte_length
    for bad in (
        lambda: space.read(end - 2, 4),
        lambda: space.write(-1, b"x"),
        lambda: space.copy(end - 2, 2048, 4),
        lambda: space.copy(2048, end - 2, 4),
        lambda: space.fill(end, 1, b"\0"),
    ):
        with pytest.raises(InvalidArgumentError, match="outside the memory"):
            bad()


def test_space_cap_is_kept(linker_engine):
    with LinkSpace(linker_engine, limits=Limits(memory_bytes=4 << 20)) as space:
        with pytest.raises(OutOfMemoryError) as caught:
            space.load(side_module(memory_size=8 << 20), name="big")
        assert caught.value.requested_bytes == 8 << 20
        assert caught.value.limit_bytes == 4 << 20
        assert space.load(side_module(returns(4), memory_size=1 << 20), name="fits").exports["f"]() == 4


@pytest.mark.parametrize("stack_bytes", [0, 100, 1 << 30])
def test_space_stack_out_of_range_is_refused(linker_engine, stack_bytes):
    with pytest.raises(InvalidArgumentError, match="stack_bytes"):
        LinkSpace(linker_engine, stack_bytes=stack_bytes)


def test_space_stack_lies_below_everything_else(space):
    assert space.stack.address == 1024
    assert space.stack.byte_length == 1 << 20
    assert space.reserve(64) >= space.stack.top
    assert space.stack.pointer.value == space.stack.top


def test_space_constructor_that_never_ends_is_stopped_and_undone(linker_engine):
    def body(module):
        function = module.function("__wasm_call_ctors", export=True)
        with function.loop() as again:
            function.br(again)

    with LinkSpace(linker_engine, limits=Limits(deadline_ns=30_000_000)) as space:
        before = space.heap.statistics.live_bytes, space.slots.live_count
        with pytest.raises(DeadlineExceededError):
            space.load(side_module(body, memory_size=100, table_size=3), name="m")
        assert (space.heap.statistics.live_bytes, space.slots.live_count) == before
        assert space.modules == ()


# The dispatcher

KERNEL_STATE = {"x": 0, "y": 4, "z": 8}


def recording_kernel(module):
    """Appends (x, y, z) to a list in the environment; fails with the code at environment + 4 when its
    count reaches the one at environment + 8."""
    f = module.function("kernel", [I32, I32, I32], [I32], export=True)
    at = f.local(I32)
    f.get(0).get(0).emit("i32.load").i32(12).emit("i32.mul").emit("i32.add").i32(16).emit("i32.add").set(at)
    f.get(at).get(2).emit("i32.load", offset=0).emit("i32.store", offset=0)
    f.get(at).get(2).emit("i32.load", offset=4).emit("i32.store", offset=4)
    f.get(at).get(2).emit("i32.load16_u", offset=8).emit("i32.store", offset=8)
    f.get(0).get(0).emit("i32.load").i32(1).emit("i32.add").emit("i32.store")
    f.get(0).emit("i32.load", offset=4)
    f.i32(0)
    f.get(0).emit("i32.load").get(0).emit("i32.load", offset=8).emit("i32.eq")
    f.emit("select")


@pytest.fixture
def kernel(space):
    module = space.load(side_module(recording_kernel), name="kernels")
    environment, state = space.reserve(16 + 12 * 100), space.reserve(64)
    space.fill(environment, 16, b"\0")
    space.fill(state, 64, b"\0")

    def run(*counts):
        code = space.dispatcher(module.slot_of("kernel"), environment, 0, state, *counts)
        done = int.from_bytes(space.read(environment, 4), "little")
        ids = np.frombuffer(space.read(environment + 16, 12 * done), np.uint32).reshape(-1, 3)
        return code, [tuple(map(int, row)) for row in ids]

    run.environment = environment
    return run


def test_dispatcher_runs_workgroups_x_fastest(kernel):
    code, ids = kernel(3, 2, 4)
    assert code == 0
    assert ids == [(x, y, z) for z in range(4) for y in range(2) for x in range(3)]


@pytest.mark.parametrize("counts", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 0)])
def test_dispatcher_of_no_workgroups_calls_nothing(kernel, counts):
    assert kernel(*counts) == (0, [])


def test_dispatcher_stops_at_the_first_failure(kernel, space):
    space.write(kernel.environment + 4, np.array([-7, 5], np.int32))
    code, ids = kernel(3, 3, 1)
    assert code == -7
    assert len(ids) == 5


def test_dispatcher_starts_with_an_empty_stack(space):
    def body(module):
        pointer = module.import_global("env", "__stack_pointer", I32, mutable=True)
        f = module.function("kernel", [I32, I32, I32], [I32], export=True)
        f.emit("global.get", pointer).i32(64).emit("i32.sub").emit("global.set", pointer)
        f.get(0).emit("global.get", pointer).emit("i32.store").emit("unreachable")

    module = space.load(side_module(body), name="leaky")
    cell, state = space.reserve(4), space.reserve(64)
    for _ in range(3):
        with pytest.raises(TrapError, match="unreachable in kernel < loop"):
            space.dispatcher(module.slot_of("kernel"), cell, 0, state, 1, 1, 1)
        assert int.from_bytes(space.read(cell, 4), "little") == space.stack.top - 64


@pytest.mark.parametrize("entry", [0, 1 << 20, -1])
def test_dispatcher_of_no_function_traps(space, entry):
    with pytest.raises(TrapError):
        space.dispatcher(entry, 0, 0, space.reserve(64), 1, 1, 1)


def test_dispatcher_of_another_type_traps(space):
    module = space.load(side_module(returns(3)), name="m")
    with pytest.raises(TrapError) as caught:
        space.dispatcher(module.slot_of("f"), 0, 0, space.reserve(64), 1, 1, 1)
    assert caught.value.code == "indirect_call_type_mismatch"


# IREE's executables


@pytest.mark.compiler
def test_iree_executable_links_and_adds(space, iree_executable):
    module = space.load(iree_executable, name="add")
    query = module.exports["iree_hal_executable_library_query"]
    header = query(6, 0)
    assert module.memory_base <= header < module.memory_base + module.memory_length
    assert query(5, 0) == 0
    a, b, c = (space.reserve(16) for _ in range(3))
    pointers, lengths, state, workgroup = (space.reserve(64) for _ in range(4))
    space.write(a, np.array([1, 2, 3, 4], np.float32))
    space.write(b, np.array([10, 20, 30, 40], np.float32))
    space.write(pointers, np.array([a, b, c], np.uint32))
    space.write(lengths, np.array([16, 16, 16], np.uint32))
    space.fill(state, 64, b"\0")
    space.write(state + 28, np.array([pointers, lengths], np.uint32))
    assert space.function_name(module.table_base).startswith("add!main_dispatch_0")
    assert space.dispatcher(module.table_base, space.reserve(256), state, workgroup, 1, 1, 1) == 0
    assert list(np.frombuffer(space.view(c, 16), np.float32)) == [11, 22, 33, 44]


def test_space_needs_an_engine_that_shares(linker_engine):
    import dataclasses

    from sylvite.errors import UnavailableError

    class Alone:
        capabilities = dataclasses.replace(linker_engine.capabilities, shared_objects=False)

    with pytest.raises(UnavailableError, match="statically"):
        LinkSpace(Alone())


def test_space_dropped_without_close_is_collected():
    import weakref

    engine = engines.create("wasmtime")
    space = LinkSpace(engine)
    space.load(side_module(returns(1)), name="m")
    space.dispatcher  # noqa: B018 - makes the loop module
    store = weakref.ref(space.store)
    del space
    gc.collect()
    assert store() is None
