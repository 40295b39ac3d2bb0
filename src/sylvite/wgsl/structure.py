"""From basic blocks with merge instructions to nested statements.

Work is linear in the number of blocks: a block is placed once, and a module that would need one twice is
refused. Nesting is bounded by what WGSL accepts.

Source: SPIR-V specification, "Structured Control Flow".
"""

from __future__ import annotations

import dataclasses
from typing import Final, TypeAlias

from ..errors import FormatError, UnsupportedFeatureError
from ..spirv import Block, Function, Instruction

__all__ = [
    "BlockNode",
    "Break",
    "BreakIf",
    "Continue",
    "Edge",
    "If",
    "Loop",
    "Node",
    "Return",
    "Sequence",
    "Switch",
    "Tree",
    "build",
]

NESTING_LIMIT: Final = 100
LOOP_MERGE: Final = "OpLoopMerge"


class Sequence:
    """Statements of one pair of braces."""

    __slots__ = ("depth", "nodes", "parent")

    def __init__(self, parent: Sequence | None) -> None:
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.nodes: list[Node] = []

    def encloses(self, other: Sequence) -> bool:
        """Whether what is declared here is visible in ``other``."""
        found: Sequence | None = other
        while found is not None and found.depth > self.depth:
            found = found.parent
        return found is self


@dataclasses.dataclass(slots=True, eq=False)
class BlockNode:
    """The instructions of a block, without its merge and terminator."""

    block: Block


@dataclasses.dataclass(slots=True, eq=False)
class Edge:
    """The way from one block to another, where the other's phis are assigned."""

    source: int
    target: int


@dataclasses.dataclass(slots=True, eq=False)
class If:
    """A selection on the id ``condition``."""

    condition: int
    then: Sequence
    other: Sequence


@dataclasses.dataclass(slots=True, eq=False)
class Loop:
    """A loop; ``flag`` is set when a ``switch`` in it must leave it."""

    header: int
    body: Sequence
    continuing: Sequence | None
    has_flag: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Switch:
    """A selection by number: cases are (literals, whether default, statements); ``leaves`` is a loop."""

    selector: int
    cases: list[tuple[list[int], bool, Sequence]]
    leaves: Loop | None = None


@dataclasses.dataclass(slots=True, eq=False)
class Break:
    """Out of the loop or switch; ``loop`` is set when that is a loop around a switch."""

    loop: Loop | None = None


@dataclasses.dataclass(slots=True, eq=False)
class Continue:
    """To the loop's continuing part or its start."""


@dataclasses.dataclass(slots=True, eq=False)
class BreakIf:
    """The end of a continuing part: leave the loop if the id ``condition`` is ``value``."""

    condition: int
    value: bool
    edges: tuple[Edge, ...]


@dataclasses.dataclass(slots=True, eq=False)
class Return:
    """Out of the function, by the terminator ``instruction``."""

    instruction: Instruction


Node: TypeAlias = "BlockNode | Edge | If | Loop | Switch | Break | Continue | BreakIf | Return"


@dataclasses.dataclass(slots=True)
class Tree:
    """A function's statements, where each block was placed, and loops that end in a `BreakIf` by header."""

    root: Sequence
    placed: dict[int, Sequence]
    late_exits: set[int]


@dataclasses.dataclass(frozen=True, slots=True)
class _LoopContext:
    node: Loop
    header: int
    merge: int
    target: int
    has_continuing: bool


@dataclasses.dataclass(frozen=True, slots=True)
class _Context:
    """Where branches lead: ``falls`` is what follows by itself, ``switches`` are those within the loop."""

    falls: int = 0
    loop: _LoopContext | None = None
    switches: tuple[tuple[int, Switch, frozenset[int]], ...] = ()
    in_continuing: bool = False


def build(function: Function, where: str) -> Tree:
    """Nest a function's blocks.

    Raises:
        FormatError: a branch leads where structured control flow does not allow.
        UnsupportedFeatureError: it nests too deep, or a case falls through.
    """
    return _Builder(function, where).build()


