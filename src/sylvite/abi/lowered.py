"""Lowered signatures: the text of an LLVM ``declare``, ``define`` or ``call`` as data.

Only what decides where a value travels is kept: the type, and the attributes that move it (byval, sret,
inalloca, preallocated, inreg, byref, swift*, nest) or widen it (signext, zeroext).

Source: the LLVM Language Reference, "Parameter Attributes" and "Calling Conventions".
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from ..errors import FormatError

__all__ = ["LoweredSignature", "LoweredValue", "Scanner", "parse_declaration"]

EXTENSIONS = frozenset({"signext", "zeroext"})
PLACING = frozenset(
    {
        "byval", "sret", "inalloca", "preallocated", "byref", "inreg", "nest", "swiftself", "swifterror",
        "swiftasync", "alignstack", "elementtype",
        # Moves nothing, but tells the hidden pointer to a record from a record of one pointer.
        "dead_on_return",
    }
)  # fmt: skip
_CONVENTION = re.compile(
    r"(?:ccc|fastcc|coldcc|webkit_jscc|anyregcc|preserve_\w+cc|cxx_fast_tlscc|swift(?:tail)?cc|tailcc|cfguard_checkcc"
    r"|ghccc|cc\s*\d+|[a-z0-9_]+_(?:stdcallcc|fastcallcc|thiscallcc|vectorcallcc|regcallcc|intrcc|sysvcc|win64cc"
    r"|64_sysvcc|apcscc|aapcscc|aapcs_vfpcc|vector_pcs|sve_vector_pcs|kernel|device|vs|gs|ps|cs|hs|es|ls)"
    r"|x86_64_sysvcc|win64cc|riscv_\w*cc(?:\(\d+\))?|graalcc|m68k_rtdcc|intel_ocl_bicc)\b"
)
_WORD = re.compile(r'[A-Za-z_][\w.]*|"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r'[@%](?:[\w.$-]+|"(?:[^"\\]|\\.)*")')
_SPACE = re.compile(r"\s*")
_CLOSERS = {"(": ")", "{": "}", "[": "]", "<": ">"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoweredValue:
    """One parameter or result. ``extension`` is ``signext``, ``zeroext`` or ""; ``placing`` are the
    attributes that decide where the value travels, in order, with their arguments."""

    type: str
    extension: str = ""
    placing: tuple[str, ...] = ()

    @property
    def shape(self) -> str:
        """Type and placing attributes as one text, extension left out."""
        return " ".join((self.type, *self.placing))

    def __str__(self) -> str:
        return " ".join(part for part in (self.type, self.extension, *self.placing) if part)


def lowered_value(type_: str, extension: str, placing: tuple[str, ...]) -> LoweredValue:
    """A value; a full register has nothing to extend, though MIPS writes ``i64 signext``."""
    return LoweredValue(type=type_, extension="" if type_ == "i64" else extension, placing=placing)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoweredSignature:
    """A function as the code generator sees it. ``convention`` is "" for the C convention."""

    result: LoweredValue
    parameters: tuple[LoweredValue, ...]
    variadic: bool = False
    convention: str = ""

    @property
    def shape(self) -> str:
        """Everything but extension attributes: two targets may share generic code only if it is equal."""
        inside = ", ".join(value.shape for value in self.parameters) + (", ..." if self.variadic else "")
        return f"{self.convention} {self.result.shape} ({inside})".strip()

    @property
    def registers(self) -> str:
        """`shape` without what other versions of clang do not write."""
        return self.shape.replace(" dead_on_return", "")

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extension attribute of the result and of each parameter."""
        return (self.result.extension, *(value.extension for value in self.parameters))

    def __str__(self) -> str:
        inside = [str(value) for value in self.parameters] + (["..."] if self.variadic else [])
        return f"{self.convention} {self.result} ({', '.join(inside)})".strip()


