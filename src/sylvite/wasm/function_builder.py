"""Writing one function, instruction by instruction, with types checked as they are emitted."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError
from .instructions import INSTRUCTIONS, MemoryArgument, Operand, encode_instruction
from .leb import encode_unsigned
from .stack import StackChecker, StackError
from .types import FunctionType, ValueType

if TYPE_CHECKING:
    from .assembler import ModuleBuilder

__all__ = ["FunctionBuilder", "Label", "vector"]

_LANES = {"i8x16": "b", "i16x8": "h", "i32x4": "i", "i64x2": "q", "f32x4": "f", "f64x2": "d"}
_NATURAL_DEFAULTS = ("memory", "table", "zero")


def vector(shape: str, lanes: Sequence[int | float]) -> bytes:
    """The 16 bytes of a ``v128.const``, such as ``vector("f32x4", (1, 2, 3, 4))``. Integers may be given
    signed or unsigned.

    Raises:
        InvalidArgumentError: unknown shape, wrong number of lanes, or a lane out of range.
    """
    code = _LANES.get(shape)
    if code is None:
        raise InvalidArgumentError(f"unknown vector shape {shape!r}; known: {', '.join(_LANES)}")
    count = int(shape.partition("x")[2])
    if len(lanes) != count:
        raise InvalidArgumentError(f"{shape} has {count} lanes, {len(lanes)} given")
    try:
        if code in "fd":
            return struct.pack(f"<{count}{code}", *lanes)
        bits = 128 // count
        return b"".join(
            _integer(int(lane), bits).to_bytes(bits // 8, "little", signed=True) for lane in lanes
        )
    except (struct.error, OverflowError) as error:
        raise InvalidArgumentError(f"{shape} lane out of range: {error}") from error


def _integer(value: int, bits: int) -> int:
    """``value``, given signed or unsigned, as a signed integer of ``bits`` bits."""
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise InvalidArgumentError(f"{value} does not fit in {bits} bits")
    return value - (1 << bits) if value >> (bits - 1) > 0 else value


class Label:
    """The target of branches out of (or, for loops, back to the start of) a block."""

    __slots__ = ("_checker", "_frame")

    def __init__(self, checker: StackChecker) -> None:
        self._checker = checker
        self._frame = checker.frames[-1]

    @property
    def depth(self) -> int:
        """Blocks between the cursor and this one; what a branch instruction encodes.

        Raises:
            InvalidArgumentError: the block is closed.
        """
        for depth, frame in enumerate(reversed(self._checker.frames)):
            if frame is self._frame:
                return depth
        raise InvalidArgumentError("branch to a block that is closed")

    def _reopened(self) -> None:
        """Follow an ``if`` into its ``else``."""
        self._frame = self._checker.frames[-1]


class FunctionBuilder:
    """One function of a `ModuleBuilder`, which makes it; do not make it yourself.

    Emitting methods return the builder, so short sequences can be chained. Every instruction is checked
    against the operand stack when it is emitted.
    """

    def __init__(
        self, module: ModuleBuilder, *, name: str, index: int, type_index: int, function_type: FunctionType
    ) -> None:
        self.name = name
        self.index = index
        self.type_index = type_index
        self.type = function_type
        self.local_names: dict[int, str] = {}
        self._module = module
        self._code = bytearray()
        self._count = 0
        self._local_types = list(function_type.parameters)
        self._checker = StackChecker(module.context, self._local_types, function_type.results)
        self._labels: list[Label] = [Label(self._checker)]

    def __repr__(self) -> str:
        return f"<FunctionBuilder {self.index} {self.name!r} {self.type}>"

    @property
    def stack(self) -> tuple[ValueType | None, ...]:
        """Types on the operand stack at the cursor, the top last."""
        return tuple(self._checker.stack)

    def local(self, value_type: ValueType, name: str | None = None) -> int:
        """Declare a local; return its index. It starts as zero."""
        index = len(self._local_types)
        self._local_types.append(value_type)
        if name is not None:
            self.local_names[index] = name
        return index

    def emit(
        self,
        name: str,
        *immediates: Any,
        offset: int = 0,
        align: int | None = None,
        memory: int = 0,
    ) -> FunctionBuilder:
        """Emit one instruction.

        Args:
            name: its name in the instruction table.
            immediates: in binary order. Integers may be signed or unsigned; ``f32.const`` takes a number
                or raw bytes, ``v128.const`` raw bytes (see `vector`); a branch takes a `Label` or a
                depth; a call a function or an index; a block type None, a `ValueType`, a
                `FunctionType` or a type index. Trailing memory and table indices may be left out.
            offset, align, memory: of memory accesses: constant offset in bytes, log2 of the alignment
                (natural when left out), memory index.

        Raises:
            InvalidArgumentError: unknown name, wrong immediates, or operands of the wrong type.
        """
        info = INSTRUCTIONS.get(name)
        if info is None:
            raise self._error(f"unknown instruction {name!r}")
        try:
            values = self._convert(info.operands, immediates, offset, align, memory)
            self._checker.step(name, values)
        except (StackError, InvalidArgumentError) as error:
            message = str(error) if str(error).startswith(name) else f"{name}: {error}"
            raise self._error(message) from None
        self._code += encode_instruction(name, values)
        self._count += 1
        self._module.note_use(name, values)
        return self

    def _error(self, message: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"function {self.name!r}, instruction {self._count}: {message}")

    def _convert(
        self,
        operands: tuple[Operand, ...],
        given: tuple[Any, ...],
        offset: int,
        align: int | None,
        memory: int,
    ) -> tuple[Any, ...]:
        waiting = list(given)
        values: list[Any] = []
        is_access = False
        for operand in operands:
            if operand.kind == "memarg":
                is_access = True
                values.append(self._memory_argument(operand.limit, offset, align, memory))
            elif operand.kind == "shuffle" and len(waiting) == 16:
                values.append(_shuffle(waiting))
                waiting = []
            elif waiting:
                values.append(self._immediate(operand, waiting.pop(0)))
            elif operand.kind in _NATURAL_DEFAULTS:
                values.append(0)
            else:
                raise InvalidArgumentError(f"needs a {operand.kind} immediate")
        if waiting:
            raise InvalidArgumentError(f"takes {len(values)} immediates, {len(given)} given")
        if not is_access and (offset or align is not None or memory):
            raise InvalidArgumentError("is not a memory access; it has no offset, align or memory")
        return tuple(values)

    @staticmethod
    def _memory_argument(natural: int, offset: int, align: int | None, memory: int) -> MemoryArgument:
        if offset < 0 or memory < 0 or (align is not None and align < 0):
            raise InvalidArgumentError("offset, align and memory cannot be negative")
        return MemoryArgument(natural if align is None else align, offset, memory)

    def _immediate(self, operand: Operand, value: Any) -> Any:
        convert = _CONVERTERS.get(operand.kind)
        if convert is not None:
            return convert(value)
        if operand.kind == "label":
            return self._depth(value)
        if operand.kind == "labels":
            return tuple(self._depth(label) for label in value)
        if operand.kind == "function":
            return value.index if isinstance(value, FunctionBuilder) else _index(value)
        if isinstance(value, FunctionType):
            return self._module.type_index(value.parameters, value.results)
        if operand.kind == "blocktype":
            return value if value is None or isinstance(value, ValueType) else _index(value)
        return _index(value)

    @staticmethod
    def _depth(label: Label | int) -> int:
        return label.depth if isinstance(label, Label) else _index(label)

    # Structured control

    @contextmanager
    def _frame(
        self, kind: str, parameters: Sequence[ValueType], results: Sequence[ValueType]
    ) -> Iterator[Label]:
        self.emit(kind, _block_type(tuple(parameters), tuple(results)))
        label = Label(self._checker)
        self._labels.append(label)
        yield label
        if self._labels[-1] is not label:
            raise self._error(f"{kind} is closed while an inner block is open")
        self._labels.pop()
        self.emit("end")

    @contextmanager
    def block(
        self, *, parameters: Sequence[ValueType] = (), results: Sequence[ValueType] = ()
    ) -> Iterator[Label]:
        """``with f.block() as done:`` -- a branch to the label leaves the block."""
        with self._frame("block", parameters, results) as label:
            yield label

    @contextmanager
    def loop(
        self, *, parameters: Sequence[ValueType] = (), results: Sequence[ValueType] = ()
    ) -> Iterator[Label]:
        """``with f.loop() as again:`` -- a branch to the label starts the block over."""
        with self._frame("loop", parameters, results) as label:
            yield label

    @contextmanager
    def if_(
        self, *, parameters: Sequence[ValueType] = (), results: Sequence[ValueType] = ()
    ) -> Iterator[Label]:
        """``with f.if_():`` -- pops the condition. Call `else_` inside for the other branch."""
        with self._frame("if", parameters, results) as label:
            yield label

    def else_(self) -> FunctionBuilder:
        """Start the other branch of the innermost open `if_`."""
        self.emit("else")
        self._labels[-1]._reopened()
        return self

    def br(self, label: Label | int) -> FunctionBuilder:
        """Branch."""
        return self.emit("br", label)

    def br_if(self, label: Label | int) -> FunctionBuilder:
        """Branch when the popped i32 is not zero."""
        return self.emit("br_if", label)

    def br_table(self, labels: Sequence[Label | int], default: Label | int) -> FunctionBuilder:
        """Branch to ``labels[popped i32]``, or to ``default`` when there is none."""
        return self.emit("br_table", (*labels, default))

    # Short forms

    def get(self, local: int) -> FunctionBuilder:
        """Push a local."""
        return self.emit("local.get", local)

    def set(self, local: int) -> FunctionBuilder:
        """Pop into a local."""
        return self.emit("local.set", local)

    def tee(self, local: int) -> FunctionBuilder:
        """Store the top of the stack in a local and keep it."""
        return self.emit("local.tee", local)

    def i32(self, value: int) -> FunctionBuilder:
        """Push an i32."""
        return self.emit("i32.const", value)

    def i64(self, value: int) -> FunctionBuilder:
        """Push an i64."""
        return self.emit("i64.const", value)

    def f32(self, value: float) -> FunctionBuilder:
        """Push an f32."""
        return self.emit("f32.const", value)

    def f64(self, value: float) -> FunctionBuilder:
        """Push an f64."""
        return self.emit("f64.const", value)

    def call(self, function: FunctionBuilder | int) -> FunctionBuilder:
        """Call a function of this module."""
        return self.emit("call", function)

    # Finishing

    def encode(self) -> bytes:
        """The function body: local declarations and code. Emits the final ``end`` when it is missing.

        Raises:
            InvalidArgumentError: a block is open or the results are not on the stack.
        """
        if not self._checker.done:
            if len(self._checker.frames) > 1:
                raise self._error(f"a {self._checker.frames[-1].kind} is still open")
            self.emit("end")
        declared = self._local_types[len(self.type.parameters) :]
        runs = [(value_type, len(list(group))) for value_type, group in itertools.groupby(declared)]
        head = b"".join(encode_unsigned(count) + bytes((value_type,)) for value_type, count in runs)
        return encode_unsigned(len(runs)) + head + bytes(self._code)


def _block_type(
    parameters: tuple[ValueType, ...], results: tuple[ValueType, ...]
) -> ValueType | FunctionType | None:
    if parameters or len(results) > 1:
        return FunctionType(parameters=parameters, results=results)
    return results[0] if results else None


def _index(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise InvalidArgumentError(f"index {value!r} is not a non-negative integer")
    return value


def _float(code: str) -> Callable[[Any], bytes]:
    length = struct.calcsize(code)

    def convert(value: Any) -> bytes:
        if isinstance(value, bytes):
            return _raw(length)(value)
        try:
            return struct.pack(code, value)
        except (struct.error, OverflowError) as error:
            raise InvalidArgumentError(f"constant {value!r}: {error}") from error

    return convert


def _raw(length: int) -> Callable[[Any], bytes]:
    def convert(value: Any) -> bytes:
        raw = bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else b""
        if len(raw) != length:
            raise InvalidArgumentError(f"needs {length} raw bytes, given {value!r}")
        return raw

    return convert


def _shuffle(value: Sequence[int]) -> bytes:
    if len(value) != 16 or not all(isinstance(lane, int) and 0 <= lane < 32 for lane in value):
        raise InvalidArgumentError("a shuffle needs 16 lanes from 0 to 31")
    return bytes(value)


def _signed(bits: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if not isinstance(value, int):
            raise InvalidArgumentError(f"constant {value!r} is not an integer")
        return _integer(value, bits)

    return convert


def _reference_type(value: Any) -> ValueType:
    if not isinstance(value, ValueType) or not value.is_reference:
        raise InvalidArgumentError(f"{value!r} is not a reference type")
    return value


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "i32": _signed(32),
    "i64": _signed(64),
    "f32": _float("<f"),
    "f64": _float("<d"),
    "v128": _raw(16),
    "shuffle": _shuffle,
    "heaptype": _reference_type,
    "valtypes": lambda value: (value,) if isinstance(value, ValueType) else tuple(value),
    "catches": tuple,
}
