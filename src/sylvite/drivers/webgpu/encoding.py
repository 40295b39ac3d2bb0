"""Encoding commands: what a command buffer says, as passes and copies of one submission.

WebGPU's command buffers are used once, so they are encoded at every execution; what is costly to make, bind
groups and uniforms, is kept with the HAL's command buffer in a `Prepared`.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ...errors import InvalidArgumentError
from ...hal import Binding
from ...hal.command_buffer import check_fill, overlaps
from .executable import Pipeline, WebGpuExecutable
from .gpu import Gpu, round_up
from .kernels import Groups, Kernel, Slot
from .memory import GpuStorage, Pool, locate
from .timeline import Timeline
from .transfers import TransferKernels, group_count, range_words

__all__ = ["Encoding", "Prepared", "Region"]

_ARENA_BYTES: Final = 16 << 10
_KEPT_BIND_GROUPS: Final = 4096


class Region(NamedTuple):
    """Bytes of a buffer of the GPU."""

    buffer: Any
    offset: int
    byte_length: int

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.offset + self.byte_length

    def touches(self, other: Region) -> bool:
        """Whether they share a byte."""
        return self.buffer is other.buffer and self.offset < other.end and other.offset < self.end


class _Bound(NamedTuple):
    """A binding of a dispatch."""

    storage: GpuStorage
    region: Region
    writes: bool


class Uniforms:
    """Small constant blocks in uniform buffers. The same block is placed once.

    Args:
        gpu: whose memory.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._placed: dict[bytes, Region] = {}
        self._buffer: Any = None
        self._used = _ARENA_BYTES
        self._fresh: list[tuple[Region, bytes]] = []

    def place(self, data: bytes) -> Region:
        """Where these bytes are, from the next `flush` on."""
        region = self._placed.get(data)
        if region is None:
            size = round_up(len(data), 16)
            if self._used + size > _ARENA_BYTES:
                self._buffer = self._gpu.create_uniform(bytes(max(_ARENA_BYTES, size)))
                self._used = 0
            region = Region(self._buffer, self._used, size)
            self._used = round_up(self._used + size, self._gpu.offset_alignment)
            self._placed[data] = region
            self._fresh.append((region, data.ljust(size, b"\0")))
        return region

    def flush(self) -> None:
        """Upload what was placed since the last time."""
        for region, data in self._fresh:
            self._gpu.upload_bytes(region.buffer, region.offset, data)
        self._fresh.clear()


@dataclasses.dataclass(slots=True)
class Prepared:
    """What a HAL command buffer keeps between its executions."""

    uniforms: Uniforms
    bind_groups: dict[tuple[Any, ...], tuple[Any, Any]] = dataclasses.field(default_factory=dict)


def chunks(count: int, limit: int) -> Iterator[tuple[int, int]]:
    """First and number of the workgroups of each part that a dispatch is split into along one axis."""
    for begin in range(0, count, limit):
        yield begin, min(limit, count - begin)


