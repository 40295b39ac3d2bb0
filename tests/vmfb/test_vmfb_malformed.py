"""Mutated archives: each is loaded or refused with a typed error that names a place, in bounded time
and memory."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc

import archive_writer as writer
import pytest
from archive_writer import encode, registers

from sylvite import vmfb
from sylvite.errors import FormatError
from sylvite.vmfb.archive import _flatbuffer_range, _module_member
from sylvite.vmfb.zip_directory import read_directory

SECONDS_PER_FILE = 2.0


def check(data: bytes) -> bool:
    """Open a file and use what it gave. Returns whether it was accepted."""
    start = time.process_time()
    refusal: FormatError | None = None
    try:
        archive = vmfb.open_archive(data)
    except FormatError as error:
        refusal = error
    assert time.process_time() - start < SECONDS_PER_FILE
    if refusal is not None:
        # A place in the file, its end when it ends too early, or where a lie said something would be.
        assert refusal.offset is not None, refusal
        assert 0 <= refusal.offset < 1 << 65, refusal
        assert refusal.where, refusal
        return False
    for segment in archive.module.rodata:
        assert len(archive.rodata(segment.ordinal)) == segment.byte_length
    for function in archive.module.functions:
        vmfb.read_signature(function)
        if archive.module.debug is not None:
            archive.module.debug.source_location(function.ordinal, 1)
    vmfb.disassemble(archive.module, rodata=archive.rodata)
    return True


def unzipped(data: bytes) -> tuple[bytes, int, int]:
    """A zip archive without checks that hide what is inside: the module alone, as a bare archive that
    keeps its data segments, and the range of the flatbuffer in it."""
    view = memoryview(data)
    start, end = _module_member(read_directory(view, where=""), "")
    start, end, declared = _flatbuffer_range(view, start, end, "", is_zip=True)
    head = start - 4
    bare = bytearray(data[head:])
    struct.pack_into("<I", bare, 0, declared - start)
    base = -(-(declared - head) // 64) * 64
    module = vmfb.open_archive(data).module
    ends = [s.offset + s.byte_length - head for s in module.rodata if not s.is_embedded]
    return bytes(bare[: max([base, *ends])].ljust(base, b"\0")), 4, end - head


def rich_module() -> bytes:
    """A small archive that has one of everything."""
    values = writer.module(
        encode("block", "const.f64", ("dH", 1.5, 0), "fail", ("HH3s", 0, 3, b"bad")),
        writer.RETURN_FIRST,
        attrs=[{"key": "a", "value": "b"}],
        dependencies=[{"name": "hal", "minimum_version": 7}],
        imported_functions=[
            {"full_name": "m.plain", "signature": {"calling_convention": "0iI_i"}},
            {"full_name": "m.many", "flags": 2, "signature": {"calling_convention": "0iCrID_v"}},
        ],
        rodata_segments=[
            {"embedded_data": b"abc", "compression_type": (1, {})},
            {"external_data_offset": 0, "external_data_length": 5},
        ],
        rwdata_segments=[{"byte_size": 3}],
        debug_database={
            "location_table": [
                (2, {"filename": "a.mlir", "line": 1, "column": 2}),
                None,
                (4, {"name": "n", "child_location": 0}),
                (3, {"metadata": "m", "locations": [0, 2]}),
                (1, {"callee": 3, "caller": 1}),
            ],
            "functions": [{"local_name": "f0", "locations": [(1, 0), (5, 4)]}, {"local_name": "f1"}],
        },
    )
    values["function_signatures"][0]["attrs"] = [
        {"key": "iree.abi.declaration", "value": "sync func @f0(%a: i32, %b: i32) -> (%o: i32)"}
    ]
    return writer.bare(writer.Layout().build(values), [b"12345"])


@pytest.fixture(scope="module")
def seeds(request) -> dict[str, bytes]:
    model = request.getfixturevalue("model").read_bytes()
    operations = request.getfixturevalue("every_operation").read_bytes()
    return {
        "rich": rich_module(),
        "zip": model,
        "model": unzipped(model)[0],
        "operations": unzipped(operations)[0],
    }


def test_seed_of_everything_is_accepted():
    assert check(rich_module())


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["zip", "model", "operations"])
def test_seeds_are_accepted(seeds, name):
    assert check(seeds[name])


def test_rich_module_cut_anywhere_is_refused():
    data = rich_module()
    for length in range(len(data)):
        assert not check(data[:length])


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["zip", "model"])
def test_compiled_module_cut_at_every_structure_is_refused(seeds, name):
    """Cuts at (and around) every place something starts or ends."""
    data = seeds[name]
    module = vmfb.open_archive(data).module
    places = {0, 4, 8, 16, len(data) - 22, module.bytecode_file_offset}
    places |= {segment.offset for segment in module.rodata}
    places |= {segment.offset + segment.byte_length for segment in module.rodata}
    places |= {module.bytecode_file_offset + f.bytecode_offset for f in module.functions}
    places |= set(range(0, len(data), 128))
    for place in sorted(places):
        for cut in (place - 1, place, place + 1):
            if 0 <= cut < len(data):
                assert not check(data[:cut])


def flipped(data: bytes, generator: random.Random, limit: int) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.choice((1, 1, 1, 2, 8))):
        changed[generator.randrange(min(limit, len(data)))] ^= 1 << generator.randrange(8)
    return bytes(changed)


INTERESTING = (0, 1, 2, 4, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def overwritten(data: bytes, generator: random.Random, limit: int) -> bytes:
    """A size, count or offset that lies."""
    changed = bytearray(data)
    width, code = generator.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q")))
    position = generator.randrange(0, min(limit, len(data)) - width) // width * width
    old = struct.unpack_from("<" + code, changed, position)[0]
    value = generator.choice((*INTERESTING, old + 1, old - 1, old + 4, -old, old << 1, len(data)))
    struct.pack_into("<" + code, changed, position, value & ((1 << 8 * width) - 1))
    return bytes(changed)


def spliced(data: bytes, generator: random.Random, limit: int) -> bytes:
    """A piece repeated, dropped or moved within the file."""
    size = generator.choice((1, 4, 8, 64))
    source = generator.randrange(min(limit, len(data)))
    target = generator.randrange(min(limit, len(data)))
    piece = data[source : source + size]
    kind = generator.randrange(3)
    if kind == 0:
        return data[:target] + piece + data[target + len(piece) :]
    if kind == 1:
        return data[:target] + piece + data[target:]
    return data[:target] + data[target + size :]


def mutate(data: bytes, seed: str, count: int) -> tuple[int, int]:
    """Check ``count`` mutations; returns how many were accepted and refused."""
    generator = random.Random(seed)
    limit = len(data)
    if data[:2] != b"PK":
        # The flatbuffer, not the data behind it: nothing there can be malformed.
        limit = struct.unpack_from("<I", data)[0] + 4
    accepted = 0
    for _ in range(count):
        change = generator.choice((flipped, flipped, overwritten, spliced))
        accepted += check(change(data, generator, limit))
    return accepted, count - accepted


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "count"), [("rich", 900), ("zip", 150), ("model", 300), ("operations", 150)]
)
def test_mutated_module_is_loaded_or_refused(seeds, name, count):
    accepted, refused = mutate(seeds[name], f"{name} quick", count)
    # Mutations do reach the checks, and the checks do not refuse what is harmless.
    assert refused > count // 4
    assert accepted > 0 or name == "zip"


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "count"), [("rich", 8000), ("zip", 1500), ("model", 2500), ("operations", 800)]
)
@pytest.mark.parametrize("part", range(2))
def test_many_mutated_modules_are_loaded_or_refused(seeds, name, count, part):
    mutate(seeds[name], f"{name} slow {part}", count)


def test_every_bit_of_the_flatbuffer_flipped_is_loaded_or_refused():
    data = bytearray(writer.archive(writer.module(writer.RETURN_FIRST, imported_functions=[
        {"full_name": "m.plain", "signature": {"calling_convention": "0iI_i"}}
    ])))  # fmt: skip
    accepted = 0
    for bit in range(8 * (4 + struct.unpack_from("<I", data)[0])):
        data[bit // 8] ^= 1 << bit % 8
        accepted += check(bytes(data))
        data[bit // 8] ^= 1 << bit % 8
    assert 0 < accepted < 4 * len(data)


# Files that ask for much.


def many_functions(count: int, body: bytes) -> bytes:
    values = writer.module(body)
    length = len(values["bytecode_data"])
    values["function_descriptors"] = [(0, len(body), 15, 0, 1, 8, 8)] * count
    values["function_signatures"] = [{"calling_convention": "0ii_i"}] * count
    values["bytecode_data"] = values["bytecode_data"][:length]
    return writer.archive(values)


def expensive_files() -> dict[str, bytes]:
    long_convention = "0" + "i" * 60_000 + "_i"
    spans = "0" + "CiD" * 20_000 + "_v"
    call = encode("call", ("I", 0x80000000), *registers(0), *registers(1))
    zeros = encode("block", *["const.i32.zero", ("H", 0)] * 2000, "return", *registers(0))
    segments = registers(*[60000] * 20_000)
    variadic = encode(
        *("block", "call.variadic", ("I", 0x80000000), *segments, *registers(), *registers()),
        *("return", *registers(0)),
    )
    imports = [{"full_name": "m.f", "signature": {"calling_convention": long_convention}}]
    span_imports = [{"full_name": "m.f", "signature": {"calling_convention": spans}}]
    return {
        "functions over one range": many_functions(3000, zeros),
        "calls of a long signature": writer.archive(
            writer.module(
                encode("block") + call * 10_000 + encode("return", *registers(0)), imported_functions=imports
            )
        ),
        "spans that multiply": writer.archive(writer.module(variadic, imported_functions=span_imports)),
        "global bytes": writer.archive(
            writer.module(writer.RETURN_FIRST, module_state={"global_bytes_capacity": 0x7FFFFFFF})
        ),
        "global references": writer.archive(
            writer.module(writer.RETURN_FIRST, module_state={"global_ref_count": 0x7FFFFFFF})
        ),
        "branch table": writer.archive(
            writer.module(
                encode("block", "br_table", ("HI", 0, 0), *registers(), ("H", 0xFFFF), *[0] * 100_000)
            )
        ),
        "fused locations": writer.archive(
            writer.module(
                writer.RETURN_FIRST,
                debug_database={
                    "location_table": [
                        (3, {"locations": list(range(max(0, i - 40), i)) * (i > 0)}) for i in range(3000)
                    ],
                    "functions": [{"local_name": "f0", "locations": [(1, 2999)]}],
                },
            )
        ),
    }


@pytest.mark.parametrize("name", expensive_files())
def test_file_that_asks_for_much_is_answered_soon(name):
    data = expensive_files()[name]
    tracemalloc.start()
    try:
        start = time.process_time()
        check(data)
        assert time.process_time() - start < 2 * SECONDS_PER_FILE
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_memory_of_mutated_modules_is_bounded_by_their_size():
    data = rich_module()
    generator = random.Random("memory")
    limit = struct.unpack_from("<I", data)[0] + 4
    tracemalloc.start()
    try:
        for _ in range(100):
            check(overwritten(data, generator, limit))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
