"""Translation of hand-made bytecode: structure, what is refused, and that nothing leaks into source."""

from __future__ import annotations

import ast
import random
import sys

import pytest
from translator_support import IMPORT, Function, module_of, ref

from sylvite.errors import FormatError, ProgramError
from sylvite.translator import translate
from sylvite.vm import Context, NativeFunction, NativeModule
from sylvite.vm.module import BytecodeModule
from sylvite.vmfb import verify


class Archive:
    """Enough of an archive for a module without data."""

    verified = True

    def __init__(self, module):
        self.module = module

    def close(self):
        pass


def run(module, *natives):
    verify(module)
    return Context([*natives, BytecodeModule(Archive(module))])


def straight(convention="i_i"):
    return Function(convention).block()


# Structure.


def test_single_block_becomes_straight_line_code():
    function = straight().op("const.i32", 5, 1).op("add.i32", 0, 1, 0).op("return", [0])
    module = module_of(function)
    source = translate(module).source
    assert "while" not in source
    assert "b =" not in source
    with run(module) as context:
        assert context.invoke("made.f0", 37) == 42


def test_chain_of_branches_stays_in_line():
    function = straight()
    for block in range(1, 30):
        function.op("br", (block, [])).block()
    function.op("return", [0])
    source = translate(module_of(function)).source
    assert "while" not in source
    assert len(source.splitlines()) == 2


def test_loop_needs_no_dispatch():
    function = straight().op("const.i32", 1, 1).op("br", (1, [(0, 2)])).block()
    function.op("sub.i32", 2, 1, 2).op("cond_br", 2, (1, []), (2, [])).block().op("return", [2])
    module = module_of(function)
    source = translate(module).source
    assert "while True:" in source
    assert "b =" not in source
    with run(module) as context:
        assert context.invoke("made.f0", 5000) == 0


def test_failure_arm_does_not_indent_the_rest():
    function = straight()
    for number in range(40):
        function.op("const.i32", 3, 2).op("cond_br", 0, (2 * number + 2, []), (2 * number + 1, []))
        function.block().op("fail", 2, f"check {number}").block()
    function.op("return", [0])
    module = module_of(function)
    lines = translate(module).source.splitlines()
    assert max(len(line) - len(line.lstrip()) for line in lines) == 2
    with run(module) as context:
        assert context.invoke("made.f0", 1) == 1
        with pytest.raises(ProgramError, match="check 0"):
            context.invoke("made.f0", 0)


def test_deeply_nested_branches_are_translated():
    """Each true arm holds the next test; Python's parser stops at 100 levels of indentation."""
    depth = 300
    function = Function("ii_i").block().op("const.i32", 1, 2)
    for level in range(depth):
        function.op("sub.i32", 0, 2, 0).op("add.i32", 1, 2, 1)
        function.op("cond_br", 0, (level + 1, []), (depth + 1 + level, [])).block()
    function.op("not.i32", 1, 1).op("br", (2 * depth + 1, []))
    for _ in range(depth):
        function.block().op("add.i32", 1, 1, 1).op("br", (2 * depth + 1, []))
    function.block().op("return", [1])
    with run(module_of(function)) as context:
        for n in (1, 2, 12, 13, 14, 100, 299, 300):
            assert context.invoke("made.f0", n, 0) == 2 * n
        assert context.invoke("made.f0", 301, 0) == ~300


def diamond_chain(count: int) -> Function:
    """``count`` diamonds in a row: each adds 1 or 2 to a sum by a bit of the argument."""
    function = straight("ii_i").op("const.i32", 1, 2).op("const.i32", 2, 3).op("const.i32", 0, 4)
    for number in range(count):
        first = 3 * number
        function.op("and.i32", 0, 2, 5).op("shr.i32.s", 0, 2, 0)
        function.op("cond_br", 5, (first + 1, []), (first + 2, []))
        function.block().op("add.i32", 4, 2, 4).op("br", (first + 3, []))
        function.block().op("add.i32", 4, 3, 4).op("br", (first + 3, [])).block()
    return function.op("return", [4])


