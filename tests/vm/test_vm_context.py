"""Linking, calling, limits, errors and the life of what programs hold."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import time
import weakref

import machine_texts
import pytest
from machine_programs import compile_vm, module_text

from sylvite import vmfb
from sylvite.engines.base import Limits
from sylvite.errors import (
    ClosedError,
    DeadlineExceededError,
    FormatError,
    InternalError,
    InvalidArgumentError,
    LinkError,
    NotFoundError,
    OutOfMemoryError,
    ProgramError,
    StatusCode,
)
from sylvite.trace import Tracer
from sylvite.vm import (
    BytecodeModule,
    Context,
    NativeFunction,
    NativeModule,
    VmBuffer,
    VmList,
    frames_of,
)


class Native(NativeModule):
    """What the import program asks for."""

    name = "native"
    version = 3

    def __init__(self, *, without: tuple[str, ...] = (), conventions: dict[str, str] | None = None):
        self.without = without
        self.conventions = conventions or {}
        self.closed = []
        self.log = []

    @property
    def functions(self):
        table = {
            "add": ("ii_i", lambda state, a, b: a + b),
            "sum": ("ICID_I", lambda state, first, rest: first + sum(rest)),
            "pairs": ("iCiIDi_Ii", self.pairs),
            "later": ("i_i", lambda state, a: a * 2),
            "later_sum": ("CiD_i", lambda state, rest: sum(rest)),
            "keep": ("r_r", self.keep),
            "none": ("v_v", lambda state: self.log.append("none")),
            "raise": ("i_v", self.raise_error),
            "present": ("i_i", lambda state, a: a),
        }
        return {
            name: NativeFunction(
                name=name, calling_convention=self.conventions.get(name, convention), call=call
            )
            for name, (convention, call) in table.items()
            if name not in self.without
        }

    def create_state(self):
        return {}

    def close_state(self, state):
        self.closed.append(state)

    def pairs(self, state, scale, pairs, tail):
        self.log.append(pairs)
        return sum(a * b for a, b in pairs) * scale, tail

    def keep(self, state, buffer):
        self.log.append(weakref.ref(buffer))
        return buffer

    def raise_error(self, state, code):
        errors = {
            1: ProgramError("from native", status=StatusCode.ABORTED),
            2: OSError("no such thing"),
            3: RecursionError("deep"),
            4: MemoryError(),
            5: KeyError("x"),
        }
        raise errors[code]


@pytest.fixture
def native():
    return Native()


@pytest.fixture
def context(native, import_module):
    with Context([native, import_module]) as made:
        yield made


# Imports.


def test_import_of_native_function_is_called(context, native):
    assert context.invoke("imports.add", 2, 3) == 5
    assert native.log == ["none"]


def test_spans_arrive_as_lists_of_values_or_tuples(context, native):
    assert context.invoke("imports.sum", 5, 7) == (5 + 7 + 7 + 5, 5)
    assert context.invoke("imports.pairs", 3, 10) == (180, 3)
    assert native.log == [[(3, 10), (3, 10)]]


def test_yieldable_imports_are_called(context):
    assert context.invoke("imports.later", 5) == 15


def test_optional_import_that_is_missing_is_not_resolved(context):
    assert context.invoke("imports.optional", 0) == (0, 1)
    with pytest.raises(ProgramError, match=r"native\.missing is not resolved") as caught:
        context.invoke("imports.call_missing", 1)
    assert caught.value.status is StatusCode.NOT_FOUND


def test_link_error_names_every_missing_import(import_module):
    with pytest.raises(LinkError) as caught:
        Context([Native(without=("add", "sum")), import_module])
    assert caught.value.symbols == ("native.add", "native.sum")
    assert "native.add" in str(caught.value)
    assert "native.sum" in str(caught.value)
    assert caught.value.module == "imports"


def test_link_error_names_missing_module(import_module):
    with pytest.raises(LinkError, match="module native is not there") as caught:
        Context([import_module])
    assert "native" in caught.value.symbols
    assert "native.keep" in caught.value.symbols
    assert "native.missing" not in caught.value.symbols


def test_import_of_other_calling_convention_is_refused(import_module):
    with pytest.raises(LinkError, match=r"native\.add: calling convention ii_i is wanted.*II_i"):
        Context([Native(conventions={"add": "II_i"}), import_module])


def test_module_below_minimum_version_is_refused(vm_folder):
    text = module_text(
        "needs",
        "vm.import private @native.add(%a : i32, %b : i32) -> i32 attributes {minimum_version = 9 : i32}",
        "vm.export @f\nvm.func @f(%a: i32) -> i32 {\n"
        "%r = vm.call @native.add(%a, %a) : (i32, i32) -> i32\nvm.return %r : i32\n}",
    )
    module = BytecodeModule.open(compile_vm(text, vm_folder / "needs.vmfb"))
    (dependency,) = [item for item in module.definition.dependencies if item.name == "native"]
    assert dependency.minimum_version == 9
    with pytest.raises(LinkError, match="version 3, but at least 9"):
        Context([Native(), module])


def test_failed_linking_closes_native_states(import_module):
    native = Native(without=("add",))
    with pytest.raises(LinkError):
        Context([native, import_module])
    assert native.closed == [{}]


def test_module_linked_twice_is_refused(native):
    with pytest.raises(LinkError, match="already"):
        Context([native, native])


# Calls across modules.

LIBRARY = """
vm.global.i32 mutable @calls : i32
vm.export @triple
vm.func @triple(%a: i64, %b: !vm.buffer) -> (i64, !vm.buffer) {
  %three = vm.const.i64 3
  %r = vm.mul.i64 %a, %three : i64
  %n = vm.global.load.i32 @calls : i32
  %one = vm.const.i32 1
  %m = vm.add.i32 %n, %one : i32
  vm.global.store.i32 %m, @calls : i32
  vm.return %r, %b : i64, !vm.buffer
}
vm.export @calls_so_far
vm.func @calls_so_far() -> i32 {
  %n = vm.global.load.i32 @calls : i32
  vm.return %n : i32
}
vm.export @fail_here
vm.func @fail_here(%a: i32) {
  %limit = vm.const.i32 5
  %c = vm.cmp.lt.i32.s %limit, %a : i32
  vm.cond_br %c, ^bad, ^good
^bad:
  %code = vm.const.i32 11
  vm.fail %code, "beyond the limit"
^good:
  vm.return
}
vm.initializer {
  %start = vm.const.i32 100
  vm.global.store.i32 %start, @calls : i32
  vm.return
}
"""
USER = """
vm.import private @library.triple(%a : i64, %b : !vm.buffer) -> (i64, !vm.buffer)
vm.import private @library.fail_here(%a : i32)
vm.export @twice
vm.func @twice(%a: i64, %b: !vm.buffer) -> (i64, i64) {
  %x, %c = vm.call @library.triple(%a, %b) : (i64, !vm.buffer) -> (i64, !vm.buffer)
  %y, %d = vm.call @library.triple(%x, %c) : (i64, !vm.buffer) -> (i64, !vm.buffer)
  %n = vm.buffer.length %d : !vm.buffer -> i64
  vm.return %y, %n : i64, i64
}
vm.export @fail_there
vm.func @fail_there(%a: i32) {
  vm.call @library.fail_here(%a) : (i32) -> ()
  vm.return
}
"""


@pytest.fixture(scope="module")
def two_modules(vm_folder):
    return [
        BytecodeModule.open(compile_vm(module_text(name, text), vm_folder / f"{name}.vmfb"))
        for name, text in (("library", LIBRARY), ("user", USER))
    ]


def test_bytecode_module_calls_another(two_modules):
    with Context(two_modules) as context:
        assert context.invoke("user.twice", 5, VmBuffer(bytes(7))) == (45, 7)
        assert context.invoke("library.calls_so_far") == 102


def test_initializer_runs_once_per_context(two_modules):
    with Context(two_modules[:1]) as first, Context(two_modules[:1]) as second:
        assert first.invoke("library.calls_so_far") == 100
        first.invoke("library.triple", 1, None)
        assert second.invoke("library.calls_so_far") == 100


def test_modules_are_linked_in_order(two_modules):
    with pytest.raises(LinkError, match=r"library\.triple"):
        Context(list(reversed(two_modules)))


def test_context_accepts_archives(two_modules):
    archive = vmfb.open_archive(two_modules[0].archive.module.where)
    with Context([archive]) as context:
        assert context.module_names == ("library",)
        assert "triple" in context.function_names("library")
        assert "__init" not in context.function_names("library")


# Names and arguments.


def test_unknown_function_names_what_there_is(context):
    with pytest.raises(NotFoundError, match=r"imports\.add"):
        context.invoke("imports.nothing")
    with pytest.raises(NotFoundError):
        context.lookup("add")
    with pytest.raises(NotFoundError, match="imports"):
        context.function_names("nothing")


def test_handle_tells_its_signature_and_calls(context):
    handle = context.lookup("imports.pairs")
    assert handle.full_name == "imports.pairs"
    assert handle.calling_convention == "iI_Ii"
    assert handle(3, 10) == (180, 3)
    assert context.lookup("imports.pairs") is handle


def test_handle_of_another_context_is_refused(context, import_module):
    with Context([Native(), import_module]) as other, pytest.raises(InvalidArgumentError, match="another"):
        other.invoke(context.lookup("imports.add"), 1, 2)


def test_native_function_can_be_invoked(context):
    assert context.invoke("native.add", 4, 5) == 9
    assert context.invoke("native.sum", 4, [5, 6]) == 15


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("imports.add", (1,), "takes 2 arguments, not 1"),
        ("imports.add", (1, 2, 3), "takes 2 arguments, not 3"),
        ("imports.add", (1, 2**32), "does not fit an i32"),
        ("imports.add", (1, -(2**31) - 1), "does not fit an i32"),
        ("imports.sum", (2**64, 1), "does not fit an i64"),
        ("imports.add", (1, 1.5), "must be an integer, not float"),
        ("imports.add", (1, None), "must be an integer, not NoneType"),
        ("native.keep", ("text",), "a reference argument cannot be a str"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(context, function, arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        context.invoke(function, *arguments)


def test_numpy_integers_are_accepted(context):
    numpy = pytest.importorskip("numpy")
    assert context.invoke("imports.add", numpy.int8(5), True) == 6


# Closing.


def test_closed_context_refuses_calls(native, import_module):
    context = Context([native, import_module])
    handle = context.lookup("imports.add")
    context.close()
    context.close()
    assert context.is_closed
    assert native.closed == [{}]
    with pytest.raises(ClosedError):
        handle(1, 2)
    with pytest.raises(ClosedError):
        context.lookup("imports.sum")


def test_deinitializer_runs_on_close(vm_folder):
    text = module_text(
        "leaver",
        "vm.import private @native.none()",
        "vm.export @__deinit\nvm.func @__deinit() {\nvm.call @native.none() : () -> ()\nvm.return\n}",
    )
    native = Native()
    context = Context([native, BytecodeModule.open(compile_vm(text, vm_folder / "leaver.vmfb"))])
    assert native.log == []
    context.close()
    assert native.log == ["none"]
    assert native.closed == [{}]


def test_failing_initializer_raises_and_closes(vm_folder):
    text = module_text(
        "broken",
        "vm.import private @native.raise(%code : i32)",
        "vm.initializer {\n%c = vm.const.i32 1\nvm.call @native.raise(%c) : (i32) -> ()\nvm.return\n}",
    )
    native = Native()
    with pytest.raises(ProgramError, match="from native"):
        Context([native, BytecodeModule.open(compile_vm(text, vm_folder / "broken.vmfb"))])
    assert native.closed == [{}]


def test_closed_module_refuses_new_contexts_and_keeps_old_ones(vm_folder, mixed_module):
    module = BytecodeModule.open(mixed_module.path)
    with Context([module]) as context:
        module.close()
        module.close()
        assert context.invoke("mixed.load_i8_u", 2) == 3
        with pytest.raises(ClosedError):
            Context([module])


def test_closing_frees_globals_without_the_garbage_collector(vm_folder):
    text = module_text(
        "holder",
        "vm.global.ref mutable @g : !vm.buffer",
        "vm.export @hold\nvm.func @hold(%b: !vm.buffer) {\n"
        "vm.global.store.ref %b, @g : !vm.buffer\nvm.return\n}",
    )
    context = Context([BytecodeModule.open(compile_vm(text, vm_folder / "holder.vmfb"))])
    buffer = VmBuffer(b"abc")
    alive = weakref.ref(buffer)
    gc.disable()
    try:
        context.invoke("holder.hold", buffer)
        del buffer
        assert alive() is not None
        context.close()
        assert alive() is None
    finally:
        gc.enable()


# Lifetimes.

LIFETIMES = """
vm.import private @native.keep(%b : !vm.buffer) -> !vm.buffer
vm.import private @native.none()
vm.export @import_then_look
vm.func @import_then_look(%n: i64) {
  %one = vm.const.i32 1
  %b = vm.buffer.alloc %n, %one : !vm.buffer
  %k = vm.call @native.keep(%b) : (!vm.buffer) -> !vm.buffer
  vm.call @native.none() : () -> ()
  vm.return
}
vm.export @move_into_callee
vm.func @move_into_callee(%n: i64) -> i64 {
  %one = vm.const.i32 1
  %b = vm.buffer.alloc %n, %one : !vm.buffer
  %r = vm.call @callee(%b) : (!vm.buffer) -> i64
  vm.return %r : i64
}
vm.func private @callee(%b: !vm.buffer) -> i64 attributes {inlining_policy = #util.inline.never} {
  %k = vm.call @native.keep(%b) : (!vm.buffer) -> !vm.buffer
  %r = vm.buffer.length %k : !vm.buffer -> i64
  vm.call @native.none() : () -> ()
  vm.return %r : i64
}
"""


class Watcher(Native):
    """Notes whether the buffer of the last `keep` is alive when `none` is called."""

    @property
    def functions(self):
        def look(state):
            self.log.append(self.log[-1]() is not None)

        none = NativeFunction(name="none", calling_convention="v_v", call=look)
        return {**super().functions, "none": none}


@pytest.fixture(scope="module")
def lifetime_module(vm_folder):
    return BytecodeModule.open(compile_vm(module_text("lifetimes", LIFETIMES), vm_folder / "lifetimes.vmfb"))


@pytest.mark.parametrize("function", ["import_then_look", "move_into_callee"])
def test_moved_reference_is_freed_before_the_function_ends(function, lifetime_module):
    if function == "move_into_callee" and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 keeps arguments on the caller's stack during a call")
    watcher = Watcher()
    with Context([watcher, lifetime_module]) as context:
        context.invoke(f"lifetimes.{function}", 16)
        assert watcher.log[-1] is False
        assert context.heap.live_bytes == 0


def test_error_does_not_keep_buffers_alive(lifetime_module):
    class Failing(Watcher):
        @property
        def functions(self):
            def fail(state):
                raise ProgramError("stop", status=StatusCode.ABORTED)

            none = NativeFunction(name="none", calling_convention="v_v", call=fail)
            return {**super().functions, "none": none}

    with Context([Failing(), lifetime_module]) as context:
        with pytest.raises(ProgramError) as caught:
            context.invoke("lifetimes.move_into_callee", 1000)
        assert caught.value.message == "stop"
        assert context.heap.live_bytes == 0


# Limits.

ENDLESS = """
vm.export @spin
vm.func @spin(%a: i32) -> i32 {
  %one = vm.const.i32 1
  vm.br ^loop(%a : i32)
^loop(%i: i32):
  %j = vm.add.i32 %i, %one : i32
  %c = vm.xor.i32 %i, %j : i32
  vm.cond_br %c, ^loop(%j : i32), ^done
^done:
  vm.return %j : i32
}
vm.export @copy_forever
vm.func @copy_forever(%n: i64) -> i32 {
  %one = vm.const.i32 1
  %zero = vm.const.i64 0
  %b = vm.buffer.alloc %n, %one : !vm.buffer
  vm.br ^loop(%one : i32)
^loop(%i: i32):
  vm.buffer.copy %b, %zero, %b, %zero, %n : !vm.buffer -> !vm.buffer
  %j = vm.add.i32 %i, %one : i32
  %c = vm.xor.i32 %i, %j : i32
  vm.cond_br %c, ^loop(%j : i32), ^done
^done:
  vm.return %j : i32
}
vm.export @hash_much
vm.func @hash_much(%n: i64) -> i64 {
  %one = vm.const.i32 1
  %zero = vm.const.i64 0
  %b = vm.buffer.alloc %n, %one : !vm.buffer
  %h = vm.buffer.hash %b, %zero, %n : !vm.buffer -> i64
  vm.return %h : i64
}
vm.export @allocate_forever
vm.func @allocate_forever(%n: i64) -> i32 {
  %one = vm.const.i32 1
  %zero = vm.const.i32 0
  %list = vm.list.alloc %one : (i32) -> !vm.list<?>
  vm.br ^loop(%zero : i32)
^loop(%i: i32):
  %b = vm.buffer.alloc %n, %one : !vm.buffer
  %j = vm.add.i32 %i, %one : i32
  vm.list.resize %list, %j : (!vm.list<?>, i32)
  vm.list.set.ref %list, %i, %b : (!vm.list<?>, i32, !vm.buffer)
  vm.br ^loop(%j : i32)
}
vm.export @large_list
vm.func @large_list(%n: i32) -> i32 {
  %zero = vm.const.i32 0
  %list = vm.list.alloc %zero : (i32) -> !vm.list<i8>
  vm.list.resize %list, %n : (!vm.list<i8>, i32)
  %r = vm.list.size %list : (!vm.list<i8>) -> i32
  vm.return %r : i32
}
"""


@pytest.fixture(scope="module")
def endless_module(vm_folder):
    return BytecodeModule.open(compile_vm(module_text("endless", ENDLESS), vm_folder / "endless.vmfb"))


@pytest.mark.parametrize(
    ("function", "argument"), [("spin", 0), ("copy_forever", 1 << 20), ("hash_much", 1 << 28)]
)
def test_endless_program_stops_at_its_deadline(function, argument, endless_module):
    with Context([endless_module]) as context:
        start = time.monotonic()
        with pytest.raises(DeadlineExceededError, match="50000000 ns"):
            context.invoke(f"endless.{function}", argument, timeout_ns=50_000_000)
        assert time.monotonic() - start < 5


def test_deadline_of_the_context_holds_for_each_call(endless_module):
    with Context([endless_module], limits=Limits(deadline_ns=30_000_000)) as context:
        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                context.invoke("endless.spin", 0)
        assert context.invoke("endless.large_list", 5) == 5


def test_interrupt_from_another_thread_stops_a_call(endless_module):
    with Context([endless_module]) as context:
        timer = threading.Timer(0.05, context.interrupt)
        timer.start()
        with pytest.raises(ProgramError, match="interrupted") as caught:
            context.invoke("endless.spin", 0, timeout_ns=20_000_000_000)
        timer.join()
        assert caught.value.status is StatusCode.CANCELLED
        assert context.invoke("endless.large_list", 5) == 5


def test_program_memory_is_capped(endless_module):
    with Context([endless_module], limits=Limits(memory_bytes=1 << 20)) as context:
        with pytest.raises(OutOfMemoryError, match="capped at 1048576 bytes"):
            context.invoke("endless.allocate_forever", 10_000)
        assert context.heap.live_bytes == 0
        with pytest.raises(OutOfMemoryError):
            context.invoke("endless.hash_much", 1 << 62)
        with pytest.raises(OutOfMemoryError):
            context.invoke("endless.hash_much", -1)


def test_list_of_absurd_length_is_refused(endless_module):
    with Context([endless_module]) as context:
        with pytest.raises(OutOfMemoryError, match="list of 2147483647"):
            context.invoke("endless.large_list", 2**31 - 1)
        with pytest.raises(OutOfMemoryError):
            context.invoke("endless.large_list", -1)


def test_deep_recursion_is_a_typed_error(recursive_module):
    invoke = recursive_module.subject.context.invoke
    assert invoke("recursive.factorial", 200) == 0
    with pytest.raises(ProgramError, match="recursion deeper than 300") as caught:
        invoke("recursive.factorial", 100_000)
    assert caught.value.status is StatusCode.RESOURCE_EXHAUSTED
    assert frames_of(caught.value)[0].function == "factorial"
    assert invoke("recursive.factorial", 5) == 120


def test_recursion_from_deep_in_python_is_a_typed_error(recursive_module):
    def descend(depth):
        if depth:
            return descend(depth - 1)
        return recursive_module.subject.context.invoke("recursive.factorial", 250)

    depth = len(inspect.stack(0))
    with pytest.raises(ProgramError, match="nested too deeply") as caught:
        descend(sys.getrecursionlimit() - depth - 150)
    assert caught.value.status is StatusCode.RESOURCE_EXHAUSTED
    assert recursive_module.subject.context.invoke("recursive.factorial", 5) == 120


# Errors.


def test_failure_has_call_stack(two_modules):
    with Context(two_modules) as context:
        with pytest.raises(ProgramError, match="beyond the limit") as caught:
            context.invoke("user.fail_there", 6)
        assert caught.value.status is StatusCode.OUT_OF_RANGE
        assert [f"{frame.module}.{frame.function}" for frame in frames_of(caught.value)] == [
            "library.fail_here",
            "user.fail_there",
        ]
        if sys.version_info >= (3, 11):
            assert "library.fail_here+0x" in caught.value.__notes__[0]
        assert context.invoke("user.fail_there", 5) is None


def test_failure_has_source_location(vm_folder):
    # One function: the compiler keeps the source map of a module's last function only.
    a = LIBRARY.index("vm.export @fail_here")
    text = module_text("placed", LIBRARY[a : LIBRARY.index("vm.initializer")])
    module = BytecodeModule.open(compile_vm(text, vm_folder / "placed.vmfb"))
    with Context([module]) as context, pytest.raises(ProgramError, match="beyond") as caught:
        context.invoke("placed.fail_here", 6)
    line = 1 + text.splitlines().index('  vm.fail %code, "beyond the limit"')
    assert f"placed.mlir:{line}:3" in caught.value.location
    assert f"\n  at {caught.value.location}" in str(caught.value)
    assert frames_of(caught.value)[0].location == caught.value.location


def test_source_map_of_another_function_is_not_used(two_modules):
    """The library's only source map is that of its initializer, at the place of function 0."""
    with Context(two_modules[:1]) as context, pytest.raises(ProgramError) as caught:
        context.invoke("library.fail_here", 6)
    assert caught.value.location is None
    assert frames_of(caught.value)[0].function == "fail_here"


