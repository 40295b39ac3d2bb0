"""Seeded damage to files: cuts, flips, lies about sizes, wrapping offsets, repeated and moved pieces, and
WebAssembly and ONNX that are still well formed but mean something else."""

from __future__ import annotations

import dataclasses
import random
import struct
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from sylvite import vmfb, wasm
from sylvite.errors import FormatError
from sylvite.wasm import instructions

EXTREMES = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF)
WIDE = (*EXTREMES, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 64, (1 << 64) - 1)


def place_in(data: bytes, generator: random.Random, limit: int) -> int:
    return generator.randrange(max(min(limit, len(data)), 1))


def cut(data: bytes, generator: random.Random, limit: int, places: Sequence[int]) -> bytes:
    """Ends early: anywhere, or just around the place where something begins."""
    if places and generator.random() < 0.7:
        return data[: max(generator.choice(places) + generator.choice((-1, 0, 1)), 0)]
    return data[: generator.randrange(len(data))]


def flip(data: bytes, generator: random.Random, limit: int, places: Sequence[int]) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.choice((1, 1, 1, 2, 4, 16))):
        changed[place_in(data, generator, limit)] ^= 1 << generator.randrange(8)
    return bytes(changed)


def lie(data: bytes, generator: random.Random, limit: int, places: Sequence[int]) -> bytes:
    """A size, count or offset that is extreme, wraps around, or is a little off."""
    changed = bytearray(data)
    for _ in range(generator.choice((1, 1, 2))):
        width, code = generator.choice(((1, "B"), (2, "H"), (4, "I"), (4, "I"), (8, "Q")))
        place = place_in(data, generator, limit)
        if places and generator.random() < 0.5:
            place = generator.choice(places)
        place = min(place // width * width if generator.random() < 0.8 else place, len(data) - width)
        if place < 0:
            continue
        (old,) = struct.unpack_from("<" + code, changed, place)
        value = generator.choice(
            (*WIDE, old + 1, old - 1, old + 4, old - 4, -old, old << 1, -place, len(data))
        )
        struct.pack_into("<" + code, changed, place, value & ((1 << 8 * width) - 1))
    return bytes(changed)


def splice(data: bytes, generator: random.Random, limit: int, places: Sequence[int]) -> bytes:
    """A piece repeated, dropped, or put where another was: two offsets may then mean one thing, or a thing
    may contain itself."""
    size = generator.choice((1, 2, 4, 8, 64))
    source, target = place_in(data, generator, limit), place_in(data, generator, limit)
    piece = data[source : source + size]
    tail = generator.choice((target, target + len(piece)))
    return (
        data[:target] + piece + data[tail:]
        if generator.random() < 0.7
        else data[:target] + data[target + size :]
    )


CHANGES = (cut, flip, flip, lie, lie, splice)


def damage(
    data: bytes, generator: random.Random, *, limit: int | None = None, places: Sequence[int] = ()
) -> bytes:
    """One of the above, on the first ``limit`` bytes."""
    return generator.choice(CHANGES)(data, generator, len(data) if limit is None else limit, places)


# Module archives.


def member(data: bytes, name: str) -> tuple[int, int]:
    """Where the content of a zip member is."""
    for info in zipfile.ZipFile(BytesIO(data)).infolist():
        if info.filename == name or (name == ".wasm" and info.filename.endswith(name)):
            lengths = struct.unpack_from("<HH", data, info.header_offset + 26)
            start = info.header_offset + 30 + sum(lengths)
            return start, start + info.file_size
    raise KeyError(name)


def bare_archive(data: bytes) -> bytes:
    """A zip archive without the zip around it, so that damage is not hidden behind a checksum."""
    start, _ = member(data, "module.fb")
    module = vmfb.open_archive(data).module
    ends = [s.offset + s.byte_length for s in module.rodata if not s.is_embedded]
    bare = data[start : max(ends)]
    vmfb.open_archive(bare)
    return bare


def flatbuffer_end(bare: bytes) -> int:
    return 4 + int(struct.unpack_from("<I", bare)[0])


def archive_places(bare: bytes) -> list[int]:
    """Where the structures of a bare archive begin and end."""
    module = vmfb.open_archive(bare).module
    code = module.bytecode_file_offset
    places = {0, 4, 8, flatbuffer_end(bare), code}
    for segment in module.rodata:
        places |= {segment.offset, segment.offset + segment.byte_length}
    for function in module.functions:
        places |= {
            code + function.bytecode_offset,
            code + function.bytecode_offset + function.bytecode_length,
        }
    return sorted(place for place in places if place <= len(bare))


def with_executable(bare: bytes, executable: bytes) -> bytes:
    """A bare archive whose one WebAssembly executable, the last thing in it, is replaced."""
    start = bare.rindex(b"\0asm\1\0\0\0")
    old = struct.pack("<Q", len(bare) - start)
    head = bare[: flatbuffer_end(bare)]
    if head.count(old) != 1:
        raise ValueError("the executable's length is not found once in the flatbuffer")
    return (head.replace(old, struct.pack("<Q", len(executable))) + bare[len(head) : start]) + executable


def executable_of(bare: bytes) -> bytes:
    return bare[bare.rindex(b"\0asm\1\0\0\0") :]


# WebAssembly.


def section_places(data: bytes) -> list[int]:
    """Where the sections of a module begin."""
    places, position = [0, 4, 8], 8
    while position < len(data):
        length, shift, at = 0, 0, position + 1
        while True:
            length |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not data[at - 1] & 0x80:
                break
        places += [position, position + 1, at]
        position = at + length
    return places


SAME_SIGNATURE: dict[object, list[str]] = {}
for _info in instructions.INSTRUCTIONS.values():
    if _info.signature is not None and not _info.operands:
        SAME_SIGNATURE.setdefault((_info.signature.pops, _info.signature.pushes), []).append(_info.name)


def other_instruction(instruction: wasm.Instruction, generator: random.Random) -> wasm.Instruction:
    """An instruction that takes and leaves the same types, or the same one with other immediates."""
    name, immediates = instruction.name, instruction.immediates
    info = instructions.INSTRUCTIONS[name]
    if name in ("i32.const", "i64.const"):
        bits = 32 if name[1] == "3" else 64
        value = generator.choice((*WIDE, immediates[0] + 1, -immediates[0], immediates[0] << 4))
        value &= (1 << bits) - 1
        return instruction._replace(immediates=(value - (value >> (bits - 1) << bits),))
    if name in ("br", "br_if"):
        return instruction._replace(immediates=(generator.choice((0, 1, max(immediates[0] - 1, 0))),))
    if name in ("local.get", "local.set", "local.tee", "global.get", "call"):
        return instruction._replace(immediates=(max(immediates[0] + generator.choice((-1, 1)), 0),))
    if name in ("block", "loop"):
        return instruction._replace(name="loop" if name == "block" else "block")
    if info.signature is not None and not info.operands:
        alike = SAME_SIGNATURE[(info.signature.pops, info.signature.pushes)]
        return instruction._replace(name=generator.choice(alike))
    if info.natural_alignment is not None and hasattr(immediates[0], "_replace"):
        return instruction._replace(
            immediates=(immediates[0]._replace(offset=generator.choice(EXTREMES)), *immediates[1:])
        )
    return instruction._replace(name="unreachable", immediates=())


def other_code(data: bytes, generator: random.Random) -> bytes:
    """A module with a few instructions exchanged; most are still valid, and do anything."""
    module = wasm.decode(data)
    bodies = list(module.code)
    for _ in range(generator.choice((1, 1, 2, 5))):
        index = generator.choice([i for i, body in enumerate(bodies) if len(body.data) > 8])
        body = bodies[index]
        try:
            code = body.instructions()
            at = generator.choice([i for i, one in enumerate(code) if one.name not in ("end", "else")])
            code[at] = other_instruction(code[at], generator)
            head = body.data[: len(body.data) - len(body.split()[1])]
            bodies[index] = dataclasses.replace(body, data=head + instructions.encode_body(code))
        except FormatError:
            continue  # the change before broke it, or cannot be written
    return wasm.encode(dataclasses.replace(module, code=tuple(bodies)))


def other_data(data: bytes, generator: random.Random) -> bytes:
    """A module with damaged data: the library structure (pointers, counts, table indices) and constants."""
    module = wasm.decode(data)
    segments = list(module.data)
    index = generator.randrange(len(segments))
    segments[index] = dataclasses.replace(
        segments[index], data=generator.choice((flip, lie))(segments[index].data, generator, 1 << 20, [])
    )
    return wasm.encode(dataclasses.replace(module, data=tuple(segments)))


def damaged_executable(data: bytes, generator: random.Random) -> bytes:
    kind = generator.random()
    if kind < 0.4:
        return other_code(data, generator)
    if kind < 0.6:
        return other_data(data, generator)
    return damage(data, generator, places=section_places(data))


# ONNX.


def field_places(data: bytes) -> list[int]:
    """Where the fields of a protocol buffer begin, nested messages included."""
    places: list[int] = []

    def varint(at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end:
            value |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not data[at - 1] & 0x80:
                return value, at
        raise ValueError

    def walk(at: int, end: int, depth: int) -> None:
        while at < end:
            start = at
            key, at = varint(at, end)
            kind = key & 7
            if kind == 0:
                _, at = varint(at, end)
            elif kind == 1:
                at += 8
            elif kind == 5:
                at += 4
            elif kind == 2:
                length, at = varint(at, end)
                places.append(start + 1)
                if depth < 8 and at + length <= end:
                    mark = len(places)
                    try:
                        walk(at, at + length, depth + 1)
                    except ValueError:
                        del places[mark:]
                at += length
            else:
                raise ValueError
            if at > end:
                raise ValueError
            places.append(start)

    walk(0, len(data), 0)
    return sorted(set(places))


def other_graph(data: bytes, generator: random.Random) -> bytes:
    """A ModelProto that parses but whose graph is wrong somewhere: shapes, types, names, cycles."""
    import onnx

    model = onnx.ModelProto()
    model.ParseFromString(data)
    graph = model.graph
    names = [name for node in graph.node for name in (*node.input, *node.output)] or ["x"]
    for _ in range(generator.choice((1, 1, 2, 4))):
        kind = generator.randrange(10)
        node = generator.choice(graph.node) if graph.node else None
        if kind == 0 and graph.initializer:
            tensor = generator.choice(graph.initializer)
            extents = [generator.choice((0, 1, -1, 3, 1 << 20, 1 << 40, (1 << 63) - 1)) for _ in range(3)]
            tensor.dims[:] = extents[: generator.randrange(4)]
        elif kind == 1 and graph.initializer:
            generator.choice(graph.initializer).data_type = generator.randrange(0, 30)
        elif kind == 2 and graph.input:
            dims = generator.choice(graph.input).type.tensor_type.shape.dim
            if dims:
                generator.choice(dims).dim_value = generator.choice((0, -1, -7, 3, 1 << 31, 1 << 62))
        elif kind == 3 and node is not None and node.input:
            # Names of later results make cycles.
            node.input[generator.randrange(len(node.input))] = generator.choice((*names, "", "nowhere"))
        elif kind == 4 and node is not None and node.output:
            node.output[generator.randrange(len(node.output))] = generator.choice(names)
        elif kind == 5 and node is not None:
            node.op_type = generator.choice(
                ("Add", "Conv", "Loop", "If", "Reshape", "Nothing", "", "Identity")
            )
        elif kind == 6 and node is not None and node.attribute:
            attribute = generator.choice(node.attribute)
            attribute.type = generator.randrange(0, 15)
            attribute.i = generator.choice((-1, 0, 1 << 40))
            attribute.ints.append(generator.choice((-1, 0, 1 << 40)))
        elif kind == 7 and graph.initializer:
            tensor = generator.choice(graph.initializer)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", generator.choice(("../../etc/passwd", "/dev/zero", "no", ""))),):
                tensor.external_data.add(key=key, value=value)
        elif kind == 8:
            for entry in model.opset_import:
                entry.version = generator.choice((-1, 0, 1, 7, 99, 1 << 40))
        elif kind == 9 and node is not None:
            inner = onnx.GraphProto()
            inner.CopyFrom(graph)
            node.attribute.add(name="body", type=onnx.AttributeProto.GRAPH).g.CopyFrom(inner)
    return model.SerializeToString()


def damaged_onnx(data: bytes, generator: random.Random) -> bytes:
    if generator.random() < 0.5:
        return other_graph(data, generator)
    return damage(data, generator, places=field_places(data))


def mutant(kind: str, samples: Path, seed: int) -> tuple[str, bytes]:
    """The name of the sample and its damaged bytes, for a kind of file and a seed."""
    generator = random.Random(f"{kind} {seed}")
    paths = sorted(samples.glob(f"*.{ {'wasm': 'bare', 'vmfb': 'bare'}.get(kind, kind) }"))
    path = generator.choice(paths)
    data = path.read_bytes()
    if kind == "wasm":
        return path.stem, with_executable(data, damaged_executable(executable_of(data), generator))
    if kind == "vmfb":
        if generator.random() < 0.2:
            zipped = path.with_suffix(".zip").read_bytes()
            return path.stem, damage(
                zipped, generator, places=[0, 4, 26, 28, *range(len(zipped) - 200, len(zipped))]
            )
        limit = generator.choice((flatbuffer_end(data), flatbuffer_end(data), 256, len(data)))
        return path.stem, damage(data, generator, limit=limit, places=archive_places(data))
    if kind == "onnx":
        return path.stem, damaged_onnx(data, generator)
    limit = generator.choice((64, 512, len(data)))
    return path.stem, damage(data, generator, limit=limit, places=list(range(0, 256, 8)))
