"""Mutated modules: each is accepted or refused exactly as wasmtime does, with our own errors only."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
import wasmtime

from sylvite import wasm
from sylvite.errors import FormatError, UnsupportedFeatureError
from sylvite.wasm import leb

RICH_TEXT = """
(module
  (type (func (param i32 i64) (result f32 v128)))
  (import "env" "memory" (memory 1)) (import "env" "t" (table 2 funcref)) (import "env" "f" (func (type 0)))
  (global (mut i32) (i32.const 7)) (tag (param i32))
  (func $a (param i32) (result i32) (local i64 f32 v128)
    (block (result i32) (local.get 0)
      (if (param i32) (result i32) (local.get 0) (then) (else (drop) (i32.const 3))))
    (block (loop $l (br_if $l (i32.eqz (local.get 0))) (br_table 0 1 $l (local.get 0)))))
  (func (export "x") (result v128)
    (drop (call_indirect (type 0) (i32.const 1) (i64.const -1) (i32.const 0)))
    (drop) (i8x16.shuffle 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15
      (v128.const i64x2 1 2) (v128.load offset=4 (i32.const 0)))
    (f32x4.relaxed_madd (f32x4.splat (f32.const 1.5)) (v128.load32_zero (i32.const 0))) (drop)
    (v128.const f32x4 1 2 3 4))
  (func (result i32) (i32.atomic.rmw.add offset=4 (i32.const 0) (i32.const 1)) (drop)
    (block $h (result i32) (try_table (result i32) (catch 0 $h) (i32.const 1)))
    (select (result i32) (i32.const 1) (i32.const 2)) (return_call $a))
  (func (memory.fill (i32.const 0) (i32.const 1) (i32.const 2))
    (memory.copy (i32.const 0) (i32.const 1) (i32.const 2))
    (table.set (i32.const 0) (ref.func $a)) (drop (table.grow (ref.null func) (i32.const 1))))
  (elem (i32.const 0) $a) (data (i32.const 8) "some data"))