@pytest.mark.parametrize("count", [1, 2, 7, 200])
def test_chain_of_diamonds_gives_the_right_sum(count):
    with run(module_of(diamond_chain(count))) as context:
        for argument in (0, 1, 0b1011, 0x5555, -1):
            ones = sum(argument >> min(bit, 31) & 1 for bit in range(count))
            assert context.invoke("made.f0", argument, 0) == ones + 2 * (count - ones)


def test_irreducible_flow_gives_the_right_result():
    """Two blocks that branch to each other, both entered from outside."""
    function = straight("ii_i").op("const.i32", 1, 2).op("const.i32", 0, 3)
    function.op("cond_br", 1, (1, []), (2, []))
    function.block().op("add.i32", 3, 2, 3).op("sub.i32", 0, 2, 0).op("cond_br", 0, (2, []), (3, []))
    function.block().op("add.i32", 3, 3, 3).op("sub.i32", 0, 2, 0).op("cond_br", 0, (1, []), (3, []))
    function.block().op("return", [3])

    def expected(n, first):
        total, at_one = 0, bool(first)
        while True:
            total = total + 1 if at_one else total * 2
            n, at_one = n - 1, not at_one
            if not n:
                return total

    with run(module_of(function)) as context:
        for n in (1, 2, 3, 4, 9, 20):
            for first in (0, 1):
                assert context.invoke("made.f0", n, first) == expected(n, first)


def test_loop_back_to_the_entry_block_is_translated():
    function = straight("ii_i").op("const.i32", 1, 2).op("add.i32", 1, 2, 1).op("sub.i32", 0, 2, 0)
    function.op("cond_br", 0, (0, []), (1, [])).block().op("return", [1])
    with run(module_of(function)) as context:
        assert context.invoke("made.f0", 2500, 7) == 2507


def test_unreachable_block_is_left_out():
    function = straight().op("return", [0]).block().op("add.i32", 9, 9, 9).op("return", [9])
    module = module_of(function)
    assert "r9" not in translate(module).source
    with run(module) as context:
        assert context.invoke("made.f0", 3) == 3


def random_program(seed: int, blocks: int):
    """A random flow graph that counts down, and an interpreter's answer for it."""
    choose = random.Random(seed)
    targets = [
        (choose.randrange(blocks), choose.randrange(blocks), choose.randrange(1, 1000)) for _ in range(blocks)
    ]
    function = straight("iii_i").op("const.i32", 1, 3).op("br", (1, []))
    for block, (_, _, amount) in enumerate(targets):
        function.block()
        function.op("const.i32", amount, 4).op("mul.i32", 2, 4, 2).op("add.i32", 2, 0, 2)
        function.op("sub.i32", 0, 3, 0).op("and.i32", 2, 3, 5).op("xor.i32", 5, 1, 5)
        function.op("cond_br", 0, (blocks + 1 + block, []), (2 * blocks + 1, []))
    for taken, other, _ in targets:
        function.block().op("cond_br", 5, (taken + 1, []), (other + 1, [(1, 6), (3, 1), (6, 1)]))
    function.block().op("return", [2])

    def expected(n, flip):
        value, at = 0, 0
        while True:
            taken, other, amount = targets[at]
            value = (value * amount + n + 2**31) % 2**32 - 2**31
            n -= 1
            condition = (value & 1) ^ flip
            if not n:
                return value
            at = taken if condition else other

    return function, expected


@pytest.mark.parametrize("seed", range(25))
def test_random_flow_graph_agrees_with_an_interpreter(seed):
    function, expected = random_program(seed, random.Random(seed).randrange(1, 60))
    with run(module_of(function)) as context:
        for n in (1, 2, 3, 50, 400):
            for flip in (0, 1):
                assert context.invoke("made.f0", n, flip, 0) == expected(n, flip)


