"""Identifiers of WGSL made of SPIR-V's debug names."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["RESERVED", "Names"]

_RESERVED_TEXT: Final = """
NULL Self abs abstract acos acosh active alias alignas alignof all any array arrayLength as asin asinh
asm asm_fragment async atan atan2 atanh atomic atomicAdd atomicAnd atomicCompareExchangeWeak
atomicExchange atomicLoad atomicMax atomicMin atomicOr atomicStore atomicSub atomicXor attribute auto
await become bitcast bool break case cast catch ceil clamp class co_await co_return co_yield coherent
column_major common compile compile_fragment concept const const_assert const_cast consteval constexpr
constinit continue continuing cos cosh countLeadingZeros countOneBits countTrailingZeros crate cross
debugger decltype default degrees delete demote demote_to_helper determinant diagnostic discard distance
do dot dynamic_cast else enable enum exp exp2 explicit export extends extern external extractBits f16 f32
faceForward fallthrough false filter final finally firstLeadingBit firstTrailingBit floor fma fn for
fract frexp friend from function fxgroup get goto groupshared highp i32 if impl implements import inline
insertBits instanceof interface inverseSqrt layout ldexp length let log log2 loop lowp macro macro_rules
main mat2x2 mat2x3 mat2x4 mat3x2 mat3x3 mat3x4 mat4x2 mat4x3 mat4x4 match max mediump meta min mix mod
modf module move mut mutable namespace new nil noexcept noinline nointerpolation non_coherent noncoherent
noperspective normalize null nullptr of operator override pack2x16float pack2x16snorm pack2x16unorm
pack4x8snorm pack4x8unorm package packoffset partition pass patch pixelfragment pow precise precision
premerge priv private protected ptr pub public quantizeToF16 radians read read_write readonly ref reflect
refract regardless register reinterpret_cast require requires resource restrict return reverseBits round
sampler saturate select self set shared sign sin sinh sizeof smooth smoothstep snorm sqrt static
static_assert static_cast std step storage storageBarrier struct subroutine super switch tan tanh target
template texture this thread_local throw trait transpose true trunc try type typedef typeid typename
typeof u32 uniform union unless unorm unpack2x16float unpack2x16snorm unpack2x16unorm unpack4x8snorm
unpack4x8unorm unsafe unsized use using var varying vec2 vec2f vec2i vec2u vec3 vec3f vec3i vec3u vec4
vec4f vec4i vec4u virtual volatile wgsl where while with workgroup workgroupBarrier workgroupUniformLoad
write writeonly yield
"""

RESERVED: Final = frozenset(_RESERVED_TEXT.split())
"""Keywords, reserved words, and predeclared names that a declaration would hide."""

_OURS: Final = re.compile(r"(v|c|at|s|next|leave)\d+|Struct\d+|\w*_word\w*|uniforms")


class Names:
    """Gives out identifiers, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set(RESERVED)

    def make(self, wanted: str) -> str:
        """An identifier like ``wanted`` that nothing else has."""
        base = re.sub(r"[^0-9A-Za-z_]+", "_", wanted).strip("_")
        base = re.sub(r"_{2,}", "_", base)[:100]
        if not base or base[0].isdigit() or _OURS.fullmatch(base):
            base = f"n_{base}" if base else "unnamed"
        name = base
        counter = 1
        while name in self._taken:
            counter += 1
            name = f"{base}_{counter}"
        self._taken.add(name)
        return name