class Scanner:
    """Reads LLVM types and attributes from a line of text. ``position`` is an index into ``text``."""

    def __init__(self, text: str, position: int = 0, types: Mapping[str, str] | None = None) -> None:
        self.text = text
        self.position = position
        self.types = types or {}

    def named_type(self, name: str, depth: int = 0) -> str:
        """The body of a named type where it is known, nested names replaced too."""
        body = self.types.get(name)
        if body is None or depth > 64:
            return name
        return _NAME.sub(lambda match: self.named_type(match.group(), depth + 1), body)

    def space(self) -> None:
        """Skip white space."""
        match = _SPACE.match(self.text, self.position)
        if match is not None:
            self.position = match.end()

    def peek(self, text: str) -> bool:
        """Whether ``text`` comes next, white space skipped."""
        self.space()
        return self.text.startswith(text, self.position)

    def take(self, text: str) -> bool:
        """Consume ``text`` if it comes next."""
        if self.peek(text):
            self.position += len(text)
            return True
        return False

    def pattern(self, pattern: re.Pattern[str]) -> str | None:
        """Consume and return what ``pattern`` matches here."""
        self.space()
        match = pattern.match(self.text, self.position)
        if match is None:
            return None
        self.position = match.end()
        return match.group()

    def bracketed(self) -> str:
        """Consume one bracketed group, nested brackets and strings included."""
        start = self.position
        stack: list[str] = []
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == '"':
                self.pattern(_WORD)
                continue
            self.position += 1
            if character in _CLOSERS:
                stack.append(_CLOSERS[character])
            elif stack and character == stack[-1]:
                stack.pop()
                if not stack:
                    return self.text[start : self.position]
        raise FormatError("unbalanced brackets", where=self.text.strip()[:120])

    def type(self) -> str:
        """Consume one type."""
        self.space()
        character = self.text[self.position : self.position + 1]
        if character in ("{", "[", "<"):
            return _NAME.sub(lambda match: self.named_type(match.group()), self.bracketed())
        if character == "%":
            return self.named_type(self.pattern(_NAME) or "")
        word = self.pattern(_WORD)
        if word is None:
            raise FormatError("a type was expected", where=self.text.strip()[:120])
        if word in ("ptr", "target") and (self.peek("addrspace(") or self.peek("(")):
            start = self.position
            self.pattern(re.compile(r"\w*"))
            self.bracketed()
            return (
                f"{word} {self.text[start : self.position]}"
                if word == "ptr"
                else word + self.text[start : self.position]
            )
        return word

    def attributes(self) -> tuple[str, tuple[str, ...]]:
        """Consume attributes up to a value, a comma or a bracket: (extension, placing attributes)."""
        extension, placing = "", []
        while True:
            self.space()
            start = self.position
            word = self.pattern(_WORD)
            if word is None:
                break
            if word not in _ATTRIBUTES and not word.startswith('"'):
                self.position = start
                break
            if word.startswith('"') and self.take("="):
                self.pattern(_WORD)
            argument = self.bracketed() if self.text.startswith("(", self.position) else ""
            if word == "align" and not argument:
                argument = f" {self.pattern(_NUMBER)}"
            if word in EXTENSIONS:
                extension = word
            elif word in PLACING:
                # The pointee's layout is compared by itself; spelled here it differs by padding alone.
                placing.append(word if word in _TYPED else word + argument)
            elif word == "align" and placing and placing[-1] in ("byval", "byref"):
                placing.append(word + argument)
        return extension, tuple(placing)

    def value(self) -> LoweredValue:
        """Consume one parameter: type and attributes."""
        type_ = self.type()
        extension, placing = self.attributes()
        return lowered_value(type_, extension, placing)


_NUMBER = re.compile(r"\d+")
_TYPED = frozenset({"byval", "sret", "inalloca", "preallocated", "byref", "elementtype", "dead_on_return"})
_ATTRIBUTES = EXTENSIONS | PLACING | frozenset(
    {
        "noundef", "nonnull", "noalias", "nocapture", "captures", "nofree", "dereferenceable",
        "dereferenceable_or_null", "returned", "readonly", "readnone", "writeonly", "writable", "immarg",
        "align", "dead_on_unwind", "dead_on_return", "initializes", "range", "nofpclass", "noext",
        "allocalign", "allocptr", "dllimport", "hidden",
    }
)  # fmt: skip
_LINKAGE = frozenset(
    {
        "private", "internal", "available_externally", "linkonce", "weak", "common", "appending",
        "extern_weak", "linkonce_odr", "weak_odr", "external", "dso_local", "dso_preemptable",
        "default", "hidden", "protected", "dllimport", "dllexport", "unnamed_addr", "local_unnamed_addr",
    }
)  # fmt: skip


def parse_convention(scanner: Scanner) -> str:
    """Consume a calling convention; "" for the C convention."""
    convention = scanner.pattern(_CONVENTION)
    return "" if convention in (None, "ccc") else str(convention)


def parse_declaration(
    line: str, types: Mapping[str, str] | None = None
) -> tuple[str, LoweredSignature, frozenset[str], str]:
    """Parse a ``declare`` or ``define`` line. ``types`` are bodies of named types (``%name``).

    Returns the symbol (without ``@`` and quotes), the signature, the linkage and visibility words, and
    the text behind the parameter list.

    Raises:
        FormatError: the line is not a declaration.
    """
    scanner = Scanner(line, types=types)
    if not (scanner.take("declare") or scanner.take("define")):
        raise FormatError("not a declaration", where=line.strip()[:120])
    while scanner.take("!"):
        scanner.pattern(re.compile(r"\w+"))
        scanner.pattern(re.compile(r"!\d+"))
    words = set()
    convention = ""
    while True:
        convention = convention or parse_convention(scanner)
        start = scanner.position
        word = scanner.pattern(_WORD)
        if word not in _LINKAGE:
            scanner.position = start
            break
        words.add(str(word))
    convention = convention or parse_convention(scanner)
    extension, placing = scanner.attributes()
    result = lowered_value(scanner.type(), extension, placing)
    name = scanner.pattern(_NAME)
    if name is None or not scanner.take("("):
        raise FormatError("a function name was expected", where=line.strip()[:120])
    parameters, variadic = parse_parameters(scanner)
    signature = LoweredSignature(
        result=result, parameters=parameters, variadic=variadic, convention=convention
    )
    return plain_symbol(name), signature, frozenset(words), line[scanner.position :]


def parse_parameters(scanner: Scanner) -> tuple[tuple[LoweredValue, ...], bool]:
    """Consume a parameter list behind its opening bracket, names of values skipped."""
    parameters: list[LoweredValue] = []
    variadic = False
    while not scanner.take(")"):
        if scanner.take("..."):
            variadic = True
            continue
        parameters.append(scanner.value())
        scanner.pattern(_NAME)
        if not scanner.take(",") and not scanner.peek(")"):
            raise FormatError("malformed parameter list", where=scanner.text.strip()[:120])
    return tuple(parameters), variadic


def plain_symbol(name: str) -> str:
    """``@"\\01_f"`` and ``@f`` as the bare symbol."""
    bare = name[1:]
    if bare.startswith('"'):
        bare = bare[1:-1]
    return bare.removeprefix("\\01")