class Encoding:
    """Commands being encoded, up to one submission or several. Used under the GPU's lock.

    Args:
        gpu: the device.
        pool: where temporary memory comes from.
        transfers: kernels for transfers.
        prepared: of the command buffer that is executed.
        timeline: times every pass, when somebody listens; each dispatch is a pass of its own then.
    """

    def __init__(
        self,
        gpu: Gpu,
        pool: Pool,
        transfers: TransferKernels,
        prepared: Prepared,
        timeline: Timeline | None = None,
    ) -> None:
        self._gpu = gpu
        self._pool = pool
        self._transfers = transfers
        self._prepared = prepared
        self._timeline = timeline
        self._encoder: Any = None
        self._pass: Any = None
        self._used: set[int] = set()
        self._temporary: list[tuple[tuple[Any, int], int]] = []
        self._fillers = 0
        self.kernels: dict[str, None] = {}
        self.written: dict[int, GpuStorage] = {}

    # -- submissions --------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be submitted."""
        return self._encoder is None

    def submit(self, what: str, *, marked: bool = False) -> Any:
        """Submit what was encoded; the mark of its end, if wanted.

        Raises:
            KernelError, OutOfMemoryError, DeviceLostError: see `Gpu.submit`.
        """
        self._prepared.uniforms.flush()
        encoder = self._copies()
        if self._timeline is not None:
            self._timeline.resolve(encoder)
        mark = self._gpu.mark(encoder) if marked else None
        self._encoder = None
        self._gpu.submit(encoder, what, kernels=list(self.kernels))
        self.release()
        return mark

    def release(self) -> None:
        """Give temporary memory back: whatever uses it next comes later in the queue."""
        for slot, capacity in self._temporary:
            self._pool.give(slot, capacity)
        self._temporary.clear()

    def _open(self) -> Any:
        if self._encoder is None:
            try:
                self._encoder = self._gpu.device.create_command_encoder()
            except Exception as error:
                raise self._gpu.translate(error, "a submission") from error
        return self._encoder

    def _copies(self) -> Any:
        """The encoder, outside of any pass."""
        encoder = self._open()
        if self._pass is not None:
            self._pass.end()
            self._pass = None
        return encoder

    def _compute(self) -> Any:
        """The pass, begun if there is none."""
        if self._pass is None:
            self._pass = self._open().begin_compute_pass()
        return self._pass

    def _begin_timed(self, timeline: Timeline, name: str, category: str, **attributes: object) -> None:
        """Begin a pass of its own."""
        writes = timeline.begin_pass(name, category, attributes)
        self._pass = self._copies().begin_compute_pass(timestamp_writes=writes)

    # -- memory -------------------------------------------------------------------------------------

    def _use(self, binding: Binding, *, writes: bool) -> _Bound:
        """Bring the storage of a binding up to date on the device, and note what will be written."""
        storage, offset = locate(binding.storage, binding.byte_offset)
        if storage.gpu is not self._gpu:
            raise InvalidArgumentError("the buffer is in memory of another device")
        if id(storage) not in self._used:
            storage.prepare()
            self._used.add(id(storage))
        if writes and binding.byte_length:
            storage.note_written(offset, offset + binding.byte_length)
            self.written[id(storage)] = storage
        return _Bound(storage, Region(storage.buffer, storage.offset + offset, binding.byte_length), writes)

    def _take(self, byte_length: int) -> Region:
        """Temporary memory until the submission."""
        slot, capacity = self._pool.take(byte_length)
        self._temporary.append((slot, capacity))
        return Region(*slot, byte_length)

    def _filler(self) -> Region:
        """Something to bind where nothing is: no two bindings may share it."""
        self._fillers = (self._fillers + 1) % self._gpu.filler_count
        return Region(self._gpu.filler, self._fillers * self._gpu.offset_alignment, 16)

    # -- transfers ----------------------------------------------------------------------------------

    def fill(self, target: Binding, pattern: bytes) -> int:
        """Repeat a pattern; the bytes written.

        Raises:
            InvalidArgumentError: the pattern does not divide the range.
        """
        check_fill(0, target.byte_length, pattern, what="fill target")
        region = self._use(target, writes=True).region
        if not region.byte_length:
            return 0
        if not any(pattern) and region.offset % 4 == 0 and region.byte_length % 4 == 0:
            self._copies().clear_buffer(region.buffer, region.offset, region.byte_length)
        else:
            bound, begin = self._aligned(region)
            words = range_words(begin, begin + region.byte_length, pattern=pattern)
            self._run_transfer(self._transfers.fill, words, bound, begin, region.byte_length)
        return region.byte_length

    def copy(self, source: Binding, target: Binding) -> int:
        """Copy between ranges; the bytes moved.

        Raises:
            InvalidArgumentError: the lengths differ or the ranges overlap.
        """
        if source.byte_length != target.byte_length:
            message = f"copy: {source.byte_length} source bytes do not fill {target.byte_length} target bytes"
            raise InvalidArgumentError(message)
        if overlaps(source, target):
            raise InvalidArgumentError("copy: source and target overlap")
        taken = self._use(source, writes=False).region
        self._move(taken, self._use(target, writes=True).region)
        return target.byte_length

    def update(self, data: bytes | memoryview, target: Binding) -> int:
        """Write host bytes in the order of commands; the bytes written.

        Raises:
            InvalidArgumentError: there are not as many bytes as the target has.
        """
        if len(data) != target.byte_length:
            raise InvalidArgumentError(
                f"update: {len(data)} bytes do not fill {target.byte_length} target bytes"
            )
        region = self._use(target, writes=True).region
        if not data:
            return 0
        taken = self._take(len(data))
        self._gpu.upload_bytes(taken.buffer, taken.offset, bytes(data))
        self._move(taken, region)
        return len(data)

    def _move(self, source: Region, target: Region) -> None:
        length = target.byte_length
        if not length:
            return
        is_whole = not (source.offset % 4 or target.offset % 4 or length % 4)
        if is_whole and source.buffer is not target.buffer:
            self._copies().copy_buffer_to_buffer(
                source.buffer, source.offset, target.buffer, target.offset, length
            )
            return
        bound_source, begin_source = self._aligned(source)
        bound_target, begin = self._aligned(target)
        if bound_source.touches(bound_target):
            temporary = self._take(length)
            self._move(source, temporary)
            self._move(temporary, target)
            return
        words = range_words(begin, begin + length, source=begin_source)
        self._run_transfer(self._transfers.copy, words, bound_target, begin, length, bound_source)

    def _aligned(self, region: Region) -> tuple[Region, int]:
        """A range that can be bound around a region, and where the region begins in it."""
        start = region.offset // self._gpu.offset_alignment * self._gpu.offset_alignment
        return Region(region.buffer, start, round_up(region.end, 4) - start), region.offset - start

    def _run_transfer(
        self,
        transfer: tuple[Any, Any],
        words: bytes,
        target: Region,
        begin: int,
        length: int,
        source: Region | None = None,
    ) -> None:
        pipeline, layout = transfer
        regions = {0: target, 1: self._prepared.uniforms.place(words)}
        if source is not None:
            regions[2] = source
        group = self._bind_group(pipeline, layout, regions, "transfer")
        if self._timeline is not None:
            name = "fill" if source is None else "copy"
            self._begin_timed(self._timeline, name, "transfer", bytes=length)
        compute = self._compute()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(group_count(begin, begin + length))

    # -- dispatches ---------------------------------------------------------------------------------

    def dispatch(
        self,
        executable: WebGpuExecutable,
        ordinal: int,
        counts: tuple[int, int, int],
        constants: Sequence[int],
        bindings: Sequence[Binding],
    ) -> None:
        """Run a kernel over a grid.

        Raises:
            InvalidArgumentError: it cannot be bound or dispatched; names the kernel.
            KernelError: the implementation of WebGPU refuses the kernel.
            OutOfMemoryError, DeviceLostError
        """
        kernel = executable.kernels[ordinal]
        name = kernel.export.name
        self.kernels[name] = None
        bound = [
            self._use(binding, writes=writes)
            for binding, writes in zip(bindings, kernel.writes(), strict=True)
        ]
        regions, back = self._bindable(bound, name)
        groups = self._merged(kernel, bound, regions)
        pipeline = executable.pipeline(ordinal, groups)
        resources = self._resources(pipeline, regions)
        if self._timeline is not None:
            length = sum(binding.byte_length for binding in bindings)
            self._begin_timed(self._timeline, name, "dispatch", workgroups=math.prod(counts), bytes=length)
        self._run_grid(pipeline, resources, counts, constants, name)
        for temporary, region in back:
            self._move(temporary, region)

    def _bindable(
        self, bound: Sequence[_Bound], name: str
    ) -> tuple[list[Region], list[tuple[Region, Region]]]:
        """A range to bind for each binding; and copies to make afterwards, of those that WebGPU cannot bind
        where they are because their offset is not aligned."""
        regions, back = [], []
        limit = self._gpu.limits["max-storage-buffer-binding-size"]
        for index, (_, region, writes) in enumerate(bound):
            if region.byte_length > limit:
                message = (
                    f"kernel {name}, binding {index}: {region.byte_length} bytes are more than the {limit} "
                    f"that {self._gpu.adapter_name} binds (limit max-storage-buffer-binding-size)"
                )
                raise InvalidArgumentError(message)
            if not region.byte_length:
                region = self._filler()
            elif region.offset % self._gpu.offset_alignment:
                temporary = self._take(region.byte_length)
                self._move(region, temporary)
                if writes:
                    back.append((temporary, region))
                region = temporary
            regions.append(region)
        return regions, back

    def _merged(self, kernel: Kernel, bound: Sequence[_Bound], regions: list[Region]) -> Groups:
        """Bindings that overlap and are to be one. Where they cannot be, those that are only read are bound
        to a copy: what a kernel reads while it writes the same bytes elsewhere is not defined anyway."""
        groups: list[list[int]] = []
        for index, region in enumerate(regions):
            touched = [group for group in groups if any(regions[at].touches(region) for at in group)]
            if not touched:
                groups.append([index])
            elif kernel.has_variants and len(touched) == 1 and regions[touched[0][0]].offset == region.offset:
                touched[0].append(index)
            elif not bound[index].writes:
                regions[index] = self._copy_of(region)
                groups.append([index])
            else:
                for group in touched:
                    self._separate(kernel, bound, regions, group, region)
                groups.append([index])
        return tuple(tuple(group) for group in groups if len(group) > 1)

    def _separate(
        self, kernel: Kernel, bound: Sequence[_Bound], regions: list[Region], group: list[int], region: Region
    ) -> None:
        """Bind what only reads in a group to a copy, so that nothing of it overlaps a region."""
        if any(bound[at].writes and regions[at].touches(region) for at in group):
            name = kernel.export.name
            raise InvalidArgumentError(f"kernel {name} writes through two bindings that overlap in part")
        for at in group:
            if not bound[at].writes:
                regions[at] = self._copy_of(regions[at])

    def _copy_of(self, region: Region) -> Region:
        temporary = self._take(region.byte_length)
        self._move(region, temporary)
        return temporary

    @staticmethod
    def _resources(pipeline: Pipeline, regions: Sequence[Region]) -> dict[Slot, Region]:
        """What goes to each slot."""
        resources: dict[Slot, Region] = {}
        for slot, bound in zip(pipeline.shader.slots, regions, strict=True):
            if slot is None:
                continue
            # Runtime arrays of vectors want whole elements; there is room for that.
            region = bound._replace(byte_length=round_up(bound.byte_length, 16))
            known = resources.get(slot)
            if known is None or known.byte_length < region.byte_length:
                resources[slot] = region
        return resources

    def _run_grid(
        self,
        pipeline: Pipeline,
        resources: dict[Slot, Region],
        counts: tuple[int, int, int],
        constants: Sequence[int],
        name: str,
    ) -> None:
        limit = self._gpu.limits["max-compute-workgroups-per-dimension"]
        shader = pipeline.shader
        if max(counts) > limit and not shader.has_grid:
            raise InvalidArgumentError(
                f"kernel {name}: {counts} workgroups are more than the {limit} per dimension that "
                f"{self._gpu.adapter_name} dispatches (limit max-compute-workgroups-per-dimension)"
            )
        fixed = [*constants[: shader.constant_count], *shader.literals]
        for z, depth in chunks(counts[2], limit):
            for y, height in chunks(counts[1], limit):
                for x, width in chunks(counts[0], limit):
                    given = resources
                    if shader.uniform_slot is not None:
                        words = [*fixed, x, y, z, *counts] if shader.has_grid else fixed
                        data = struct.pack(f"<{len(words)}I", *words).ljust(shader.uniform_byte_length, b"\0")
                        given = {**resources, shader.uniform_slot: self._prepared.uniforms.place(data)}
                    compute = self._compute()
                    compute.set_pipeline(pipeline.pipeline)
                    for group, layout in enumerate(pipeline.layouts):
                        owned = {slot[1]: region for slot, region in given.items() if slot[0] == group}
                        compute.set_bind_group(group, self._bind_group(pipeline, layout, owned, name))
                    compute.dispatch_workgroups(width, height, depth)

    def _bind_group(self, owner: Any, layout: Any, regions: dict[int, Region], name: str) -> Any:
        kept = self._prepared.bind_groups
        key = (id(layout), *((slot, id(region.buffer), *region[1:]) for slot, region in regions.items()))
        known = kept.get(key)
        if known is not None:
            return known[0]
        entries = [
            {
                "binding": slot,
                "resource": {"buffer": region.buffer, "offset": region.offset, "size": region.byte_length},
            }
            for slot, region in regions.items()
        ]
        try:
            made = self._gpu.device.create_bind_group(label=name, layout=layout, entries=entries)
        except Exception as error:
            raise self._gpu.translate(error, f"the bindings of kernel {name}", kernel=name) from error
        if len(kept) >= _KEPT_BIND_GROUPS:
            self._gpu.discard(kept.copy())
            kept.clear()
        # The buffers are kept, for the numbers in the key to go on meaning them.
        kept[key] = made, (owner, layout, list(regions.values()))
        return made
