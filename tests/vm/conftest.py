"""Programs compiled once per session for the tests of the machine."""

from __future__ import annotations

import machine_texts
import pytest
from machine_programs import (
    FLATBUFFER,
    UNCOMPILABLE,
    compile_vm,
    find_instruction,
    make_pair,
    module_text,
    value_programs,
)

from sylvite.vm import BytecodeModule


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
    parts = (
        machine_texts.GLOBALS,
        machine_texts.CONSTANTS,
        machine_texts.BUFFERS,
        machine_texts.LISTS,
        machine_texts.CONTROL,
    )
    return make_pair(compile_vm(module_text("mixed", *parts), vm_folder / "mixed.vmfb"))


@pytest.fixture(scope="session")
def recursive_module(vm_folder):
    plain = compile_vm(
        module_text("recursive", machine_texts.RECURSION), vm_folder / "stand_in.vmfb", FLATBUFFER
    )
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
        module_text("casts", machine_texts.CAST_STAND_INS), vm_folder / "casts.vmfb", FLATBUFFER
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


@pytest.fixture(scope="session")
def import_module(vm_folder):
    return BytecodeModule.open(
        compile_vm(module_text("imports", machine_texts.IMPORTS), vm_folder / "imports.vmfb")
    )
