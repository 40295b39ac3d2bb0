"""Writing one function: its statements, and its values as expressions that are written once.

A value with one use in its own block is written where it is used; any other gets a ``let``, or a variable at
the top when it is used outside of the braces it is declared in. A value that reads memory is named before
anything that may change the memory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ..errors import FormatError
from ..spirv import Function, Instruction, Module
from . import instructions
from .places import Place
from .shader_scope import ShaderScope
from .structure import (
    BlockNode,
    Break,
    BreakIf,
    Continue,
    Edge,
    If,
    Loop,
    Node,
    Return,
    Sequence,
    Switch,
    build,
)
from .types import Type, scalar_type
from .usage import find_uses
from .values import Value, zero

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FunctionWriter"]

LONGEST_INLINE: Final = 100
STRUCTURAL: Final = frozenset(
    {"OpSelectionMerge", "OpLoopMerge", "OpBranch", "OpBranchConditional", "OpSwitch", "OpReturn",
     "OpReturnValue", "OpUnreachable", "OpKill", "OpTerminateInvocation"}
)  # fmt: skip


class FunctionWriter:
    """Writes a function of a shader.

    Args:
        scope: what the shader's functions share.
        function: which one.
    """

    def __init__(self, scope: ShaderScope, function: Function) -> None:
        self.scope = scope
        self.module: Module = scope.module
        self.function = function
        self.is_entry = function.result_id == scope.entry
        self.tree = build(function, self.module.where)
        self.uses = find_uses(self.module, function, self.tree)
        self.blocks = {block.label: block for block in function.blocks}
        self.values: dict[int, Value] = {}
        self.pending: dict[int, Value] = {}
        self.pointers: dict[int, Place] = {}
        self.declarations: list[str] = []
        self.lines: list[str] = []
        self.depth = 1
        self.sequence = self.tree.root
        self.label = 0
        self.counter = 0
        self.flags: dict[int, str] = {}
        self.phis: dict[int, str] = {}
        self.continuing: set[Sequence] = set()

    # What instructions call.

    def type_of(self, instruction: Instruction) -> Type:
        """The type of an instruction's result."""
        type = self.scope.types.get(instruction.type_id, instruction)
        self.scope.use_f16(type)
        return type

    def value(self, identifier: int, user: Instruction) -> Value:
        """The value of an id. A value that is not named yet is taken: it is written here and nowhere else."""
        known = self.values.get(identifier)
        if known is not None:
            return known
        known = self.pending.pop(identifier, None)
        if known is not None:
            return known
        constant = self.scope.constants.get(identifier)
        if constant is None:
            definition = self.module.definition(identifier, user)
            if definition.name == "OpUndef":
                return zero(self.type_of(definition))
            message = f"{user.name}: %{identifier} ({definition.name}) is not a value here"
            raise FormatError(message, offset=user.offset, where=self.module.where)
        if constant.type.kind == "array" and len(constant.text) > LONGEST_INLINE:
            if not constant.is_constant:
                # Infinities among its elements come from the uniform, which module scope cannot read.
                known = self.values[identifier] = self.declared(constant)
                return known
            name = self.scope.constant_name(identifier, constant)
            return Value(name, constant.type, True, True)
        return constant

    def cast(self, value: Value, scalar: str) -> Value:
        """An integer value seen as ``u32`` or ``i32``; anything else as it is."""
        if value.type.scalar not in ("u32", "i32") or value.type.scalar == scalar:
            return value
        type = value.type.of(scalar)
        value = self.opaque(value) if value.is_constant and value.type.lanes > 1 else value
        return Value(f"{type.wgsl}({value.text})", type, True, value.is_constant, value.reads_memory)

    def opaque(self, value: Value) -> Value:
        """A value that WGSL does not evaluate when it compiles the shader."""
        return self.declared(value) if value.is_constant else value

    def declared(self, value: Value) -> Value:
        """A value in a variable of the function."""
        self.counter += 1
        name = f"c{self.counter}"
        self.declarations.append(f"var {name} = {value.text};")
        return Value(name, value.type, True)

    def named(self, value: Value) -> Value:
        """A value that may be written several times."""
        if value.is_constant or (value.is_atom and re.fullmatch(r"\w+(\.[xyzw])?", value.text)):
            return value
        self.counter += 1
        name = f"s{self.counter}"
        self.statement(f"let {name} = {value.text};")
        return Value(name, value.type, True)

    def index(self, identifier: int, user: Instruction) -> str:
        """An id as an array index."""
        value = self.value(identifier, user)
        if value.type.kind not in ("u32", "i32"):
            message = f"{user.name}: %{identifier} is {value.type.wgsl}, not an index"
            raise FormatError(message, offset=user.offset, where=self.module.where)
        return value.text

    def statement(self, text: str) -> None:
        """Add a line."""
        self.lines.append("  " * self.depth + text)

    def define(self, instruction: Instruction, value: Value) -> None:
        """Give an instruction's id its value. Values that nothing uses are left out."""
        identifier = instruction.result_id
        count = self.uses.count.get(identifier, 0)
        if count == 0:
            return
        if self.must_hoist(identifier):
            name = f"v{identifier}"
            self.declarations.append(f"var {name}: {value.type.wgsl};")
            self.statement(f"{name} = {value.text};")
            self.values[identifier] = Value(name, value.type, True)
        elif value.is_constant or re.fullmatch(r"\w+", value.text):
            self.values[identifier] = value
        elif (
            count == 1
            and self.uses.blocks[identifier] == {self.label}
            and (len(value.text) <= LONGEST_INLINE or value.components is not None)
        ):
            self.pending[identifier] = value
        else:
            self.name_value(identifier, value)

    def name_value(self, identifier: int, value: Value) -> None:
        """Declare an id's value with ``let``."""
        name = f"v{identifier}"
        self.statement(f"let {name} = {value.text};")
        self.values[identifier] = Value(name, value.type, True)

    def must_hoist(self, identifier: int) -> bool:
        """Whether a value defined here is used where a ``let`` here is not visible."""
        return not all(self.is_visible(use) for use in self.uses.sequences.get(identifier, ()))

    def is_visible(self, use: Sequence) -> bool:
        """Whether a declaration at the current place is visible in ``use``."""
        if not self.sequence.encloses(use):
            return False
        # A continue statement may skip a declaration that the continuing part would see.
        found: Sequence | None = use
        while found is not None and found is not self.sequence:
            if found in self.continuing:
                return False
            found = found.parent
        return True

    def flush(self) -> None:
        """Name values that read memory, before something that may change it."""
        for identifier in [key for key, value in self.pending.items() if value.reads_memory]:
            self.name_value(identifier, self.pending.pop(identifier))

    # Statements.

    def write(self) -> list[str]:
        """The function's lines.

        Raises:
            FormatError, UnsupportedFeatureError
        """
        self.continuing = self._continuing(self.tree.root)
        head = self._head()
        self._phi_variables()
        self.sequence_lines(self.tree.root)
        body = self._builtin_lines() if self.is_entry else []
        declared = ["  " + line for line in self.declarations]
        return [*head, *body, *declared, *self.lines, "}"]

    def _continuing(self, root: Sequence) -> set[Sequence]:
        found: set[Sequence] = set()
        work = [root]
        while work:
            for node in work.pop().nodes:
                if isinstance(node, If):
                    work += [node.then, node.other]
                elif isinstance(node, Loop):
                    work.append(node.body)
                    if node.continuing is not None:
                        found.add(node.continuing)
                        work.append(node.continuing)
                elif isinstance(node, Switch):
                    work += [case for _, _, case in node.cases]
        return found

    def _head(self) -> list[str]:
        definition = self.function.definition
        signature = self.scope.types.get(definition.number(1), definition)
        if signature.kind != "function" or len(signature.members) != len(self.function.parameters) + 1:
            message = "OpFunction: its type does not match its parameters"
            raise FormatError(message, offset=definition.offset, where=self.module.where)
        if self.is_entry:
            if self.function.parameters or signature.members[0].kind != "void":
                message = "OpFunction: an entry point takes and returns nothing"
                raise FormatError(message, offset=definition.offset, where=self.module.where)
            return []
        parameters = [self._parameter(parameter) for parameter in self.function.parameters]
        result = signature.members[0]
        arrow = f" -> {result.wgsl}" if result.kind != "void" else ""
        name = self.scope.function_names[self.function.result_id]
        return [f"fn {name}({', '.join(parameters)}){arrow} {{"]

    def _parameter(self, parameter: Instruction) -> str:
        type = self.type_of(parameter)
        name = f"v{parameter.result_id}"
        if type.kind != "pointer":
            self.values[parameter.result_id] = Value(name, type, True)
            return f"{name}: {type.wgsl}"
        if type.storage not in ("Function", "Private"):
            raise self.scope.refuse(parameter, f"a parameter that points to {type.storage}")
        self.pointers[parameter.result_id] = Place(f"(*{name})", type.inner, type.storage)
        return f"{name}: ptr<{type.storage.lower()}, {type.inner.wgsl}>"

    def _builtin_lines(self) -> list[str]:
        lines = []
        if "WorkgroupId" in self.scope.builtins:
            first = ", ".join(self.scope.grid(axis) for axis in range(3))
            lines.append(f"  let workgroup = workgroup_id + vec3<u32>({first});")
        for name in self.scope.private_builtins:
            wgsl = "workgroup" if name == "WorkgroupId" else instructions.BUILTINS[name][0]
            lines.append(f"  private_{wgsl} = {wgsl};")
        return lines

    def _phi_variables(self) -> None:
        for block in self.function.blocks:
            if block.label not in self.tree.placed:
                continue
            for phi in block.instructions:
                if phi.name != "OpPhi":
                    break
                type = self.type_of(phi)
                if type.kind == "pointer":
                    raise self.scope.refuse(phi, "a choice between pointers")
                name = f"v{phi.result_id}"
                self.phis[phi.result_id] = name
                self.declarations.append(f"var {name}: {type.wgsl};")
                self.values[phi.result_id] = Value(name, type, True)

    def sequence_lines(self, sequence: Sequence) -> None:
        """Write the statements of a pair of braces."""
        outer = self.sequence
        self.sequence = sequence
        for node in sequence.nodes:
            writers[type(node)](self, node)
        self.sequence = outer

    def braces(self, sequence: Sequence) -> None:
        """Write the statements of a pair of braces, indented."""
        self.depth += 1
        self.sequence_lines(sequence)
        self.depth -= 1

    def block_lines(self, node: BlockNode) -> None:
        """Write a block's instructions."""
        self.label = node.block.label
        self.pending = {}
        late = self.label in self.tree.late_exits
        for instruction in node.block.instructions:
            if instruction.name in STRUCTURAL:
                continue
            if instruction.name == "OpPhi":
                if late:
                    self._copy_phi(instruction)
                continue
            instructions.write(self, instruction)

    def _copy_phi(self, phi: Instruction) -> None:
        """In a loop that leaves at its end a phi changes before what follows the loop reads it."""
        name = self.phis[phi.result_id]
        type = self.type_of(phi)
        copy = f"{name}_"
        self.values[phi.result_id] = Value(copy, type, True)
        if self.must_hoist(phi.result_id):
            self.declarations.append(f"var {copy}: {type.wgsl};")
            self.statement(f"{copy} = {name};")
        else:
            self.statement(f"let {copy} = {name};")

    def edge_lines(self, edge: Edge) -> None:
        """Assign the phis of an edge."""
        self.copies([edge])

    def copies(self, edges: list[Edge]) -> None:
        """Assign phis, all at once."""
        pairs: list[tuple[str, str]] = []
        for edge in edges:
            for phi in self.blocks[edge.target].instructions:
                if phi.name != "OpPhi":
                    break
                source = self._source(phi, edge.source)
                if source is not None:
                    pairs.append((self.phis[phi.result_id], source))
        pairs = [(name, text) for name, text in pairs if name != text]
        targets = {name for name, _ in pairs}
        if len(pairs) > 1 and any(targets & set(re.findall(r"\w+", text)) for _, text in pairs):
            moved = []
            for name, text in pairs:
                self.counter += 1
                self.statement(f"let next{self.counter} = {text};")
                moved.append((name, f"next{self.counter}"))
            pairs = moved
        for name, text in pairs:
            self.statement(f"{name} = {text};")

    def _source(self, phi: Instruction, label: int) -> str | None:
        numbers = phi.numbers()
        for identifier, source in zip(numbers[::2], numbers[1::2], strict=False):
            if source == label:
                if self.module.definition(identifier, phi).name == "OpUndef":
                    return None
                value = self.value(identifier, phi)
                wanted = self.type_of(phi)
                if value.type.wgsl != wanted.wgsl:
                    message = f"OpPhi: %{identifier} is {value.type.wgsl}, not {wanted.wgsl}"
                    raise FormatError(message, offset=phi.offset, where=self.module.where)
                return value.text
        message = f"OpPhi: no value for block %{label}"
        raise FormatError(message, offset=phi.offset, where=self.module.where)

    def if_lines(self, node: If) -> None:
        """Write a selection; without statements nothing."""
        user = self.blocks[self.label].terminator
        condition = self.condition(node.condition, user)
        pending = dict(self.pending)
        if node.then.nodes:
            self.statement(f"if ({condition.text}) {{")
            self.braces(node.then)
            if node.other.nodes:
                self.statement("} else {")
        elif node.other.nodes:
            self.statement(f"if (!{condition.operand}) {{")
        else:
            return
        if node.other.nodes:
            self.label = user_label(user, self)
            self.pending = {**pending}
            self.braces(node.other)
        self.pending = pending
        self.statement("}")

    def condition(self, identifier: int, user: Instruction) -> Value:
        """A value that must be a bool."""
        value = self.value(identifier, user)
        if value.type.kind != "bool":
            message = f"{user.name}: %{identifier} is {value.type.wgsl}, not bool"
            raise FormatError(message, offset=user.offset, where=self.module.where)
        return value

    def loop_lines(self, node: Loop) -> None:
        """Write a loop."""
        if node.has_flag:
            self.flags[node.header] = f"leave{node.header}"
            self.declarations.append(f"var leave{node.header} = false;")
            self.statement(f"leave{node.header} = false;")
        if node.continuing is None and node.body.nodes and isinstance(node.body.nodes[-1], Continue):
            node.body.nodes.pop()
        self.statement("loop {")
        self.braces(node.body)
        if node.continuing is not None:
            self.depth += 1
            self.statement("continuing {")
            self.braces(node.continuing)
            self.statement("}")
            self.depth -= 1
        self.statement("}")

    def switch_lines(self, node: Switch) -> None:
        """Write a switch, and after it the way out of a loop that it takes."""
        user = self.blocks[self.label].terminator
        selector = self.value(node.selector, user)
        kind = selector.type.kind
        if kind not in ("u32", "i32"):
            raise self.scope.refuse(user, f"a selector of type {selector.type.wgsl}")
        self.statement(f"switch ({selector.text}) {{")
        self.depth += 1
        for literals, is_default, case in node.cases:
            labels = [self.scope.constants.scalar(scalar_type(kind), bits).text for bits in literals]
            head = (
                f"case {', '.join([*labels, *(['default'] if is_default else [])])}" if labels else "default"
            )
            self.statement(f"{head}: {{")
            self.label = user_label(user, self)
            self.braces(case)
            self.statement("}")
        self.depth -= 1
        self.statement("}")
        if node.leaves is not None:
            self.statement(f"if ({self.flags[node.leaves.header]}) {{ break; }}")

    def break_lines(self, node: Break) -> None:
        """Leave a loop or switch."""
        if node.loop is not None:
            self.statement(f"{self.flags[node.loop.header]} = true;")
        self.statement("break;")

    def continue_lines(self, node: Continue) -> None:
        """Go on with the loop."""
        self.statement("continue;")

    def break_if_lines(self, node: BreakIf) -> None:
        """End a continuing part."""
        user = self.blocks[self.label].terminator
        condition = self.condition(node.condition, user)
        if node.edges:
            condition = self.named(condition)
            self.copies(list(node.edges))
        text = condition.text if node.value else f"!{condition.operand}"
        self.statement(f"break if {text};")

    def return_lines(self, node: Return) -> None:
        """Leave the function."""
        instruction = node.instruction
        definition = self.function.definition
        result = self.scope.types.get(self.function.definition.type_id, definition)
        if instruction.name == "OpReturnValue":
            value = self.value(instruction.number(0), instruction)
            if value.type.wgsl != result.wgsl or result.kind == "void":
                wanted = result.wgsl or "nothing"
                message = f"OpReturnValue: {value.type.wgsl} from a function that returns {wanted}"
                raise FormatError(message, offset=instruction.offset, where=self.module.where)
            self.statement(f"return {value.text};")
        elif instruction.name in ("OpReturn", "OpUnreachable"):
            if result.kind != "void":
                self.statement(f"return {zero(result).text};")
            elif self.sequence is not self.tree.root or node is not self.sequence.nodes[-1]:
                self.statement("return;")
        else:
            raise self.scope.refuse(instruction, "compute shaders cannot do that")


def user_label(user: Instruction, writer: FunctionWriter) -> int:
    """The block that ends in an instruction."""
    for label, block in writer.blocks.items():
        if block.instructions[-1] is user:
            return label
    raise FormatError("a terminator without a block", offset=user.offset, where=writer.module.where)


writers: Final[dict[type[Node], Callable[[FunctionWriter, Any], None]]] = {
    BlockNode: FunctionWriter.block_lines,
    Edge: FunctionWriter.edge_lines,
    If: FunctionWriter.if_lines,
    Loop: FunctionWriter.loop_lines,
    Switch: FunctionWriter.switch_lines,
    Break: FunctionWriter.break_lines,
    Continue: FunctionWriter.continue_lines,
    BreakIf: FunctionWriter.break_if_lines,
    Return: FunctionWriter.return_lines,
}
