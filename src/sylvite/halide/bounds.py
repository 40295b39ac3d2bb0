"""What a pipeline requires, asked of the pipeline itself (bounds-query mode).

A call with buffers that have no memory computes nothing: it writes the regions and strides it would need
into the buffers' dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .arrays import Dimension

__all__ = ["Dimensions", "Query", "fit_outputs", "layout_like"]

Dimensions = dict[int, list[Dimension]]
"""Dimensions of every buffer by argument index."""

Query = Callable[[Dimensions], Dimensions]
"""Asks the pipeline: dimensions wanted in, dimensions required out."""

_ROUNDS = 8


def layout_like(proposed: Sequence[Dimension], extents: Sequence[int]) -> list[int]:
    """Strides, in elements, for a buffer of ``extents`` that obey the constraints in a pipeline's proposal.

    Unconstrained strides are proposed dense with dimension 0 innermost, as if there were no constraints on
    others; one that differs is a constraint.
    """
    fixed: dict[int, int] = {}
    dense = 1
    for number, dimension in enumerate(proposed):
        if dimension.stride != dense:
            fixed[number] = dimension.stride
        dense *= dimension.extent
    strides = [0] * len(extents)
    reach = 1
    for number, stride in fixed.items():
        strides[number] = stride
        reach = max(reach, abs(stride) * max(extents[number], 1))
    free = [number for number in range(len(extents)) if number not in fixed]
    if fixed and 0 in free and min(abs(s) for s in fixed.values()) > 1:
        # Nothing fixed is innermost, so dimension 0 is: the constraints leave it its place.
        free.remove(0)
        strides[0] = 1
    for number in free:
        strides[number] = reach
        reach *= max(extents[number], 1)
    return strides


def _excess(
    required: Dimensions, given: Dimensions, inputs: Sequence[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """By dimension, how far the required regions reach below and above the given ones."""
    below: dict[int, int] = {}
    above: dict[int, int] = {}
    for index in inputs:
        for number, (need, have) in enumerate(zip(required[index], given[index], strict=True)):
            low = have.min - need.min
            high = need.min + need.extent - (have.min + have.extent)
            if low > 0:
                below[number] = max(below.get(number, 0), low)
            if high > 0:
                above[number] = max(above.get(number, 0), high)
    return below, above


class _Fit:
    """Looks for the largest output region that the inputs cover."""

    def __init__(
        self, query: Query, given: Dimensions, inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        self.query = query
        self.given = given
        self.inputs = inputs
        self.outputs = outputs

    def excess(self, region: list[tuple[int, int]]) -> tuple[dict[int, int], dict[int, int]]:
        wanted = dict(self.given)
        for index in self.outputs:
            count = len(self.given[index])
            wanted[index] = [Dimension(low, extent, 0) for low, extent in region[:count]]
        return _excess(self.query(wanted), self.given, self.inputs)

    def fits(self, region: list[tuple[int, int]]) -> bool:
        return not any(self.excess(region))

    def shrink(self, region: list[tuple[int, int]]) -> list[tuple[int, int]] | None:
        """Take the excess off both ends, which is exact for stencils."""
        whole = region
        for _ in range(_ROUNDS):
            below, above = self.excess(region)
            if not below and not above:
                return None if self._could_grow(region, whole) else region
            region = [
                (low + below.get(d, 0), extent - below.get(d, 0) - above.get(d, 0))
                for d, (low, extent) in enumerate(region)
            ]
            if any(extent <= 0 for _, extent in region):
                return None
        return None

    def _could_grow(self, region: list[tuple[int, int]], whole: list[tuple[int, int]]) -> bool:
        """Whether more was taken off than needed, as it is where input and output differ in scale."""
        for d, (low, extent) in enumerate(region):
            larger = [*region[:d], (low, extent + 1), *region[d + 1 :]]
            if low + extent < sum(whole[d]) and self.fits(larger):
                return True
        return False

    def bisect(self, region: list[tuple[int, int]]) -> list[tuple[int, int]] | None:
        """The largest extent of one dimension after the other, from the given minima."""
        single = [(low, 1) for low, _ in region]
        if not self.fits(single):
            return None
        found = list(single)
        for d, (low, most) in enumerate(region):
            good, bad = 1, most + 1
            while bad - good > 1:
                middle = (good + bad) // 2
                trial = [*found[:d], (low, middle), *found[d + 1 :]]
                good, bad = (middle, bad) if self.fits(trial) else (good, middle)
            found[d] = (low, good)
        return found


def fit_outputs(query: Query, given: Dimensions, inputs: Sequence[int], outputs: Sequence[int]) -> Dimensions:
    """Regions of ``outputs``, at most those in ``given``, for which the given inputs suffice.

    When none does, the regions stay as they are: the call itself then says what is missing.
    """
    widest = max(outputs, key=lambda index: len(given[index]))
    region = [(dimension.min, dimension.extent) for dimension in given[widest]]
    fit = _Fit(query, given, inputs, outputs)
    found = fit.shrink(region) or fit.bisect(region) or region
    result = dict(given)
    for index in outputs:
        result[index] = [Dimension(low, extent, 0) for low, extent in found[: len(given[index])]]
    return result
