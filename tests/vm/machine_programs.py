"""Programs in IREE's vm dialect for the tests of the machine, and the two ways to run them.

Every program is compiled by iree-compile once per session and run by iree.runtime (the judge) and
by Sylvite. Functions take and give integers only: floats travel as their bits, so that nothing is
rounded on the way.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sylvite import vmfb
from sylvite.errors import ProgramError, StatusCode
from sylvite.vm import BytecodeModule, Context
from sylvite.vmfb.bytecode import decode_function
from sylvite.vmfb.isa import BY_NAME, OpInfo, ValueType

INTEGER_OF = {"i32": "i32", "i64": "i64", "f32": "i32", "f64": "i64"}


def f32_bits(*values: float) -> tuple[int, ...]:
    return tuple(struct.unpack("<i", struct.pack("<f", value))[0] for value in values)


def f64_bits(*values: float) -> tuple[int, ...]:
    return tuple(struct.unpack("<q", struct.pack("<d", value))[0] for value in values)


_FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -7.25, 1e-3, 123456.789, -123456.789),
    *(float("inf"), float("-inf"), float("nan"), 1e30, -1e30, 8388607.5, 4194304.5, -3.4e38, 2147483648.0),
    *(-2147483648.0, 4294967296.0, 9.3e18, -9.3e18, 1.8e19, 1.9e19),
)
VALUES: dict[str, tuple[int, ...]] = {
    "i32": (
        *(0, 1, -1, 2, -2, 7, -7, 31, 32, 33, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 123456789),
        *(-123456789, 2**31 - 1, -(2**31), -(2**31) + 1, 0x55555555),
    ),
    "i64": (
        *(0, 1, -1, 2, -7, 63, 64, 65, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32),
        *(2**53 + 1, 1234567890123456789, -1234567890123456789, 2**63 - 1, -(2**63)),
        *(2**62 + 2**38 + 1, -(2**40) - 2**16 - 1),
    ),
    "f32": (*f32_bits(*_FLOATS), 1, -(2**31) + 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF),
    "f64": (
        *f64_bits(*_FLOATS, 1e300, -1e300, 0.49999999999999994, 4503599627370495.5, 9007199254740993.0),
        *(1, -(2**63) + 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF),
    ),
}
"""Edge values per type, as bits."""


@dataclasses.dataclass(frozen=True)
class ValueProgram:
    """One function that does one value operation. ``types`` are its operands', ``result`` its own."""

    op: OpInfo
    types: tuple[str, ...]
    result: str

    @property
    def function(self) -> str:
        return "op_" + self.op.name.replace(".", "_")

    def text(self) -> str:
        parameters = ", ".join(f"%p{i}: {INTEGER_OF[kind]}" for i, kind in enumerate(self.types))
        lines = [f"vm.export @{self.function}"]
        lines.append(f"vm.func @{self.function}({parameters}) -> {INTEGER_OF[self.result]} {{")
        names = []
        for i, kind in enumerate(self.types):
            name = f"%p{i}"
            if kind in ("f32", "f64"):
                integer = INTEGER_OF[kind]
                lines.append(f"  %x{i} = vm.bitcast.{integer}.{kind} %p{i} : {integer} -> {kind}")
                name = f"%x{i}"
            names.append(name)
        suffix = self.types[0]
        if self.op.encoding == "convert":
            suffix = f"{self.types[0]} -> {self.result}"
        elif self.op.encoding == "select":
            suffix = self.types[1]
        elif self.op.name.startswith(("trunc", "ext")):
            suffix = "i32 -> i32"
        lines.append(f"  %r = vm.{self.op.name} {', '.join(names)} : {suffix}")
        result = "%r"
        if self.result in ("f32", "f64"):
            integer = INTEGER_OF[self.result]
            lines.append(f"  %s = vm.bitcast.{self.result}.{integer} %r : {self.result} -> {integer}")
            result = "%s"
        lines += [f"  vm.return {result} : {INTEGER_OF[self.result]}", "}"]
        return "\n".join(lines)


_VALUE_ENCODINGS = ("unary", "binary", "ternary", "shift", "select", "test", "compare", "convert")