def test_native_error_passes_with_frames(context):
    with pytest.raises(ProgramError, match="from native") as caught:
        context.invoke("imports.raise", 1)
    assert frames_of(caught.value)[0].function == "raise"
    with pytest.raises(OSError, match="no such thing") as foreign:
        context.invoke("imports.raise", 2)
    assert frames_of(foreign.value)[0].function == "raise"
    with pytest.raises(KeyError):
        context.invoke("imports.raise", 5)


def test_machine_errors_of_native_functions_are_typed(context):
    with pytest.raises(ProgramError, match="too deeply") as caught:
        context.invoke("imports.raise", 3)
    assert isinstance(caught.value.__cause__, RecursionError)
    with pytest.raises(OutOfMemoryError):
        context.invoke("imports.raise", 4)


def test_wrong_result_of_native_function_is_an_internal_error(import_module):
    class Liar(Native):
        def pairs(self, state, scale, pairs, tail):
            return 1, 2, 3

    with Context([Liar(), import_module]) as context:
        with pytest.raises(InternalError, match="ValueError") as caught:
            context.invoke("imports.pairs", 1, 2)
        assert frames_of(caught.value)[0].function == "pairs"


def test_reference_of_another_type_is_refused(two_modules, mixed_module):
    with Context(two_modules) as context:
        with pytest.raises(ProgramError, match="null or of another type") as caught:
            context.invoke("user.twice", 1, VmList())
        assert caught.value.status is StatusCode.INVALID_ARGUMENT


