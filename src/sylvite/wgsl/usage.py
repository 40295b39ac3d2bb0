"""Where a function's values are used, and what its functions do to variables."""

from __future__ import annotations

import dataclasses

from ..errors import FormatError
from ..spirv import Function, Instruction, Module
from ..spirv.grammar import ID_KINDS
from .resources import Usage
from .structure import Sequence, Tree

__all__ = ["Uses", "find_uses", "find_variables", "reachable_functions", "root_of"]

CHAINS = frozenset({"OpAccessChain", "OpInBoundsAccessChain", "OpCopyObject"})
WRITES = {"OpStore": 0, "OpCopyMemory": 0, "OpAtomicStore": 0}


@dataclasses.dataclass(slots=True)
class Uses:
    """Uses of each id: how many, in which blocks, in which sequences."""

    count: dict[int, int] = dataclasses.field(default_factory=dict)
    blocks: dict[int, set[int]] = dataclasses.field(default_factory=dict)
    sequences: dict[int, list[Sequence]] = dataclasses.field(default_factory=dict)

    def add(self, identifier: int, block: int, sequence: Sequence) -> None:
        """Note a use."""
        self.count[identifier] = self.count.get(identifier, 0) + 1
        self.blocks.setdefault(identifier, set()).add(block)
        found = self.sequences.setdefault(identifier, [])
        if not found or found[-1] is not sequence:
            found.append(sequence)


def id_operands(instruction: Instruction) -> list[int]:
    """Operands that are ids."""
    return [
        operand
        for operand, kind in zip(instruction.operands, instruction.kinds, strict=True)
        if kind in ID_KINDS and isinstance(operand, int)
    ]


def root_of(module: Module, pointer: int, user: Instruction) -> tuple[int, list[Instruction]]:
    """The variable (or parameter) a pointer is based on, and the access chains from there, outermost first.

    Raises:
        FormatError: the chains go round in a circle or start from no pointer.
    """
    chains: list[Instruction] = []
    seen = {pointer}
    while True:
        instruction = module.definition(pointer, user)
        if instruction.name not in CHAINS:
            return pointer, chains[::-1]
        chains.append(instruction)
        pointer = instruction.number(0)
        if pointer in seen:
            message = f"{instruction.name} %{instruction.result_id} is based on itself"
            raise FormatError(message, offset=instruction.offset, where=module.where)
        seen.add(pointer)


def find_uses(module: Module, function: Function, tree: Tree) -> Uses:
    """Count uses in the blocks that are reached. Indices of an access chain are used where the chain is."""
    uses = Uses()
    chain_ids: dict[int, tuple[int, ...]] = {}
    for block in function.blocks:
        sequence = tree.placed.get(block.label)
        if sequence is None:
            continue
        for instruction in block.instructions:
            if instruction.name == "OpPhi":
                _phi_uses(uses, instruction, tree, chain_ids)
                continue
            operands = id_operands(instruction)
            if instruction.name in ("OpAccessChain", "OpInBoundsAccessChain"):
                base = chain_ids.get(operands[0], (operands[0],))
                chain_ids[instruction.result_id] = (*base, *operands[1:])
                continue
            for operand in operands:
                for identifier in chain_ids.get(operand, (operand,)):
                    uses.add(identifier, block.label, sequence)
    return uses


def _phi_uses(uses: Uses, phi: Instruction, tree: Tree, chain_ids: dict[int, tuple[int, ...]]) -> None:
    numbers = phi.numbers()
    for value, label in zip(numbers[::2], numbers[1::2], strict=False):
        sequence = tree.placed.get(label)
        if sequence is not None:
            for identifier in chain_ids.get(value, (value,)):
                uses.add(identifier, label, sequence)


def reachable_functions(module: Module, entry: int, user: Instruction | None = None) -> list[Function]:
    """Functions the entry point calls, callees before callers.

    Raises:
        FormatError: a function is missing, has no body, or calls itself.
    """
    order: list[int] = []
    state: dict[int, bool] = {}
    work: list[tuple[int, bool]] = [(entry, False)]
    while work:
        identifier, is_done = work.pop()
        if is_done:
            state[identifier] = True
            order.append(identifier)
            continue
        if identifier in state:
            if not state[identifier]:
                raise FormatError(f"function %{identifier} calls itself", where=module.where)
            continue
        function = module.functions.get(identifier)
        if function is None or not function.blocks:
            raise FormatError(f"%{identifier} is not a function with a body", where=module.where)
        state[identifier] = False
        work.append((identifier, True))
        callees = {
            instruction.number(0)
            for block in function.blocks
            for instruction in block.instructions
            if instruction.name == "OpFunctionCall"
        }
        for callee in sorted(callees, reverse=True):
            if state.get(callee) is False:
                raise FormatError(f"function %{callee} calls itself", where=module.where)
            work.append((callee, False))
    return [module.functions[identifier] for identifier in order]


def find_variables(module: Module, functions: list[Function]) -> tuple[list[int], Usage]:
    """Module-level variables the functions use, and what is done to them."""
    usage = Usage()
    found: dict[int, None] = {}
    for function in functions:
        for block in function.blocks:
            for instruction in block.instructions:
                for operand in id_operands(instruction):
                    definition = module.definitions.get(operand)
                    if definition is not None and definition.name == "OpVariable":
                        found[operand] = None
                _note(module, instruction, usage)
    is_global = lambda key: module.definitions[key].number(0) != 7  # noqa: E731
    return sorted(filter(is_global, found)), usage


def _note(module: Module, instruction: Instruction, usage: Usage) -> None:
    name = instruction.name
    if name.startswith("OpAtomic"):
        root, _ = root_of(module, instruction.number(0), instruction)
        usage.atomic.add(root)
        if name != "OpAtomicLoad":
            usage.written.add(root)
        if name in ("OpAtomicSMin", "OpAtomicSMax"):
            usage.signed_atomic.add(root)
        if name in ("OpAtomicUMin", "OpAtomicUMax"):
            usage.unsigned_atomic.add(root)
    elif name in WRITES:
        root, _ = root_of(module, instruction.number(WRITES[name]), instruction)
        usage.written.add(root)
    elif name == "OpFunctionCall":
        for argument in instruction.numbers(1):
            definition = module.definitions.get(argument)
            if definition is not None and definition.name in ("OpVariable", *CHAINS):
                root, _ = root_of(module, argument, instruction)
                usage.written.add(root)
