"""Assembling modules from text, for tests and hand-written kernels.

The language is that of ``spirv-as`` with names or numbers as ids. A number of
``OpConstant`` is of its type, ``1.5`` or ``7``, or ``!`` and the bits.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Final

from ..errors import FormatError, InvalidArgumentError
from .grammar import COMPOSITE_KINDS, ID_KINDS, enum_kinds, extended_instructions, opcodes

__all__ = ["assemble"]

MAGIC: Final = 0x07230203
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"]+')


def assemble(text: str, *, version: tuple[int, int] = (1, 3)) -> bytes:
    """The binary of a module in text form; offsets of errors count lines.

    Raises:
        FormatError: a line cannot be assembled.
        InvalidArgumentError: the version is not one of SPIR-V's.
    """
    if version[0] != 1 or not 0 <= version[1] <= 6:
        raise InvalidArgumentError(f"SPIR-V {version[0]}.{version[1]}")
    # Names get ids above those that are written as numbers.
    assembler = _Assembler(max((int(number) for number in re.findall(r"%(\d+)\b", text)), default=0))
    words: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.split(";")[0] if '"' not in line else line
        tokens = _TOKEN.findall(code)
        if tokens and not tokens[0].startswith(";"):
            words += assembler.line(tokens, number)
    bound = max(assembler.ids.values(), default=0) + 1
    header = [MAGIC, version[0] << 16 | version[1] << 8, 0, bound, 0]
    return struct.pack(f"<{len(header) + len(words)}I", *header, *words)


class _Assembler:
    def __init__(self, highest: int) -> None:
        self.highest = highest
        self.ids: dict[str, int] = {}
        self.number_types: dict[int, tuple[str, int]] = {}
        self.value_types: dict[int, int] = {}
        self.number = 0

    def error(self, message: str) -> FormatError:
        return FormatError(message, offset=self.number, where="assembly")

    def identifier(self, token: str) -> int:
        if not token.startswith("%") or len(token) < 2:
            raise self.error(f"{token} is not an id")
        name = token[1:]
        if name not in self.ids:
            if name.isdigit():
                self.ids[name] = int(name)
            else:
                self.highest += 1
                self.ids[name] = self.highest
        return self.ids[name]

    def line(self, tokens: list[str], number: int) -> list[int]:
        self.number = number
        result = None
        if len(tokens) > 2 and tokens[1] == "=":
            result, tokens = tokens[0], tokens[2:]
        info = opcodes().get(tokens[0])
        if info is None:
            raise self.error(f"{tokens[0]} is not an opcode")
        if info.has_result is not (result is not None):
            raise self.error(f"{info.name} {'needs' if info.has_result else 'has no'} result")
        self.rest = iter(tokens[1:])
        self.type_id = 0
        self.name = info.name
        words: list[int] = []
        pending = self.fields(info.operands, result, words)
        if pending is not None or next(self.rest, None) is not None:
            raise self.error(f"{info.name}: too many operands")
        self.note(info.name, words)
        return [len(words) + 1 << 16 | info.opcode, *words]

    def fields(self, fields: tuple[tuple[str, str], ...], result: str | None, words: list[int]) -> str | None:
        """Assemble operands; returns a token that none of them takes."""
        token = None
        for kind, quantifier in fields:
            if kind == "IdResult" and result is not None:
                words.append(self.identifier(result))
                continue
            while True:
                token = next(self.rest, None) if token is None else token
                if token is None:
                    if not quantifier:
                        raise self.error(f"{self.name}: an operand of kind {kind} is missing")
                    break
                self.operand(kind, token, words)
                token = None
                if quantifier != "*":
                    break
        return token

    def operand(self, kind: str, token: str, words: list[int]) -> None:
        if kind in COMPOSITE_KINDS:
            first, second = COMPOSITE_KINDS[kind]
            self.operand(first, token, words)
            self.fields(((second, ""),), None, words)
        elif kind in ID_KINDS:
            words.append(self.identifier(token))
            if kind == "IdResultType":
                self.type_id = words[-1]
        elif kind == "LiteralString":
            words += self.string(token)
        elif kind == "LiteralContextDependentNumber":
            words += self.literal(token, words)
        elif kind == "LiteralSpecConstantOpInteger":
            info = opcodes().get("Op" + token)
            if info is None:
                raise self.error(f"{token} is not an operation")
            words.append(info.opcode)
            self.fields(tuple(f for f in info.operands if not f[0].startswith("IdResult")), None, words)
        elif kind == "LiteralExtInstInteger":
            names = {info.name: number for number, info in extended_instructions().items()}
            words.append(names[token] if token in names else self.integer(token))
        elif kind in enum_kinds():
            self.enumerant(kind, token, words)
        else:
            words.append(self.integer(token))

    def integer(self, token: str) -> int:
        try:
            return int(token, 0) & 0xFFFFFFFF
        except ValueError as error:
            raise self.error(f"{token} is not a number") from error

    def string(self, token: str) -> list[int]:
        if not token.startswith('"'):
            raise self.error(f"{token} is not text")
        data = re.sub(r"\\(.)", r"\1", token[1:-1]).encode() + b"\0"
        data += bytes(-len(data) % 4)
        return list(struct.unpack(f"<{len(data) // 4}I", data))

    def literal(self, token: str, words: list[int]) -> list[int]:
        type_id = self.value_types.get(words[0], 0) if self.name == "OpSwitch" else self.type_id
        kind, width = self.number_types.get(type_id, ("int", 32))
        try:
            if token.startswith("!"):
                bits = int(token[1:], 0)
            elif kind == "float":
                code = {16: "<e", 32: "<f", 64: "<d"}[width]
                bits = int.from_bytes(struct.pack(code, float(token)), "little")
            else:
                bits = int(token, 0)
        except (ValueError, OverflowError, KeyError) as error:
            raise self.error(f"{token} is not a {kind} of {width} bits") from error
        count = 2 if width > 32 else 1
        return [bits >> 32 * index & 0xFFFFFFFF for index in range(count)]

    def enumerant(self, kind: str, token: str, words: list[int]) -> None:
        table = enum_kinds()[kind]
        value = 0
        for part in token.split("|") if table.is_bits else [token]:
            value |= table.values[part] if part in table.values else self.integer(part)
        words.append(value)
        for fields in self.parameters(table.parameters, table.is_bits, value):
            self.fields(fields, None, words)

    def parameters(
        self, table: Mapping[int, tuple[tuple[str, str], ...]], is_bits: bool, value: int
    ) -> Iterator[tuple[tuple[str, str], ...]]:
        if not is_bits:
            yield table.get(value, ())
        else:
            yield from (fields for bit, fields in sorted(table.items()) if value & bit)

    def note(self, name: str, words: list[int]) -> None:
        if name == "OpTypeInt":
            self.number_types[words[0]] = "int", words[1]
        elif name == "OpTypeFloat":
            self.number_types[words[0]] = "float", words[1]
        elif self.type_id and len(words) > 1:
            self.value_types[words[1]] = self.type_id
