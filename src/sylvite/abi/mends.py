"""What to do about each kind of finding, in one line."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["MENDS"]

MENDS: Mapping[str, str] = {
    "shape": "call it through a generated shim (sylvite abi shim)",
    "by-value-layout": "call it through a generated shim, and give the record fixed-width members",
    "byte-order": "call it through a generated shim, which rebuilds the record from memory",
    "extension": "retarget with sylvite abi retarget, which adds the extension attributes",
    "layout": "use fixed-width members and explicit padding, or build the record on the native side",
    "callback": "wrap the callback with the generated trampoline (sylvite abi shim)",
    "callback-extension": "retarget with the header given, which patches the callback's attributes too",
    "unjudged-callback": "give the callback type a typedef",
    "variadic": "call it through its variadic prototype, or through a shim with fixed arguments",
    "no-prototype": "declare its parameters, (void) when there are none",
    "incomplete": "include the header that defines the type",
    "half-float": "pass float, or a pointer",
    "plain-char": "say signed char, unsigned char or uint8_t",
    "va-list": "offer a variant with an array or a pointer",
    "long-double": "use double",
    "long": "use int32_t, int64_t or intptr_t",
    "wchar": "use char16_t, char32_t or UTF-8",
    "vector": "pass a pointer to the vector",
    "float-abi": "retarget to the exact triple and ABI name; never link the generic object itself",
    "ir-value": "pass it by pointer, or call through a generated shim",
    "ir-mismatch": "compile against the header the library was built with",
    "ir-target-code": "move it into native code, or write it in plain C",
    "ir-module": "compile the generic code without it",
    "ir-cpu": "retarget with sylvite abi retarget, which strips CPU attributes",
    "ir-sign": "give the header (--header) or compile with -g, so that the sign of small integers is known",
    "ir-byte-order": "leave optimizing until after retargeting (-O1 -Xclang -disable-llvm-passes), and share "
    "no bit-fields",
    "ir-pointer-width": "compile the generic code for a base of the same pointer width",
    "wasm-signature": "declare the import as the header does, and compile with its own toolchain",
    "wasm-unknown": "name the header that declares it",
    "absent": "guard the call with a run-time table of functions",
}
"""The mend for each rule."""
