"""What the functions of one shader share: constants, variables, helpers, the uniform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..errors import UnsupportedFeatureError
from ..spirv import Instruction, Module
from .constants import Constants
from .helpers import NEEDS, helper_name, helper_source
from .names import Names
from .resources import Resources
from .types import Type, Types, scalar_type
from .values import Value

__all__ = ["UNIFORM", "ShaderScope"]

UNIFORM: Final = "uniforms"
LITERAL_MARK: Final = "$literal"
GRID_MARK: Final = "$grid"


def word_text(index: int) -> str:
    """A word of the uniform by a known index."""
    return f"{UNIFORM}[{index // 4}].{'xyzw'[index % 4]}"


class ShaderScope:
    """State of one translation.

    Args:
        module: what is translated.
        features: WebGPU features that may be used.
        specialization: bits of specialization constants by SpecId.
    """

    def __init__(self, module: Module, features: frozenset[str], specialization: Mapping[int, int]) -> None:
        self.module = module
        self.features = features
        self.used_features: set[str] = set()
        self.names = Names()
        self.function_names: dict[int, str] = {}
        self.types = Types(module, has_f16="shader-f16" in features)
        self.literals: dict[int, int] = {}
        self.constants = Constants(module, self.types, specialization, self.literal)
        self.resources: Resources
        self.helpers: dict[str, str] = {}
        self.constant_texts: dict[int, str] = {}
        self.used_structs: dict[int, Type] = {}
        self.builtins: dict[str, None] = {}
        self.private_builtins: dict[str, None] = {}
        self.has_grid = False
        self._has_nan: bool | None = None
        self.entry = 0
        self.workgroup_size = (1, 1, 1)

    def refuse(self, instruction: Instruction, what: str) -> UnsupportedFeatureError:
        """The error that an instruction cannot be expressed."""
        return UnsupportedFeatureError(
            f"{instruction.name}: {what}", offset=instruction.offset, where=self.module.where
        )

    def literal(self, bits: int) -> str:
        """The word of the uniform that holds bits WGSL has no literal for; placed by `finish`."""
        index = self.literals.setdefault(bits, len(self.literals))
        return f"{LITERAL_MARK}{index}$"

    def grid(self, index: int) -> str:
        """A word of the grid; placed by `finish`."""
        self.has_grid = True
        return f"{GRID_MARK}{index}$"

    def finish(self, text: str) -> str:
        """Put the places of literals and of the grid into a text."""
        start = self.resources.push_constant_words
        for index in range(len(self.literals)):
            text = text.replace(f"{LITERAL_MARK}{index}$", word_text(start + index))
        start += len(self.literals)
        for index in range(6):
            text = text.replace(f"{GRID_MARK}{index}$", word_text(start + index))
        return text

    @property
    def uniform_words(self) -> int:
        """Words of the uniform."""
        return self.resources.push_constant_words + len(self.literals) + (6 if self.has_grid else 0)

    def helper(self, name: str, type: Type) -> str:
        """The name of a helper made for a type, which is added to the shader."""
        full = helper_name(name, type)
        if full not in self.helpers:
            for needed, scalar in NEEDS.get(name, ()):
                self.helper(needed, type.of(scalar) if scalar else type)
            self.helpers[full] = helper_source(name, type)
        return full

    @property
    def has_nan(self) -> bool:
        """Whether the module has a constant that is not a number, as the start of a minimum or maximum is."""
        if self._has_nan is None:
            self._has_nan = any(
                instruction.name == "OpConstant"
                and self.module.definition(instruction.type_id, instruction).name == "OpTypeFloat"
                and self.constants.is_nan(instruction.result_id)
                for instruction in self.module.instructions
            )
        return self._has_nan

    def member_name(self, type: Type, index: int) -> str:
        """The name of a struct's member."""
        return f"m{index}"

    def struct_lines(self) -> list[str]:
        """Declarations of structs that values or buffers have, members' types first."""
        declared: dict[int, list[str]] = {}
        for type in self.types.declared_structs(self.bare_structs()):
            members = ", ".join(f"m{index}: {member.wgsl}" for index, member in enumerate(type.members))
            declared[type.identifier] = [f"struct {type.wgsl} {{ {members} }}"]
        return [line for lines in declared.values() for line in lines]

    def bare_structs(self) -> set[int]:
        """Structs around the one member that is declared in their place."""
        bare = set()
        for variable in self.resources.variables.values():
            is_block = variable.storage == "PushConstant"
            if is_block or variable.is_bare or (variable.buffer is not None and variable.buffer.is_array):
                bare.add(variable.type.identifier)
        return bare

    def constant_name(self, identifier: int, value: Value) -> str:
        """The name of a long constant, which is declared once."""
        self.constant_texts[identifier] = f"const c_{identifier} = {value.text};"
        return f"c_{identifier}"

    def constant_lines(self) -> list[str]:
        """Declarations of long constants."""
        return list(self.constant_texts.values())

    def need_subgroups(self, instruction: Instruction) -> None:
        """Note that subgroups are used.

        Raises:
            UnsupportedFeatureError: the device does not have them.
        """
        if "subgroups" not in self.features:
            raise self.refuse(instruction, "it needs the device feature subgroups")
        self.used_features.add("subgroups")

    def use_f16(self, type: Type) -> None:
        """Note that half precision is used when a type does."""
        if type.scalar == "f16" or type is scalar_type("f16"):
            self.used_features.add("shader-f16")
