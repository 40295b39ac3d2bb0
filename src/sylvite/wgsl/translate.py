"""Translating an entry point of a SPIR-V module to WGSL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..errors import FormatError, NotFoundError, UnsupportedFeatureError
from ..spirv import EntryPoint, Module
from .function import FunctionWriter
from .places import BUILTINS
from .resources import Resources, layout
from .shader import Binding, Shader
from .shader_scope import UNIFORM, ShaderScope
from .usage import find_variables, reachable_functions

__all__ = ["translate"]

ENTRY: Final = "main"
_CAPABILITIES_TEXT: Final = """
Shader Matrix Float16 StorageBuffer16BitAccess UniformAndStorageBuffer16BitAccess
StorageBufferStorageClass VulkanMemoryModel GroupNonUniform Linkage Int8 Int16 Int64
StorageBuffer8BitAccess UniformAndStorageBuffer8BitAccess VulkanMemoryModelDeviceScope
StoragePushConstant16 StoragePushConstant8 SignedZeroInfNanPreserve DenormPreserve DenormFlushToZero
RoundingModeRTE RoundingModeRTZ GroupNonUniformArithmetic GroupNonUniformShuffle GroupNonUniformVote
GroupNonUniformBallot GroupNonUniformClustered GroupNonUniformShuffleRelative DotProduct
DotProductInputAll DotProductInput4x8Bit DotProductInput4x8BitPacked VariablePointers
VariablePointersStorageBuffer Float64
"""
CAPABILITIES: Final = frozenset(_CAPABILITIES_TEXT.split())
"""Capabilities a module may declare: what it then uses is judged where it is used."""


def translate(
    module: Module,
    entry: str,
    *,
    merged: Sequence[Sequence[tuple[int, int]]] = (),
    features: frozenset[str] = frozenset(),
    specialization: Mapping[int, int] | None = None,
    push_constant_words: int = 0,
) -> Shader:
    """Translate one compute entry point.

    Args:
        module: a module read by `sylvite.spirv.read`.
        entry: the entry point's name.
        merged: groups of ``(set, binding)`` that are bound to the same bytes and become one variable.
        features: WebGPU features the shader may use.
        specialization: bits of specialization constants by SpecId.
        push_constant_words: at least so many words of push constants are reserved.

    Raises:
        NotFoundError: there is no such entry point.
        FormatError: the module is not valid; the offset counts words.
        UnsupportedFeatureError: WGSL, or the features given, cannot express it; names opcode and offset.
        InvalidArgumentError: a binding is in two groups.
    """
    found = [point for point in module.entry_points if point.name == entry]
    if not found:
        names = ", ".join(point.name for point in module.entry_points)
        raise NotFoundError(f"no entry point {entry} in {module.where}: there are {names or 'none'}")
    if found[0].model != "GLCompute":
        message = f"OpEntryPoint: execution model {found[0].model}"
        raise UnsupportedFeatureError(message, offset=found[0].offset, where=module.where)
    for capability in module.capabilities:
        if capability not in CAPABILITIES:
            raise UnsupportedFeatureError(f"OpCapability {capability}", offset=5, where=module.where)
    scope = ShaderScope(module, features, specialization or {})
    return _Translator(scope, found[0], merged, push_constant_words).run()


class _Translator:
    def __init__(
        self,
        scope: ShaderScope,
        entry: EntryPoint,
        merged: Sequence[Sequence[tuple[int, int]]],
        push_constant_words: int,
    ) -> None:
        self.scope = scope
        self.module = scope.module
        self.entry = entry
        self.functions = reachable_functions(self.module, entry.function)
        used, usage = find_variables(self.module, self.functions)
        scope.entry = entry.function
        scope.resources = Resources(self.module, scope.types, scope.names, used, merged, usage)
        scope.resources.push_constant_words = max(scope.resources.push_constant_words, push_constant_words)
        scope.workgroup_size = self.workgroup_size()
        for function in self.functions:
            if function.result_id != entry.function:
                wanted = self.module.names.get(function.result_id, f"function_{function.result_id}")
                scope.function_names[function.result_id] = scope.names.make(wanted)

    def workgroup_size(self) -> tuple[int, int, int]:
        """From the execution mode or the constant that is decorated as the workgroup size."""
        for identifier, decorations in self.module.decorations.items():
            if decorations.get("BuiltIn") == (25,):
                definition = self.module.definition(identifier)
                if definition.name.endswith("Composite") and len(definition.operands) == 3:
                    return self._size([self.scope.constants.number(n) for n in definition.numbers()])
        for mode, operands in self.module.execution_modes.get(self.entry.function, ()):
            if mode == "LocalSize" and len(operands) == 3:
                return self._size(list(operands))
            if mode == "LocalSizeId" and len(operands) == 3:
                return self._size([self.scope.constants.number(number) for number in operands])
        message = f"entry point {self.entry.name} has no workgroup size"
        raise FormatError(message, offset=self.entry.offset, where=self.module.where)

    def _size(self, numbers: Sequence[int | None]) -> tuple[int, int, int]:
        if any(number is None or not 0 < number < 1 << 16 for number in numbers):
            message = f"entry point {self.entry.name}: workgroup size {list(numbers)}"
            raise FormatError(message, offset=self.entry.offset, where=self.module.where)
        x, y, z = (number or 0 for number in numbers)
        return x, y, z

    def run(self) -> Shader:
        scope = self.scope
        bodies = []
        # The entry point is written last: what it starts with depends on what the others use.
        for function in self.functions:
            bodies.append((function.result_id, FunctionWriter(scope, function).write()))
        parts = [self.variable_lines()]
        parts += [[text] for text in scope.helpers.values()]
        parts += [lines for identifier, lines in bodies if identifier != scope.entry]
        parts.append(self.entry_head() + bodies[-1][1])
        text = "\n\n".join("\n".join(lines) for lines in parts if lines)
        group, binding = self.uniform_place()
        words = scope.uniform_words
        head = self.head_lines(group, binding, words)
        return Shader(
            source="\n".join([*head, scope.finish(text), ""]),
            entry_point=ENTRY,
            workgroup_size=scope.workgroup_size,
            bindings=self.bindings(),
            push_constant_words=scope.resources.push_constant_words,
            uniform_words=tuple(scope.literals),
            has_grid=scope.has_grid,
            uniform_group=group,
            uniform_binding=binding,
            uniform_byte_length=-(-words // 4) * 16,
            features=frozenset(scope.used_features),
            workgroup_byte_length=sum(
                layout(variable.type)[0]
                for variable in scope.resources.workgroup
                if variable.type.kind != "bool"
            ),
            names={key: variable.name for key, variable in scope.resources.variables.items()},
        )

    def uniform_place(self) -> tuple[int, int]:
        """Group 0, after its last binding."""
        taken = [
            binding for buffer in self.scope.resources.buffers for set_, binding in buffer.slots if set_ == 0
        ]
        return 0, max(taken, default=-1) + 1

    def bindings(self) -> tuple[Binding, ...]:
        return tuple(
            Binding(
                set=buffer.slots[0][0],
                binding=buffer.slots[0][1],
                merged=buffer.slots,
                access="read_write" if buffer.is_written else "read",
                element_type=buffer.declared,
                minimum_byte_length=buffer.minimum_byte_length,
            )
            for buffer in self.scope.resources.buffers
        )

    def head_lines(self, group: int, binding: int, words: int) -> list[str]:
        enables = {"shader-f16": "f16", "subgroups": "subgroups"}
        lines = [f"enable {enables[feature]};" for feature in sorted(self.scope.used_features)]
        lines += [""] if lines else []
        if words:
            place = f"@group({group}) @binding({binding})"
            lines.append(f"{place} var<uniform> {UNIFORM}: array<vec4<u32>, {-(-words // 4)}>;")
        return lines

    def variable_lines(self) -> list[str]:
        scope = self.scope
        resources = scope.resources
        lines = []
        for buffer in resources.buffers:
            set_, binding = buffer.slots[0]
            type = f"array<{buffer.declared}>" if buffer.is_array else buffer.declared
            lines.append(
                f"@group({set_}) @binding({binding}) var<storage, read_write> {buffer.name}: {type};"
            )
            scope.use_f16(buffer.element)
        for variable in [*resources.workgroup, *resources.private]:
            type_ = variable.type.members[0] if variable.is_bare else variable.type
            text = type_.wgsl
            if variable.is_atomic:
                element = resources.plain_element(variable)
                atomic = f"atomic<{element.wgsl if element else 'u32'}>"
                text = f"array<{atomic}, {type_.count}>" if type_.kind == "array" else atomic
            initial = ""
            if len(variable.instruction.operands) > 1:
                value = scope.constants.get(variable.instruction.number(1))
                initial = f" = {value.text}" if value is not None else ""
            lines.append(f"var<{variable.storage.lower()}> {variable.name}: {text}{initial};")
        for name in scope.private_builtins:
            wgsl = "workgroup" if name == "WorkgroupId" else BUILTINS[name][0]
            lines.append(f"var<private> private_{wgsl}: {BUILTINS[name][1]};")
        lines += scope.constant_lines()
        return [*scope.struct_lines(), *lines]

    def entry_head(self) -> list[str]:
        x, y, z = self.scope.workgroup_size
        parameters = [
            f"@builtin({BUILTINS[name][0]}) {BUILTINS[name][0]}: {BUILTINS[name][1]}"
            for name in self.scope.builtins
        ]
        return [
            f"// {self.entry.name}".replace("\n", " "),
            f"@compute @workgroup_size({x}, {y}, {z})",
            f"fn {ENTRY}({', '.join(parameters)}) {{",
        ]