def test_large_function_is_translated():
    function, expected = random_program(99, 1500)
    module = module_of(function)
    lines = translate(module).source.splitlines()
    assert max(len(line) - len(line.lstrip()) for line in lines) < 60
    with run(module) as context:
        assert context.invoke("made.f0", 3000, 1, 0) == expected(3000, 1)


# Operations that the compiler does not emit.


def test_cond_break_continues_either_way():
    function = straight("ii_i").op("cond_break", 0, (1, [(1, 2)])).block().op("return", [2])
    with run(module_of(function)) as context:
        assert context.invoke("made.f0", 0, 8) == 8
        assert context.invoke("made.f0", 1, 9) == 9


def test_fail_with_status_ok_fails_all_the_same():
    function = straight("i_v").op("fail", 0, "nothing wrong").block().op("return", [])
    with run(module_of(function)) as context, pytest.raises(ProgramError, match="nothing wrong") as caught:
        context.invoke("made.f0", 0)
    assert caught.value.status.name == "UNKNOWN"


def test_misaligned_global_is_reached_by_its_bytes():
    function = straight("I_I").op("global.store.i64", 3, 0).op("global.load.i64", 3, 2).op("return", [2])
    other = Function("v_i").block().op("global.load.i32", 4, 0).op("return", [0])
    with run(module_of(function, other, global_bytes=16)) as context:
        assert context.invoke("made.f0", 0x0102030405060708) == 0x0102030405060708
        assert context.invoke("made.f1") == 0x04050607


def test_references_that_were_never_written_are_null():
    function = straight("i_i").op("cmp.nz.ref", ref(3), 1).op("return", [1])
    with run(module_of(function)) as context:
        assert context.invoke("made.f0", 1) == 0


def test_reference_written_on_one_path_is_null_on_the_other():
    function = Function("ri_i").block().op("cond_br", 0, (1, [(ref(0), ref(1))]), (1, []))
    function.block().op("cmp.nz.ref", ref(1), 0).op("return", [0])
    with run(module_of(function)) as context:
        assert context.invoke("made.f0", object(), 1) == 1
        assert context.invoke("made.f0", object(), 0) == 0


def test_moving_a_register_onto_itself_keeps_it():
    function = Function("r_r").block().op("assign.ref", ref(0, move=True), ref(0))
    function.op("br", (1, [(ref(0, move=True), ref(0))])).block().op("return", [ref(0, move=True)])
    value = object()
    with run(module_of(function)) as context:
        assert context.invoke("made.f0", value) is value


def test_select_into_one_of_its_operands_keeps_the_choice():
    function = Function("rri_r").block()
    function.op("select.ref", 0, 0, ref(0, move=True), ref(1, move=True), ref(0)).op("return", [ref(0)])
    first, second = object(), object()
    with run(module_of(function, types=("!vm.opaque",))) as context:
        assert context.invoke("made.f0", first, second, 1) is first
        assert context.invoke("made.f0", first, second, 0) is second


def test_wide_values_are_copied_as_one():
    """Copies of 64-bit values come as two; through scratch registers the pair may be odd."""
    function = Function("II_II").block()
    function.op("br", (1, [(0, 9), (1, 10), (2, 0), (3, 1), (9, 2), (10, 3)])).block()
    function.op("return", [0, 2])
    with run(module_of(function)) as context:
        assert context.invoke("made.f0", 2**60, -5) == (-5, 2**60)


def test_copies_happen_in_order():
    function = Function("ii_ii").block().op("br", (1, [(0, 1), (1, 0)])).block().op("return", [0, 1])
    with run(module_of(function)) as context:
        assert context.invoke("made.f0", 5, 6) == (5, 5)


# Recursion and endless calls.


