"""Executables made by hand, to say what no compiler says: traps, codes, scratch memory, lies."""

from __future__ import annotations

import struct

import pytest

from sylvite import drivers
from sylvite.abi import structs
from sylvite.engines.base import ValueType
from sylvite.wasm import ModuleBuilder
from sylvite.wasm.dylink import DylinkInfo

I32 = ValueType.I32
ENVIRONMENT, STATE, WORKGROUP = range(3)


class ExecutableBuilder:
    """A wasm executable whose query function writes the library structure word by word.

    Words may be changed by member name before `build`: ``words["exports.count"] = 7``. A word is a number,
    ``("memory", offset)`` or ``("table", slot)``.
    """

    def __init__(self, kernels, *, imports=(), constant_count=0):
        self.kernels = kernels
        self.module = ModuleBuilder("by_hand")
        self.module.import_memory("env", "memory", 0)
        self.module.import_table("env", "__indirect_function_table", 0)
        self.memory_base = self.module.import_global("env", "__memory_base", I32)
        self.table_base = self.module.import_global("env", "__table_base", I32)
        self.words, self.names, self.end = {}, {}, 0
        self.query_body = None
        self.query_type = ([I32, I32], [I32])
        self.query_name = structs.LIBRARY_QUERY_SYMBOL
        self._write(imports, constant_count)

    def _place(self, byte_length):
        address = self.end
        self.end = (self.end + byte_length + 7) & ~7
        return address

    def _struct(self, prefix, layout):
        base = self._place(layout.byte_length)
        self._members(prefix, layout, base)
        return base

    def _members(self, prefix, layout, base):
        for name, offset, _ in layout.members():
            self.names[f"{prefix}{name}"] = base + offset

    def _array(self, member, count):
        base = self._place(4 * max(count, 1))
        for index in range(count):
            self.names[f"{member}[{index}]"] = base + 4 * index
        return base

    def _string(self, text):
        data = text.encode() + b"\0"
        data += bytes(-len(data) % 4)
        base = self._place(len(data))
        for index, word in enumerate(struct.unpack(f"<{len(data) // 4}I", data)):
            self.words[base + 4 * index] = word
        return ("memory", base)

    def _write(self, imports, constant_count):
        count = len(self.kernels)
        self.library = self._struct("", structs.LIBRARY)
        header = self._struct("header.", structs.LIBRARY_HEADER)
        self.set("header", ("memory", header))
        self.set("header.version", structs.LIBRARY_VERSION)
        self.set("header.name", self._string("by_hand"))
        self.set("constants.count", constant_count)
        self.set("imports.count", len(imports))
        self.set("imports.symbols", ("memory", self._array("imports.symbols", len(imports))))
        for index, symbol in enumerate(imports):
            self.set(f"imports.symbols[{index}]", self._string(symbol))
        self.set("exports.count", count)
        self.set("exports.ptrs", ("memory", self._array("exports.ptrs", count)))
        self.set("exports.names", ("memory", self._array("exports.names", count)))
        attributes = self._place(structs.DISPATCH_ATTRIBUTES.byte_length * max(count, 1))
        self.set("exports.attrs", ("memory", attributes))
        for index, kernel in enumerate(self.kernels):
            self.set(f"exports.ptrs[{index}]", ("table", index))
            self.set(f"exports.names[{index}]", self._string(kernel["name"]))
            base = attributes + index * structs.DISPATCH_ATTRIBUTES.byte_length
            packed = structs.DISPATCH_ATTRIBUTES.pack(kernel.get("attributes", {}))
            for word, value in enumerate(struct.unpack("<16I", packed)):
                self.names[f"exports.attrs[{index}].word[{word}]"] = base + 4 * word
                self.words[base + 4 * word] = value

    def set(self, member, word):
        self.words[self.names[member]] = word

    def build(self):
        functions = []
        for kernel in self.kernels:
            function = self.module.function(kernel["name"], *kernel.get("type", ([I32] * 3, [I32])))
            kernel["body"](function)
            functions.append(function)
        self._query()
        if functions:
            self.module.add_elements(functions, self._expression(self.table_base))
        self.module.dylink(
            DylinkInfo(memory_size=self.end, memory_alignment=4, table_size=len(functions), table_alignment=0)
        )
        return self.module.build()

    def _query(self):
        query = self.module.function(self.query_name, *self.query_type, export=True)
        if self.query_body is not None:
            self.query_body(query)
            return
        for offset, word in sorted(self.words.items()):
            query.emit("global.get", self.memory_base)
            kind, value = word if isinstance(word, tuple) else ("number", word)
            if kind == "number":
                query.i32(value if value < 1 << 31 else value - (1 << 32))
            else:
                base = self.memory_base if kind == "memory" else self.table_base
                query.emit("global.get", base).i32(value).emit("i32.add")
            query.emit("i32.store", offset=offset)
        query.emit("global.get", self.memory_base).i32(self.library).emit("i32.add")

    @staticmethod
    def _expression(index):
        from sylvite.wasm.assembler import expression

        return expression(("global.get", index))


def returns(code):
    return lambda function: function.i32(code)


@pytest.fixture
def build_executable():
    return ExecutableBuilder


@pytest.fixture
def device():
    with drivers.create_device("local-sync") as device:
        yield device


@pytest.fixture
def load(device):
    def load(builder, **arguments):
        return device.create_executable(format="system-wasm-wasm_32", data=builder.build(), **arguments)

    return load


@pytest.fixture
def run(device):
    """Dispatch one export and wait."""

    def run(executable, name, grid=(1, 1, 1), *, constants=(), bindings=(), on=None, timeout_ns=None):
        target = on or device
        command_buffer = target.create_command_buffer()
        command_buffer.dispatch(
            executable, executable.lookup(name), grid, constants=constants, bindings=bindings
        )
        command_buffer.finalize()
        fence = target.create_fence()
        target.queue_execute(command_buffer=command_buffer, signal=fence)
        fence.wait(timeout_ns)

    return run