def test_module_type_checks_references(mixed_module):
    with pytest.raises(ProgramError, match=r"a VmBuffer where a reference of type !vm\.list") as caught:
        mixed_module.subject.context.invoke("mixed.indirect_ref_of_wrong_type", 0)
    assert caught.value.status is StatusCode.INVALID_ARGUMENT


# Threads and tracing.


def test_threads_sharing_a_context_get_their_own_results(mixed_module):
    results = {}

    def run(n):
        results[n] = [mixed_module.subject("nested_loops", (n, 9)).values for _ in range(60)]

    threads = [threading.Thread(target=run, args=(n,)) for n in (2, 3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, found in results.items():
        assert set(found) == {mixed_module.judge("nested_loops", (n, 9)).values}


def test_native_function_may_call_back_into_the_context(import_module):
    class Reentrant(Native):
        @property
        def functions(self):
            def add(state, a, b):
                return self.context.invoke("imports.later", a) + b

            made = NativeFunction(name="add", calling_convention="ii_i", call=add)
            return {**super().functions, "add": made}

    native = Reentrant()
    with Context([native, import_module]) as context:
        native.context = context
        assert context.invoke("imports.add", 5, 1) == 16


def test_calls_are_spans_while_somebody_listens(native, import_module):
    tracer = Tracer()
    spans = []
    with Context([native, import_module], tracer=tracer) as context:
        context.invoke("imports.add", 1, 2)
        with tracer.listen(spans.append):
            context.invoke("imports.add", 1, 2)
    assert [(span.name, span.category) for span in spans] == [("imports.add", "vm")]


def test_context_describes_itself(context):
    assert repr(context) == "<Context of native, imports>"


def test_open_refuses_a_file_that_is_no_archive(tmp_path):
    path = tmp_path / "not.vmfb"
    path.write_bytes(b"something else")
    with pytest.raises(FormatError):
        BytecodeModule.open(path)


def test_import_program_text_is_complete():
    assert machine_texts.IMPORTS.count("vm.export") == 8