def test_mutual_recursion_is_counted():
    odd = Function("i_i").block().op("cond_br", 0, (1, []), (2, [])).block()
    odd.op("const.i32", 1, 1).op("sub.i32", 0, 1, 0).op("call", 1, [0], [0]).op("return", [0])
    odd.block().op("return", [0])
    even = Function("i_i").block().op("cond_br", 0, (1, []), (2, [])).block()
    even.op("const.i32", 1, 1).op("sub.i32", 0, 1, 0).op("call", 0, [0], [0]).op("return", [0])
    even.block().op("const.i32", 1, 0).op("return", [0])
    with run(module_of(odd, even)) as context:
        assert [context.invoke("made.f1", n) for n in (0, 1, 2, 7, 100)] == [1, 0, 1, 0, 1]
        with pytest.raises(ProgramError, match="recursion deeper"):
            context.invoke("made.f0", 10**6)


def test_doubling_calls_stop_at_the_deadline():
    """No loop and no recursion, but 2**60 calls."""
    from sylvite.errors import DeadlineExceededError

    levels = 60
    functions = []
    for level in range(levels):
        function = Function("i_i").block()
        if level < levels - 1:
            function.op("call", level + 1, [0], [0]).op("call", level + 1, [0], [0])
        functions.append(function.op("return", [0]))
    with run(module_of(*functions)) as context, pytest.raises(DeadlineExceededError):
        context.invoke("made.f0", 1, timeout_ns=50_000_000)


# What is refused.


def refused(function, match, **options):
    with pytest.raises(FormatError, match=match) as caught:
        translate(module_of(function, **options))
    assert caught.value.offset is not None
    assert caught.value.offset >= 0x1000
    assert "function f0 of made by hand" in str(caught.value)


def test_reading_an_unwritten_value_register_is_refused():
    refused(straight().op("add.i32", 0, 7, 0).op("return", [0]), "add.i32 reads register 7 as i32")


def test_reading_a_value_as_another_type_is_refused():
    refused(straight("f_i").op("add.i32", 0, 0, 0).op("return", [0]), "as i32, but it holds f32")
    refused(straight("I_i").op("add.i32", 0, 0, 0).op("return", [0]), "as i32, but it holds i64")
    refused(
        straight("I_i").op("add.i32", 1, 1, 0).op("return", [0]), "register 1 as i32, but it has no value"
    )


def test_half_of_an_overwritten_wide_value_is_refused():
    function = straight("I_I").op("const.i32", 5, 1).op("return", [0])
    refused(function, "return reads register 0 as i64")


def test_value_of_two_types_after_a_merge_is_refused():
    function = straight("i_i").op("cond_br", 0, (1, []), (2, [])).block()
    function.op("const.i32", 1, 1).op("br", (3, [])).block().op("const.f32", 1.0, 1).op("br", (3, []))
    function.block().op("return", [1])
    refused(function, "return reads register 1 as i32, but it ")


def test_result_of_the_wrong_type_is_refused():
    refused(straight("i_f").op("return", [0]), "return reads register 0 as f32, but it holds i32")


def test_call_with_wrong_count_is_refused():
    function = straight("i_i").op("call", 0, [0, 0], [0]).op("return", [0])
    refused(function, "call has 2 operands where the calling convention has 1")
    function = straight("i_i").op("call", 0, [0], []).op("return", [0])
    refused(function, "call has 0 results where the calling convention has 1")


def test_call_with_register_of_the_wrong_file_is_refused():
    function = straight("i_i").op("call", 0, [ref(0)], [0]).op("return", [0])
    refused(function, "wrong file")


def test_segments_that_do_not_match_are_refused():
    imports = (("native.f", "iCiD_v"),)
    for segments, operands in (([], [0, 0]), ([0xFFFF], [0]), ([1, 1], [0, 0]), ([0xFFFF, 2], [0, 0])):
        function = straight("i_v").op("call.variadic", IMPORT, segments, operands, []).op("return", [])
        with pytest.raises(FormatError):
            translate(module_of(function, imports=imports))
    function = straight("i_v").op("call", IMPORT, [0, 0], []).op("return", [])
    refused(function, "without segments", imports=imports)


def test_global_outside_of_the_globals_is_refused():
    function = straight("v_i").op("global.load.i32", 13, 0).op("return", [0])
    refused(function, "global at 13 lies outside of the 16 bytes", global_bytes=16)


