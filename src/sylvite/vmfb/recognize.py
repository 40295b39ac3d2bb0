"""What a file is, from its first bytes: for messages that refuse it."""

from __future__ import annotations

__all__ = ["IDENTIFIER", "is_archive_head", "recognize"]

IDENTIFIER = b"IREE"
"""Identifier of the module's flatbuffer."""

_MAGICS = (
    (b"PK\x03\x04", "a zip file"),
    (b"PK\x05\x06", "an empty zip file"),
    (b"\0asm", "a WebAssembly module"),
    (b"\x7fELF", "an ELF object or program"),
    (b"ML\xefR", "MLIR bytecode"),
    (b"IRPA", "an IREE parameter file; pass it as parameters="),
    (b"GGUF", "a GGUF parameter file; pass it as parameters="),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x89PNG", "a PNG image"),
    (b"\x93NUMPY", "a numpy array"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"%PDF", "a PDF document"),
)
_TEXT_BYTES = 64


def is_archive_head(head: bytes) -> bool:
    """Whether a file that begins with ``head`` (12 bytes are enough) looks like a module archive."""
    # A bare module has the length of its flatbuffer before it.
    return head.startswith(b"PK\x03\x04") or IDENTIFIER in (head[4:8], head[8:12])


def recognize(head: bytes) -> str | None:
    """What a file that begins with ``head`` is, in words; ``None`` when that is not known."""
    if not head:
        return "empty"
    for magic, name in _MAGICS:
        if head.startswith(magic):
            return name
    if head[8:10] == b'{"' and not any(head[4:8]):
        return "a safetensors parameter file; pass it as parameters="
    text = head[:_TEXT_BYTES]
    if all(byte >= 0x20 or byte in b"\t\n\r" for byte in text) and text.isascii():
        return "text"
    return None
