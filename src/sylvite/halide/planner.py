"""Making plans: from what the caller gave to buffers with memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..errors import InvalidArgumentError, PipelineError
from .arrays import AxisOrder, Dimension, Region, axes_of
from .bounds import Dimensions, fit_outputs
from .layouts import ArgumentKind
from .metadata import Argument, Number, Signature
from .place import Place
from .plan import (
    BoundBuffer,
    Given,
    Mode,
    Plan,
    as_region,
    crop_of,
    dimensions_of,
    staged_dimensions,
    with_dense_strides,
    zeros,
)
from .slab import Slab

__all__ = ["Planner", "Regions"]

Regions = Mapping[int, Region]
"""Regions of outputs that the caller wants, by argument index."""

_MOST_BYTES = (1 << 31) - 1

QueryCall = Callable[[Slab, Sequence[Number]], None]
"""Runs the pipeline in bounds-query mode on a slab."""


class Planner:
    """Makes the plans of one pipeline.

    Args:
        place: where.
        signature: of the pipeline.
        order: which numpy axis each dimension is.
        query: runs the pipeline on a slab whose buffers have no memory; raises what the pipeline reports.
    """

    def __init__(self, place: Place, signature: Signature, order: AxisOrder, query: QueryCall) -> None:
        self._place = place
        self._signature = signature
        self._order = order
        self._query_call = query
        self._buffers = [(i, a) for i, a in enumerate(signature.arguments) if a.is_buffer]
        self.axes = {i: axes_of(order, a.dimensions) for i, a in self._buffers}

    def plan(
        self,
        given: Mapping[int, Given],
        regions: Regions,
        scalars: Sequence[Number],
        *,
        in_guest: frozenset[int],
        force_staged: frozenset[int],
    ) -> Plan:
        """A plan for a call.

        Args:
            given: arrays by argument index; an output that is missing gets new memory.
            regions: of missing outputs, where the caller says so.
            scalars: values of the scalars.
            in_guest: buffers whose arrays lie in guest memory.
            force_staged: buffers to copy although they lie there.

        Raises:
            InvalidArgumentError: an input or an output's region is missing.
            PipelineError: the pipeline refuses its scalars.
            OutOfMemoryError
        """
        dims, modes = self._start(given, in_guest - force_staged)
        missing = [i for i, _ in self._buffers if i not in given]
        asked = dict(dims)
        if missing:
            dims = self._place_outputs(dims, missing, regions, scalars)
            asked = dict(dims)
        if any(mode is not Mode.DIRECT for mode in modes.values()):
            dims = self._lay_out(dims, modes, scalars)
        bound = [
            BoundBuffer(
                index=index,
                argument=argument,
                mode=modes[index],
                axes=self.axes[index],
                dims=dims[index],
                crop=crop_of(asked[index], dims[index], self.axes[index]),
            )
            for index, argument in self._buffers
        ]
        for buffer in bound:
            self._check_size(buffer)
        return Plan(self._place, self._signature, bound)

    def wanted(self, given: Mapping[int, Given], regions: Regions) -> Dimensions:
        """The dimensions to ask bounds for: those of outputs as given or asked for, inputs empty.

        Raises:
            InvalidArgumentError: an output has neither.
        """
        dims: Dimensions = {}
        for index, argument in self._buffers:
            dims[index] = zeros(argument.dimensions)
            if argument.kind is not ArgumentKind.OUTPUT:
                continue
            if index in given:
                item = given[index]
                dims[index] = [
                    Dimension(low, item.array.shape[axis], 0)
                    for axis, low in zip(self.axes[index], item.mins, strict=True)
                ]
            elif index in regions:
                dims[index] = self._from_region(index, argument, regions[index])
            elif argument.dimensions:
                raise InvalidArgumentError(f"give {argument.name} or its shape to learn what is required")
        return with_dense_strides(dims)

    def _start(
        self, given: Mapping[int, Given], direct: frozenset[int]
    ) -> tuple[Dimensions, dict[int, Mode]]:
        dims: Dimensions = {}
        modes: dict[int, Mode] = {}
        for index, argument in self._buffers:
            item = given.get(index)
            if item is None:
                if argument.kind is not ArgumentKind.OUTPUT:
                    raise InvalidArgumentError(f"{self._signature.name} needs the input {argument}")
                dims[index], modes[index] = zeros(argument.dimensions), Mode.FRESH
                continue
            axes = self.axes[index]
            found = dimensions_of(item, axes) if index in direct else None
            modes[index] = Mode.STAGED if found is None else Mode.DIRECT
            dims[index] = found or [
                Dimension(low, item.array.shape[axis], 0) for axis, low in zip(axes, item.mins, strict=True)
            ]
        return dims, modes

    # Regions of outputs

    def _place_outputs(
        self, dims: Dimensions, missing: Sequence[int], regions: Regions, scalars: Sequence[Number]
    ) -> Dimensions:
        result = dict(dims)
        unknown = []
        for index in missing:
            argument = self._signature.arguments[index]
            if index in regions:
                result[index] = self._from_region(index, argument, regions[index])
            elif argument.estimates is not None and not self._signature.inputs:
                result[index] = [Dimension(low, extent, 0) for low, extent in argument.estimates]
            elif argument.dimensions:
                unknown.append(index)
        if not unknown:
            return result
        inputs = [i for i, a in self._buffers if a.kind is ArgumentKind.INPUT]
        for index in unknown:
            result[index] = self._like_inputs(index, result, inputs)
        return fit_outputs(lambda wanted: self.query(wanted, scalars), result, inputs, unknown)

    def _from_region(self, index: int, argument: Argument, region: Region) -> list[Dimension]:
        if len(region.shape) != argument.dimensions:
            raise InvalidArgumentError(
                f"{argument.name} has {argument.dimensions} dimensions, the shape given has "
                f"{len(region.shape)}: {region.shape}"
            )
        if any(extent < 0 for extent in region.shape):
            raise InvalidArgumentError(f"{argument.name}: shape {region.shape} has a negative extent")
        return [Dimension(region.min[axis], region.shape[axis], 0) for axis in self.axes[index]]

    def _like_inputs(self, index: int, dims: Dimensions, inputs: Sequence[int]) -> list[Dimension]:
        argument = self._signature.arguments[index]
        same = [i for i in inputs if len(dims[i]) == argument.dimensions]
        found: list[Dimension] = []
        for number in range(argument.dimensions):
            source = next((i for i in same + list(inputs) if len(dims[i]) > number), None)
            if source is None:
                raise InvalidArgumentError(
                    f"how large {argument.name} is to be does not follow from the inputs: pass shape= or out="
                )
            found.append(dims[source][number])
        return found

    # Layout

    def query(self, dims: Dimensions, scalars: Sequence[Number]) -> Dimensions:
        """The regions and strides that the pipeline proposes for regions wanted of its outputs."""
        slab = Slab(self._place, self._signature, dims)
        slab.fill({}, scalars)
        self._query_call(slab, scalars)
        return {index: slab.dimensions(index) for index in dims}

    def _lay_out(self, dims: Dimensions, modes: Mapping[int, Mode], scalars: Sequence[Number]) -> Dimensions:
        try:
            proposed = self.query(with_dense_strides(dims), scalars)
        except PipelineError as error:
            if error.reason != "host_is_null":
                raise
            # Compiled without bounds queries: what is not known is assumed dense.
            return {
                i: d if modes[i] is Mode.DIRECT else with_dense_strides({i: d})[i] for i, d in dims.items()
            }
        result: Dimensions = {}
        for index, found in dims.items():
            want = proposed[index]
            if modes[index] is Mode.DIRECT:
                result[index] = found
            elif modes[index] is Mode.STAGED:
                mins, extents = [d.min for d in found], [d.extent for d in found]
                result[index] = staged_dimensions(want, mins, extents)
            else:
                grown = self._covering(index, found, want)
                result[index] = staged_dimensions(want, [d.min for d in grown], [d.extent for d in grown])
        return result

    def _covering(
        self, index: int, asked: Sequence[Dimension], proposed: Sequence[Dimension]
    ) -> list[Dimension]:
        """The proposed region of a missing output, which may be larger than what was asked for."""
        for want, have in zip(asked, proposed, strict=True):
            if have.min > want.min or have.min + have.extent < want.min + want.extent:
                name = self._signature.arguments[index].name
                raise InvalidArgumentError(
                    f"{name} cannot be computed over {as_region(asked)}: the pipeline's constraints allow "
                    f"{as_region(proposed)}"
                )
        return list(proposed)

    def _check_size(self, buffer: BoundBuffer) -> None:
        size = buffer.argument.type.byte_length
        for dim in buffer.dims:
            size *= max(dim.extent, 0)
        if size > _MOST_BYTES:
            raise InvalidArgumentError(
                f"{buffer.argument.name} over {as_region(buffer.dims)} takes {size} bytes, the most is "
                f"{_MOST_BYTES}"
            )