def test_function_that_takes_a_span_is_refused():
    refused(straight("CiD_v").op("return", []), "cannot take a span")


# Nothing of a module's content gets into source.

NASTY = '\'; import os; os.abort() #\n"""{x} \\ \0 ï'


def test_strings_stay_out_of_the_source():
    function = Function("ir_v", name=NASTY).block()
    function.op("trace", NASTY, [0]).op("print", NASTY, [ref(0, move=True)])
    function.op("cond_br", 0, (1, []), (2, [])).block().op("fail", 0, NASTY).block().op("return", [])
    module = module_of(function, types=(NASTY, "!vm.list<" + NASTY + ">"), imports=((NASTY + ".x", "i_v"),))
    translated = translate(module)
    assert "import os" not in translated.source
    assert "ï" not in translated.source
    assert translated.constants == (NASTY,)


def test_source_is_made_of_known_shapes_only(monkeypatch):
    """Names are those of the documented namespace, and there is no attribute but two."""
    function, _ = random_program(3, 30)
    tree = ast.parse(translate(module_of(function, diamond_chain(5))).source)
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert attributes <= {"bit_length", "__class__"}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    allowed = {"tick", "fail", "n", "b", "enter", "leave", "C", "R", "P"}
    assert all(name in allowed or name[1:].isdigit() for name in names)


def test_floats_are_exact_in_source():
    values = (0.1, -0.0, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan"))
    function = Function("v_" + "F" * len(values)).block()
    for number, value in enumerate(values):
        function.op("const.f64", value, 2 * number)
    function.op("return", [2 * number for number in range(len(values))])
    with run(module_of(function)) as context:
        found = context.invoke("made.f0")
    assert [repr(value) for value in found] == [repr(value) for value in values]


def test_generated_code_has_no_builtins():
    function = straight().op("return", [0])
    with run(module_of(function)) as context:
        handle = context.lookup("made.f0")
        assert handle._call.__globals__["__builtins__"] == {}


# Caching.


def test_translation_of_equal_modules_is_shared():
    def make(amount=5):
        return module_of(straight().op("const.i32", amount, 1).op("add.i32", 0, 1, 0).op("return", [0]))

    assert translate(make()) is translate(make())
    assert translate(make()) is not translate(make(6))


def test_cache_is_bounded():
    from sylvite.translator import module as implementation

    for amount in range(implementation._CACHE_ENTRIES + 10):
        translate(module_of(straight().op("const.i32", 1000 + amount, 1).op("return", [1])))
    assert len(implementation._cache) == implementation._CACHE_ENTRIES


def test_lines_map_back_to_bytecode():
    function = straight().op("const.i32", 5, 1).op("add.i32", 0, 1, 0).op("return", [0])
    translated = translate(module_of(function))
    places = dict(zip(translated.source.splitlines(), translated.places[1:], strict=True))
    assert places[" r1 = 5"] == (0, 1)
    assert places[" r0 = r0 + r1"] == (0, 8)
    assert places[" return r0"] == (0, 15)


# Moves to native functions.


def test_span_of_references_is_moved_to_native_function():
    class Native(NativeModule):
        name = "native"
        version = 0
        seen = []

        @property
        def functions(self):
            call = NativeFunction(name="f", calling_convention="CrID_i", call=self.look)
            return {"f": call}

        def look(self, state, pairs):
            self.seen = [(sys.getrefcount(item), number) for item, number in pairs]
            return len(pairs)

        def create_state(self):
            return None

    function = Function("rrI_ii").block()
    function.op("call.variadic", IMPORT, [2], [ref(0, move=True), 0, ref(1), 0], [2])
    function.op("cmp.nz.ref", ref(0), 3).op("return", [2, 3])
    with run(module_of(function, imports=(("native.f", "CrID_i"),)), Native()) as context:
        assert context.invoke("made.f0", object(), object(), 7) == (2, 0)