"""


def verdict(data: bytes) -> Exception | None:
    """What we say of a module, bodies included."""
    try:
        module = wasm.decode(data)
        wasm.validate(module)
    except FormatError as error:
        return error
    wasm.features.required(module)
    assert wasm.encode(module) == data
    return None


def accepts(judge: wasmtime.Engine, data: bytes) -> bool:
    try:
        wasmtime.Module.validate(judge, data)
    except wasmtime.WasmtimeError:
        return False
    return True


def check(judge: wasmtime.Engine, data: bytes, what: str) -> None:
    begin = time.perf_counter()
    error = verdict(data)
    assert time.perf_counter() - begin < 2, what
    if isinstance(error, UnsupportedFeatureError):
        return
    if error is not None:
        assert isinstance(error, FormatError)
        assert error.where is not None, what
        assert error.offset is not None, f"{what}: {error}"
        assert error.offset <= len(data), what
    assert (error is None) == accepts(judge, data), f"{what}: we say {error!r}"


def mutations(data: bytes, seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Bit flips, byte changes, size lies, insertions, deletions and copies of ranges."""
    rng = random.Random(seed)
    interesting = (0, 1, 0x0B, 0x40, 0x7F, 0x80, 0xFD, 0xFE, 0xFC, 0xFF)
    for number in range(count):
        raw = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at = rng.randrange(8, len(raw))
            kind = rng.randrange(6)
            if kind == 0:
                raw[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                raw[at] = rng.choice(interesting)
            elif kind == 2:
                raw[at : at + 1] = b"\xff\xff\xff\xff" + bytes((rng.choice((0x0F, 0x7F, 0xFF)),))
            elif kind == 3:
                raw[at:at] = bytes((rng.choice(interesting),))
            elif kind == 4:
                del raw[at : at + rng.randrange(1, 4)]
            else:
                start = rng.randrange(8, len(raw))
                raw[at:at] = raw[start : start + rng.randrange(1, 12)]
            if len(raw) < 10:
                break
        yield f"seed {seed}, mutation {number}", bytes(raw)


@pytest.fixture(scope="module")
def rich_module() -> bytes:
    return bytes(wasmtime.wat2wasm(RICH_TEXT))


def test_rich_module_itself_is_accepted(rich_module: bytes, judge: wasmtime.Engine) -> None:
    check(judge, rich_module, "unchanged")
    assert verdict(rich_module) is None


def test_truncation_at_every_byte_is_judged_as_by_wasmtime(
    small_module: bytes, rich_module: bytes, judge: wasmtime.Engine
) -> None:
    for data in (small_module, rich_module):
        for length in range(len(data)):
            check(judge, data[:length], f"cut to {length} bytes")


def test_every_byte_replaced_is_judged_as_by_wasmtime(rich_module: bytes, judge: wasmtime.Engine) -> None:
    for at in range(8, len(rich_module)):
        for value in (0, 0x7F, 0xFF, rich_module[at] ^ 1, rich_module[at] ^ 0x80):
            data = rich_module[:at] + bytes((value,)) + rich_module[at + 1 :]
            check(judge, data, f"byte {at:#x} set to {value:#x}")


@pytest.mark.parametrize("seed", range(2))
def test_mutations_are_judged_as_by_wasmtime(
    seed: int, small_module: bytes, rich_module: bytes, judge: wasmtime.Engine
) -> None:
    for data in (small_module, rich_module):
        for what, mutated in mutations(data, seed, 400):
            check(judge, mutated, what)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_mutations_are_judged_as_by_wasmtime(
    seed: int, small_module: bytes, rich_module: bytes, judge: wasmtime.Engine
) -> None:
    for data in (small_module, rich_module):
        for what, mutated in mutations(data, seed, 1000):
            check(judge, mutated, what)


@pytest.mark.compiler
def test_mutations_of_compiled_modules_are_judged_as_by_wasmtime(
    compiled: dict[str, bytes], judge: wasmtime.Engine
) -> None:
    for name in ("linked-simd", "linked-relaxed", "iree-0"):
        for what, mutated in mutations(compiled[name], 7, 150):
            check(judge, mutated, f"{name}, {what}")


@pytest.mark.parametrize(
    "reader", [wasm.dylink.read, wasm.names.read, wasm.target_features.read, wasm.producers.read]
)
def test_mutated_custom_sections_are_read_or_refused(reader: object) -> None:
    builder = wasm.ModuleBuilder("named")
    builder.function("f").local(wasm.ValueType.I32, "x")
    builder.add_global(wasm.ValueType.I32, 1, name="g")
    builder.dylink(
        wasm.dylink.DylinkInfo(
            memory_size=100,
            needed=("libc.so",),
            export_info={"f": wasm.dylink.SymbolFlags.WEAK},
            imports=(wasm.dylink.DylinkImport(module="env", name="x", flags=wasm.dylink.SymbolFlags.TLS),),
        )
    )
    builder.target_features({"simd128": "+"})
    builder.add_custom(wasm.producers.section({"language": {"C": "17"}, "sdk": {}}))
    module = wasm.decode(builder.build())
    places: set[str | None] = set()
    for custom in module.customs:
        cuts = [custom.data[:length] for length in range(len(custom.data))]
        for mutated in [*cuts, *(raw[8:] for _, raw in mutations(b"\0" * 8 + custom.data, 3, 300))]:
            changed = wasm.CustomSection(name=custom.name, data=mutated, after=custom.after)
            try:
                reader(wasm.Module(customs=(changed,)))  # type: ignore[operator]
            except FormatError as error:
                places.add(error.where)
    assert places <= {f"{custom.name} section" for custom in module.customs}
    assert places, "no mutation was refused"


@pytest.mark.parametrize(
    ("section", "item", "count"),
    [
        (2, b"\0\0\2\0\1", 30_000),
        (2, b"\0\0\4\0\0", 30_000),
        (6, b"\x7f\0\x41\0\x0b", 30_000),
        (9, b"\x05\x70\0", 20_000),
    ],
    ids=["imported memories", "imported tags", "globals", "empty element segments"],
)
def test_many_items_cost_time_in_proportion(section: int, item: bytes, count: int) -> None:
    def cost(number: int) -> float:
        contents = leb.encode_unsigned(number) + item * number
        parts = [b"\1\4\1\x60\0\0", bytes((section,)) + leb.encode_unsigned(len(contents)) + contents]
        data = b"\0asm\1\0\0\0" + b"".join(parts)
        begin = time.process_time()
        wasm.validate(wasm.decode(data))
        return time.process_time() - begin

    cost(100)
    small, large = cost(count // 10), cost(count)
    # Ten times the items: about ten times the time, far from a hundred.
    assert large < 40 * max(small, 0.01), (small, large)
