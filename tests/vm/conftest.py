"""Programs compiled once per session for the tests of the machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import vm_texts
from vm_programs import Judge, Subject, compile_vm, module_text, value_programs

from sylvite import vmfb
from sylvite.vm import BytecodeModule, Context
from sylvite.vmfb.bytecode import decode_function

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


@pytest.fixture(scope="session")
def vm_folder(tmp_path_factory):
    pytest.importorskip("iree.compiler")
    pytest.importorskip("iree.runtime")
    return tmp_path_factory.mktemp("vm")


@pytest.fixture(scope="session")
def value_module(vm_folder):
    texts = [program.text() for program in value_programs() if program.op.name not in UNCOMPILABLE]
    return make_pair(compile_vm(module_text("values", *texts), vm_folder / "values.vmfb"))


@pytest.fixture(scope="session")
def mixed_module(vm_folder):
    parts = (vm_texts.GLOBALS, vm_texts.CONSTANTS, vm_texts.BUFFERS, vm_texts.LISTS, vm_texts.CONTROL)
    return make_pair(compile_vm(module_text("mixed", *parts), vm_folder / "mixed.vmfb"))


@pytest.fixture(scope="session")
def recursive_module(vm_folder):
    plain = compile_vm(module_text("recursive", vm_texts.RECURSION), vm_folder / "stand_in.vmfb", FLATBUFFER)
    data = bytearray(plain.read_bytes())
    place, _ = find_instruction(data, 0, "call")
    data[place + 1 : place + 5] = (0).to_bytes(4, "little")
    path = vm_folder / "recursive.vmfb"
    path.write_bytes(data)
    return make_pair(path)


@pytest.fixture(scope="session")
def cast_modules(vm_folder):
    """Modules for the operations the dialect does not have, by name: (pair, exported function)."""
    plain = compile_vm(
        module_text("casts", vm_texts.CAST_STAND_INS), vm_folder / "casts.vmfb", FLATBUFFER
    ).read_bytes()
    made = {}
    for name, stand_in, function, ordinal, opcode, before, after in (
        ("cast.si32.f64", "ext.f32.f64", "f32_to_f64", 0, 0x16, b"0f_I", b"0i_I"),
        ("cast.ui32.f64", "ext.f32.f64", "f32_to_f64", 0, 0x17, b"0f_I", b"0i_I"),
        ("cast.f64.si32", "trunc.f64.f32", "f64_to_f32", 1, 0x18, b"0I_f", b"0I_i"),
        ("cast.f64.ui32", "trunc.f64.f32", "f64_to_f32", 1, 0x19, b"0I_f", b"0I_i"),
    ):
        data = bytearray(plain)
        place, _ = find_instruction(data, ordinal, stand_in)
        data[place + 1] = opcode
        path = vm_folder / f"{name}.vmfb"
        path.write_bytes(bytes(data).replace(before, after))
        made[name] = (make_pair(path), function)
    return made


def find_instruction(data, ordinal: int, name: str):
    """File offset and decoded form of the first such instruction of a function."""
    module = vmfb.open_archive(bytes(data)).module
    start = module.bytecode_file_offset + module.functions[ordinal].bytecode_offset
    for block in decode_function(module, ordinal).blocks:
        for instruction in block.instructions:
            if instruction.op.name == name:
                return start + instruction.pc, instruction
    raise AssertionError(f"no {name} in function {ordinal}")


@pytest.fixture(scope="session")
def import_module(vm_folder):
    return BytecodeModule.open(
        compile_vm(module_text("imports", vm_texts.IMPORTS), vm_folder / "imports.vmfb")
    )