def value_programs() -> list[ValueProgram]:
    """A program for each operation that only reads and writes value registers."""
    programs = []
    for op in BY_NAME.values():
        if op.encoding not in _VALUE_ENCODINGS or ValueType.REF in op.types:
            continue
        reads = tuple(field.type.value for field in op.fields if field.access == "read")
        (write,) = (field.type.value for field in op.fields if field.access == "write")
        programs.append(ValueProgram(op, reads, write))
    return programs


def module_text(name: str, *parts: str) -> str:
    return f"vm.module @{name} {{\n" + "\n".join(parts) + "\n}\n"


def compile_vm(text: str, output: Path, *flags: str) -> Path:
    """Compile vm dialect text to an archive."""
    from iree.compiler.tools.binaries import find_tool

    source = output.with_suffix(".mlir")
    source.write_text(text)
    command = [find_tool("iree-compile"), "--compile-mode=vm", str(source), "-o", str(output), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise AssertionError(f"iree-compile failed:\n{done.stderr[:4000]}")
    return output


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a call gave: values, or the name of a status."""

    values: tuple[int, ...] = ()
    status: str = ""


_STATUS = re.compile(r"\b(" + "|".join(code.name for code in StatusCode if code) + r")\b")


class Judge:
    """A module in iree.runtime."""

    def __init__(self, *paths: Path) -> None:
        import iree.runtime as rt

        self.rt = rt
        self.instance = rt.VmInstance()
        self.modules = [rt.VmModule.mmap(self.instance, str(path)) for path in paths]
        self.context = rt.VmContext(self.instance, self.modules)
        self.functions = {}

    def __call__(self, function: str, arguments: Sequence[int], result_count: int = 1) -> Outcome:
        if function not in self.functions:
            self.functions[function] = self.modules[-1].lookup_function(function)
        inputs = self.rt.VmVariantList(len(arguments))
        for argument in arguments:
            inputs.push_int(argument)
        outputs = self.rt.VmVariantList(result_count)
        try:
            self.context.invoke(self.functions[function], inputs, outputs)
        except (RuntimeError, ValueError, IndexError, KeyError) as error:
            return Outcome(status=_STATUS.search(str(error)).group(1))
        return Outcome(tuple(outputs.get_variant(i) for i in range(result_count)))


class Subject:
    """The same module in Sylvite."""

    def __init__(self, context: Context, module_name: str) -> None:
        self.context = context
        self.module_name = module_name

    def __call__(self, function: str, arguments: Sequence[int], result_count: int = 1) -> Outcome:
        try:
            result = self.context.invoke(f"{self.module_name}.{function}", *arguments)
        except ProgramError as error:
            return Outcome(status=error.status.name)
        if result is None:
            return Outcome()
        return Outcome(result if isinstance(result, tuple) else (result,))


UNCOMPILABLE = {
    "cast.si32.f64": "the vm dialect has no such operation",
    "cast.ui32.f64": "the vm dialect has no such operation",
    "cast.f64.si32": "the vm dialect has no such operation",
    "cast.f64.ui32": "the vm dialect has no such operation",
}
"""Operations that iree-compile cannot be made to emit. Tests patch them into compiled bytecode."""

FLATBUFFER = "--iree-vm-emit-polyglot-zip=false"


@dataclasses.dataclass
class Pair:
    """One compiled module in both machines."""

    path: Path
    judge: Judge
    subject: Subject
    module: BytecodeModule


def make_pair(path: Path) -> Pair:
    module = BytecodeModule.open(path)
    return Pair(path, Judge(path), Subject(Context([module]), module.name), module)


def find_instruction(data, ordinal: int, name: str):
    """File offset and decoded form of the first such instruction of a function."""
    module = vmfb.open_archive(bytes(data)).module
    start = module.bytecode_file_offset + module.functions[ordinal].bytecode_offset
    for block in decode_function(module, ordinal).blocks:
        for instruction in block.instructions:
            if instruction.op.name == name:
                return start + instruction.pc, instruction
    raise AssertionError(f"no {name} in function {ordinal}")
