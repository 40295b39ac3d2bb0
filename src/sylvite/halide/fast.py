"""The short way into a pipeline: calls that look like one made before.

A `FastCall` remembers where each argument of a call goes: one comparison per array, one packing of the
whole argument block, one engine call. Whatever is unusual takes the long way, which also explains errors.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .plan import BoundBuffer, Mode, Plan

if TYPE_CHECKING:
    from .metadata import Signature
    from .place import Place

__all__ = ["FastCall", "call_key"]

Array: TypeAlias = "npt.NDArray[Any]"
_ndarray = np.ndarray


def call_key(args: Sequence[Any], names: Sequence[str]) -> tuple[Any, ...]:
    """Equal for calls that a `FastCall` may serve alike."""
    return (
        *names,
        *[(a.shape, a.strides, a.dtype) if type(a) is _ndarray else type(a) for a in args],
    )


class FastCall:
    """A call with arrays for the buffers (outputs may be left out) and plain numbers for the scalars.

    Args:
        place: where.
        plan: of the call.
        signature: of the pipeline.
        sources: for every argument of the signature, the position of its value among the call's, or the
            value itself for scalars that the call leaves out.
    """

    __slots__ = (
        "_base",
        "_buffers",
        "_copies",
        "_counters",
        "_expected",
        "_fresh",
        "_limit",
        "_made",
        "_outputs",
        "_pack",
        "_place",
        "_scalars",
        "_values",
        "_view",
        "address",
        "overlaps",
    )

    def __init__(
        self, place: Place, plan: Plan, signature: Signature, sources: Sequence[tuple[int, Any]]
    ) -> None:
        self._base = place.space.memory.base_address
        self._limit = place.space.memory.byte_length
        self._counters = place.space.tracer.counters
        self.address = plan.slab.address
        self._view = plan.slab.view
        layout, self._values, places = _packing(plan, signature)
        self._pack = layout.pack_into
        self._scalars: list[tuple[int, int]] = []
        self._buffers: list[tuple[int, int, int, int, bool, bool]] = []
        self._copies: list[tuple[int, Array]] = []
        self._outputs: list[tuple[int, Array | None]] = []
        self._fresh: list[tuple[BoundBuffer, int]] = []
        self._made: list[Array] = []
        self._place = place
        bound = {buffer.index: buffer for buffer in plan.buffers}
        for index, argument in enumerate(signature.arguments):
            position, value = sources[index]
            if not argument.is_buffer:
                if position >= 0:
                    self._scalars.append((position, places[index]))
                else:
                    self._values[places[index]] = value
                continue
            buffer = bound[index]
            if buffer.mode is Mode.FRESH:
                self._fresh.append((buffer, places[index]))
                self._outputs.append((-1, None))
                continue
            direct = buffer.mode is Mode.DIRECT
            low, high = plan.span(buffer)
            self._buffers.append((position, places[index], low, high, direct, buffer.is_output))
            if not direct:
                self._values[places[index]] = buffer.stage_address
            if buffer.is_output:
                self._outputs.append((position, buffer.stage))
            elif buffer.stage is not None:
                self._copies.append((position, buffer.stage))
        self.overlaps = plan.checks_overlap
        # How large a new output is may depend on the scalars.
        self._expected: list[tuple[int, Any]] = []
        if self._fresh:
            self._expected = [
                (at, sources[i][1])
                for i, a in enumerate(signature.arguments)
                if not a.is_buffer
                for at in [sources[i][0]]
                if at >= 0
            ]

    def prepare(self, args: Sequence[Any]) -> bool:
        """Write the argument block and copy what has to be. False: take the long way."""
        values, base, limit = self._values, self._base, self._limit
        written: list[tuple[int, int]] = []
        for position, place, low, high, direct, is_output in self._buffers:
            array = args[position]
            address = array.__array_interface__["data"][0] - base
            inside = address + low >= 0 and address + high <= limit
            if inside is not direct or (is_output and not array.flags.writeable):
                return False
            if direct:
                values[place] = address
                if is_output:
                    written.append((address + low, address + high))
        if self.overlaps and self._overlap(args, written):
            return False
        for position, expected in self._expected:
            if args[position] != expected:
                return False
        for position, place in self._scalars:
            values[place] = args[position]
        if self._fresh:
            self._made.clear()
            for buffer, place in self._fresh:
                made = buffer.make(self._place)
                values[place] = made.__array_interface__["data"][0] - base
                self._made.append(made[buffer.crop])
        try:
            self._pack(self._view, 0, *values)
        except (struct.error, TypeError, OverflowError):
            return False
        for position, stage in self._copies:
            np.copyto(stage, args[position])
            self._counters.bytes_copied += stage.nbytes
        return True

    def _overlap(self, args: Sequence[Any], written: list[tuple[int, int]]) -> bool:
        for at, (begin, end) in enumerate(written):
            for other_begin, other_end in written[at + 1 :]:
                if begin < other_end and other_begin < end:
                    return True
            for _, place, low, high, direct, is_output in self._buffers:
                if direct and not is_output:
                    address = self._values[place]
                    if begin < address + high and address + low < end:
                        return True
        return False

    def results(self, args: Sequence[Any]) -> Array | tuple[Array, ...]:
        """The output arrays, with staged contents copied out."""
        found = []
        made = iter(self._made)
        for position, stage in self._outputs:
            if position < 0:
                found.append(next(made))
                continue
            target = args[position]
            if stage is not None:
                np.copyto(target, stage)
                self._counters.bytes_copied += target.nbytes
            found.append(target)
        self._made = []
        return found[0] if len(found) == 1 else tuple(found)


def _packing(plan: Plan, signature: Signature) -> tuple[struct.Struct, list[Any], dict[int, int]]:
    """A format for the whole slab, its present values, and which value each argument is."""
    slots = [(offset, "I", index) for index, offset in plan.slab.host_offsets.items()]
    slots += [(offset, layout, index) for index, offset, layout in plan.slab.scalar_slots]
    template = plan.slab.template
    pieces, places, at = ["<"], {}, 0
    values: list[Any] = []
    for offset, layout, index in sorted(slots):
        if offset > at:
            pieces.append(f"{offset - at}s")
            values.append(template[at:offset])
        pieces.append(layout)
        places[index] = len(values)
        values.append(0)
        at = offset + struct.calcsize("<" + layout)
    if at < len(template):
        pieces.append(f"{len(template) - at}s")
        values.append(template[at:])
    return struct.Struct("".join(pieces)), values, places