class _Builder:
    def __init__(self, function: Function, where: str) -> None:
        self.where = where
        self.function = function
        self.blocks = {block.label: block for block in function.blocks}
        self.tree = Tree(Sequence(None), {}, set())
        self.work: list[tuple[int, Sequence, _Context]] = []
        self.predecessors = self._predecessors()
        self.with_phis = {block.label for block in function.blocks if block.instructions[0].name == "OpPhi"}

    def error(self, message: str, instruction: Instruction) -> FormatError:
        return FormatError(f"{instruction.name}: {message}", offset=instruction.offset, where=self.where)

    def _predecessors(self) -> dict[int, int]:
        """How many edges from reachable blocks lead to each reachable block."""
        entry = self.function.blocks[0].label
        counts = {entry: 0}
        work = [entry]
        while work:
            terminator = self.block(work.pop()).terminator
            for target in set(self.targets(terminator)):
                if target not in counts:
                    self.block(target, terminator)
                    counts[target] = 0
                    work.append(target)
                counts[target] += 1
        return counts

    def block(self, label: int, user: Instruction | None = None) -> Block:
        found = self.blocks.get(label)
        if found is None:
            raise self.error(f"%{label} is not a block of the function", user or self.function.definition)
        return found

    def targets(self, terminator: Instruction) -> tuple[int, ...]:
        name = terminator.name
        if name == "OpBranch":
            return (terminator.number(0),)
        if name == "OpBranchConditional":
            return terminator.number(1), terminator.number(2)
        if name == "OpSwitch":
            return (terminator.number(1), *terminator.numbers(3)[::2])
        return ()

    def build(self) -> Tree:
        self.work.append((self.function.blocks[0].label, self.tree.root, _Context()))
        while self.work:
            label, sequence, context = self.work.pop()
            following: int | None = label
            while following is not None:
                following = self.place(following, sequence, context)
        return self.tree

    def nest(self, sequence: Sequence, user: Instruction) -> Sequence:
        if sequence.depth >= NESTING_LIMIT:
            message = f"{user.name}: control flow nests more than {NESTING_LIMIT} deep"
            raise UnsupportedFeatureError(message, offset=user.offset, where=self.where)
        return Sequence(sequence)

    def place(self, label: int, sequence: Sequence, context: _Context) -> int | None:
        """Add a block to a sequence; returns the block that follows in it."""
        block = self.block(label)
        if label in self.tree.placed:
            raise self.error(f"block %{label} is reached on two ways that do not merge", block.terminator)
        merge = block.merge
        if merge is not None and merge.name == LOOP_MERGE:
            return self.place_loop(block, merge, sequence)
        self.tree.placed[label] = sequence
        sequence.nodes.append(BlockNode(block))
        return self.terminate(block, sequence, context)

    def place_loop(self, block: Block, merge: Instruction, sequence: Sequence) -> int | None:
        exit_label, target = merge.number(0), merge.number(1)
        self.block(exit_label, merge)
        self.block(target, merge)
        body = self.nest(sequence, merge)
        count = self.predecessors.get(target, 0)
        has_continuing = target != block.label and count > 1
        continuing = self.nest(body, merge) if has_continuing else None
        loop = Loop(block.label, body, continuing)
        sequence.nodes.append(loop)
        info = _LoopContext(loop, block.label, exit_label, target, has_continuing)
        context = _Context(loop=info)
        self.tree.placed[block.label] = body
        body.nodes.append(BlockNode(block))
        following = self.terminate(block, body, context)
        if following is not None:
            self.work.append((following, body, context))
        if continuing is not None:
            self.work.append((target, continuing, dataclasses.replace(context, in_continuing=True)))
        return exit_label if exit_label in self.predecessors else None

    def terminate(self, block: Block, sequence: Sequence, context: _Context) -> int | None:
        terminator = block.terminator
        name = terminator.name
        if name == "OpBranch":
            return self.go(block, terminator.number(0), sequence, context)
        if name == "OpBranchConditional":
            return self.branch(block, terminator, sequence, context)
        if name == "OpSwitch":
            return self.switch(block, terminator, sequence, context)
        if context.in_continuing:
            raise self.error("leaves the function in a continue construct", terminator)
        sequence.nodes.append(Return(terminator))
        return None

    def is_exit(self, label: int, context: _Context) -> bool:
        """Whether a branch there is a jump or falls out of the construct."""
        loop = context.loop
        if loop is not None and label in (loop.merge, loop.header):
            return True
        if loop is not None and loop.has_continuing and label == loop.target:
            return True
        return label == context.falls or any(label == merge for merge, _, _ in context.switches)

    def go(self, block: Block, label: int, sequence: Sequence, context: _Context) -> int | None:
        """Follow a branch: adds what it does to the sequence, returns a block that is to follow there."""
        if label in self.with_phis:
            sequence.nodes.append(Edge(block.label, label))
        if not self.is_exit(label, context):
            for _, _, starts in context.switches[-1:]:
                if label in starts:
                    message = f"case %{block.label} of a switch falls through to %{label}"
                    offset = block.terminator.offset
                    raise UnsupportedFeatureError(f"OpSwitch: {message}", offset=offset, where=self.where)
            return label
        loop = context.loop
        if label == context.falls:
            return None
        if loop is not None and label == loop.merge:
            if context.in_continuing:
                raise self.error("leaves the loop in the midst of a continue construct", block.terminator)
            if context.switches:
                loop.node.has_flag = True
                for _, switch, _ in context.switches:
                    switch.leaves = loop.node
                sequence.nodes.append(Break(loop.node))
            else:
                sequence.nodes.append(Break())
        elif loop is not None and label in (loop.header, loop.target):
            if not context.in_continuing:
                if loop.has_continuing and label == loop.header:
                    raise self.error(
                        "a back edge does not come from the continue construct", block.terminator
                    )
                sequence.nodes.append(Continue())
        else:
            sequence.nodes.append(Break())
        return None

    def branch(
        self, block: Block, terminator: Instruction, sequence: Sequence, context: _Context
    ) -> int | None:
        condition, first, second = terminator.numbers()[:3]
        merge = block.merge
        if first == second:
            return self.go(block, first, sequence, context)
        loop = context.loop
        if context.in_continuing and loop is not None and loop.header in (first, second):
            self.break_if(block, terminator, sequence, loop)
            return None
        if merge is not None and merge.name != LOOP_MERGE:
            inner = dataclasses.replace(context, falls=merge.number(0))
            self.arms(block, terminator, sequence, inner)
            return merge.number(0) if merge.number(0) in self.predecessors else None
        if self.is_exit(first, context):
            node = If(condition, self.nest(sequence, terminator), self.nest(sequence, terminator))
            sequence.nodes.append(node)
            self.go(block, first, node.then, context)
            return self.go(block, second, sequence, context)
        if self.is_exit(second, context):
            node = If(condition, self.nest(sequence, terminator), self.nest(sequence, terminator))
            sequence.nodes.append(node)
            self.go(block, second, node.other, context)
            return self.go(block, first, sequence, context)
        self.arms(block, terminator, sequence, context)
        return None

    def arms(self, block: Block, terminator: Instruction, sequence: Sequence, context: _Context) -> None:
        condition, first, second = terminator.numbers()[:3]
        node = If(condition, self.nest(sequence, terminator), self.nest(sequence, terminator))
        sequence.nodes.append(node)
        for label, arm in ((first, node.then), (second, node.other)):
            following = self.go(block, label, arm, context)
            if following is not None:
                self.work.append((following, arm, context))

    def break_if(self, block: Block, terminator: Instruction, sequence: Sequence, loop: _LoopContext) -> None:
        condition, first, second = terminator.numbers()[:3]
        if loop.merge not in (first, second):
            raise self.error("a back edge's other way does not leave the loop", terminator)
        self.tree.late_exits.add(loop.header)
        labels = [label for label in (first, second) if label in self.with_phis]
        edges = tuple(Edge(block.label, label) for label in labels)
        sequence.nodes.append(BreakIf(condition, first == loop.merge, edges))

    def switch(
        self, block: Block, terminator: Instruction, sequence: Sequence, context: _Context
    ) -> int | None:
        merge = block.merge
        if merge is None or merge.name == LOOP_MERGE:
            raise self.error("is not preceded by OpSelectionMerge", terminator)
        exit_label = merge.number(0)
        selector, default, *pairs = terminator.numbers()
        literals: dict[int, list[int]] = {default: []}
        for literal, label in zip(pairs[::2], pairs[1::2], strict=True):
            literals.setdefault(label, []).append(literal)
        node = Switch(selector, [])
        starts = frozenset(literals) - {exit_label}
        entry = exit_label, node, starts
        inner = dataclasses.replace(context, falls=exit_label, switches=(*context.switches, entry))
        sequence.nodes.append(node)
        for label, values in literals.items():
            case = self.nest(sequence, terminator)
            node.cases.append((values, label == default, case))
            if label in self.with_phis:
                case.nodes.append(Edge(block.label, label))
            if label in starts and not self.is_exit(label, context):
                self.work.append((label, case, inner))
            elif label != exit_label:
                raise self.error(f"case %{label} leaves the switch", terminator)
        return exit_label if exit_label in self.predecessors else None
