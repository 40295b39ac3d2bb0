"""Every import of the ``hal`` module, version 7: name, calling convention, function.

Source: IREE's ``hal.imports.mlir``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import buffers, commands, devices, fences

__all__ = ["TABLE", "VERSION"]

VERSION = 7

TABLE: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("ex.file.from_memory", "rIirIIi_r", devices.ex_file_from_memory),
    ("allocator.select", "iiICrID_rI", buffers.allocator_select),
    ("allocator.allocate", "rIiiI_r", buffers.allocator_allocate),
    ("allocator.import", "riIiirII_r", buffers.allocator_import),
    ("buffer.assert", "rrrIii_v", buffers.buffer_assert),
    ("buffer.allocation.preserve", "r_v", buffers.buffer_allocation_preserve),
    ("buffer.allocation.discard", "r_i", buffers.buffer_allocation_discard),
    ("buffer.allocation.is_terminal", "r_i", buffers.buffer_allocation_is_terminal),
    ("buffer.subspan", "rII_r", buffers.buffer_subspan),
    ("buffer.length", "r_I", buffers.buffer_length),
    ("buffer.load", "rIi_i", buffers.buffer_load),
    ("buffer.store", "irIi_v", buffers.buffer_store),
    ("buffer_view.create", "rIIiiCID_r", buffers.buffer_view_create),
    ("buffer_view.assert", "rriiCID_v", buffers.buffer_view_assert),
    ("buffer_view.buffer", "r_r", buffers.buffer_view_buffer),
    ("buffer_view.element_type", "r_i", buffers.buffer_view_element_type),
    ("buffer_view.encoding_type", "r_i", buffers.buffer_view_encoding_type),
    ("buffer_view.rank", "r_i", buffers.buffer_view_rank),
    ("buffer_view.dim", "ri_I", buffers.buffer_view_dim),
    ("buffer_view.trace", "rCrD_v", buffers.buffer_view_trace),
    ("channel.create", "rIIrrii_r", commands.collectives_refused),
    ("channel.split", "riiI_r", commands.collectives_refused),
    ("channel.rank_and_count", "r_ii", commands.collectives_refused),
    ("command_buffer.create", "riiIi_r", commands.command_buffer_create),
    ("command_buffer.finalize", "r_v", commands.command_buffer_finalize),
    ("command_buffer.begin_debug_group", "rr_v", commands.command_buffer_begin_debug_group),
    ("command_buffer.end_debug_group", "r_v", commands.command_buffer_end_debug_group),
    ("command_buffer.execution_barrier", "riiI_v", commands.command_buffer_execution_barrier),
    ("command_buffer.advise_buffer", "rrIIIi_v", commands.command_buffer_advise_buffer),
    ("command_buffer.fill_buffer", "rrIIiIiI_v", commands.command_buffer_fill_buffer),
    ("command_buffer.update_buffer", "rrIrIIiI_v", commands.command_buffer_update_buffer),
    ("command_buffer.copy_buffer", "riirIrIII_v", commands.command_buffer_copy_buffer),
    ("command_buffer.collective", "rriiiirrIIIII_v", commands.collectives_refused),
    ("command_buffer.dispatch", "rrIiiiICiDCiirIID_v", commands.command_buffer_dispatch),
    ("command_buffer.dispatch.indirect", "rrIirIICiDCiirIID_v", commands.command_buffer_dispatch_indirect),
    ("device.allocator", "r_r", devices.device_allocator),
    ("device.query.i64", "rrr_iI", devices.device_query_i64),
    ("device.queue.alloca", "rIrrIiiII_r", devices.device_queue_alloca),
    ("device.queue.dealloca", "rIrrrI_v", devices.device_queue_dealloca),
    ("device.queue.fill", "rIrrrIIIiI_v", devices.device_queue_fill),
    ("device.queue.update", "rIrrrIrIII_v", devices.device_queue_update),
    ("device.queue.copy", "rIrrrIrIII_v", devices.device_queue_copy),
    ("device.queue.read", "rIrrrIrIII_v", devices.device_queue_read),
    ("device.queue.write", "rIrrrIrIII_v", devices.device_queue_write),
    ("device.queue.barrier", "rIrrI_v", devices.device_queue_barrier),
    ("device.queue.execute", "rIrrrI_v", devices.device_queue_execute),
    ("device.queue.execute.indirect", "rIrrrICrIID_v", devices.device_queue_execute_indirect),
    ("device.queue.flush", "rI_v", devices.device_queue_flush),
    ("devices.count", "v_i", devices.devices_count),
    ("devices.get", "i_r", devices.devices_get),
    ("executable.create", "rIrrr_r", commands.executable_create),
    ("executable.lookup.function", "rr_I", commands.executable_lookup_function),
    ("fence.create", "rI_r", fences.fence_create),
    ("fence.join", "ICrD_r", fences.fence_join),
    ("fence.query", "r_i", fences.fence_query),
    ("fence.signal", "r_v", fences.fence_signal),
    ("fence.fail", "ri_v", fences.fence_fail),
    ("fence.await", "iICrD_i", fences.fence_await),
)
