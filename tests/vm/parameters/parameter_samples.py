"""Small parameter files of every format, and seeded mutations of them."""

import json
import random
import struct

import numpy as np

from sylvite.vm.parameters import Splat, build_archive

ARRAYS = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bias": np.array([-1, 0, 7], dtype=np.int8),
    "scale": np.array(2.5, dtype=np.float64),
    "none": np.zeros((0, 4), dtype=np.float16),
}


def irpa_bytes(parameters=None):
    """A parameter archive as bytes."""
    if parameters is None:
        parameters = {**ARRAYS, "splat": (64, Splat(pattern=b"\1\2\3\4"))}
    head, places, total = build_archive(parameters)
    data = bytearray(total)
    data[: len(head)] = head
    for offset, contents in places:
        data[offset : offset + len(contents)] = contents
    return bytes(data)


def safetensors_bytes(arrays=None, *, header=None, metadata=None):
    """A safetensors file as bytes; ``header`` replaces the generated header."""
    names = {"float32": "F32", "int8": "I8", "float64": "F64", "float16": "F16"}
    data = b""
    records = {} if metadata is None else {"__metadata__": metadata}
    for key, array in (ARRAYS if arrays is None else arrays).items():
        end = len(data) + array.nbytes
        records[key] = {
            "dtype": names[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [len(data), end],
        }
        data += array.tobytes()
    text = json.dumps(records).encode() if header is None else header
    text += b" " * (-len(text) % 8) if header is None else b""
    return struct.pack("<Q", len(text)) + text + data


def gguf_string(text):
    """A length-prefixed string."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_bytes(tensors=None, *, pairs=(), version=3, alignment=32, magic=b"GGUF"):
    """A GGUF file as bytes. ``tensors``: (name, dimensions innermost first, type, offset); ``pairs``: raw
    metadata pairs."""
    data = b"".join(array.tobytes().ljust(-(-array.nbytes // 32) * 32, b"\0") for array in ARRAYS.values())
    if tensors is None:
        types = {"float32": 0, "int8": 24, "float64": 28, "float16": 1}
        tensors, offset = [], 0
        for key, array in ARRAYS.items():
            tensors.append((key, array.shape[::-1], types[str(array.dtype)], offset))
            offset += -(-array.nbytes // 32) * 32
    head = magic + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs)
    for name, dimensions, kind, offset in tensors:
        head += gguf_string(name) + struct.pack("<I", len(dimensions))
        head += struct.pack(f"<{len(dimensions)}Q", *dimensions) + struct.pack("<IQ", kind, offset)
    return head + bytes(-len(head) % alignment) + data


GGUF_PAIRS = (
    gguf_string("general.architecture") + struct.pack("<I", 8) + gguf_string("test"),
    gguf_string("general.alignment") + struct.pack("<II", 4, 32),
    gguf_string("a.list") + struct.pack("<IIQ", 9, 8, 2) + gguf_string("x") + gguf_string("y"),
    gguf_string("a.nested") + struct.pack("<IIQIQ", 9, 9, 1, 5, 3) + bytes(12),
    gguf_string("a.flag") + struct.pack("<IB", 7, 1),
)

SAMPLES = {
    "irpa": irpa_bytes(),
    "safetensors": safetensors_bytes(metadata={"format": "np"}),
    "gguf": gguf_bytes(pairs=GGUF_PAIRS),
}
HEADER_LENGTHS = {"irpa": 512, "safetensors": 400, "gguf": 440}
_EXTREMES = (
    0,
    1,
    7,
    0x7F,
    0x80,
    0xFF,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)


def mutate(data, seed, header_length):
    """One damaged copy of a file: cut, flipped bits, extreme integers, moved or repeated pieces."""
    random_ = random.Random(seed)
    changed = bytearray(data)
    for _ in range(random_.choice((1, 1, 1, 2, 4))):
        limit = min(header_length, len(changed))
        if not limit:
            break
        place = random_.randrange(limit)
        kind = random_.randrange(7)
        if kind == 0:
            del changed[random_.randrange(len(changed)) :]
        elif kind == 1:
            changed[place] ^= 1 << random_.randrange(8)
        elif kind == 2:
            changed[place] = random_.randrange(256)
        elif kind == 3:
            width = random_.choice((4, 8))
            value = random_.choice(_EXTREMES) & ((1 << 8 * width) - 1)
            changed[place : place + width] = value.to_bytes(width, "little")
        elif kind == 4:
            width = random_.choice((4, 8))
            old = int.from_bytes(changed[place : place + width], "little")
            new = (old + random_.choice((-1, 1, 8, -8, len(data)))) % (1 << 8 * width)
            changed[place : place + width] = new.to_bytes(width, "little")
        elif kind == 5:
            del changed[place : place + random_.randrange(1, 24)]
        else:
            piece = changed[place : place + random_.randrange(1, 24)]
            other = random_.randrange(limit)
            changed[other:other] = piece
    return bytes(changed)
