"""Atomic memory instructions. Source: threads proposal, binary format.

Columns: opcode bytes (hexadecimal; a prefix byte first where there is one), name, immediates, signature.
A line with one upper-case word starts the instructions of that `Feature` (``MVP``: of none).
"""

from __future__ import annotations

__all__ = ["ATOMIC"]

ATOMIC = """\
THREADS
fe 00  | memory.atomic.notify                  | memarg:2          | address i32 -> i32
fe 01  | memory.atomic.wait32                  | memarg:2          | address i32 i64 -> i32
fe 02  | memory.atomic.wait64                  | memarg:3          | address i64 i64 -> i32
fe 03  | atomic.fence                          | zero              | ->
fe 10  | i32.atomic.load                       | memarg:2          | address -> i32
fe 11  | i64.atomic.load                       | memarg:3          | address -> i64
fe 12  | i32.atomic.load8_u                    | memarg:0          | address -> i32
fe 13  | i32.atomic.load16_u                   | memarg:1          | address -> i32
fe 14  | i64.atomic.load8_u                    | memarg:0          | address -> i64
fe 15  | i64.atomic.load16_u                   | memarg:1          | address -> i64
fe 16  | i64.atomic.load32_u                   | memarg:2          | address -> i64
fe 17  | i32.atomic.store                      | memarg:2          | address i32 ->
fe 18  | i64.atomic.store                      | memarg:3          | address i64 ->
fe 19  | i32.atomic.store8                     | memarg:0          | address i32 ->
fe 1a  | i32.atomic.store16                    | memarg:1          | address i32 ->
fe 1b  | i64.atomic.store8                     | memarg:0          | address i64 ->
fe 1c  | i64.atomic.store16                    | memarg:1          | address i64 ->
fe 1d  | i64.atomic.store32                    | memarg:2          | address i64 ->
fe 1e  | i32.atomic.rmw.add                    | memarg:2          | address i32 -> i32
fe 1f  | i64.atomic.rmw.add                    | memarg:3          | address i64 -> i64
fe 20  | i32.atomic.rmw8.add_u                 | memarg:0          | address i32 -> i32
fe 21  | i32.atomic.rmw16.add_u                | memarg:1          | address i32 -> i32
fe 22  | i64.atomic.rmw8.add_u                 | memarg:0          | address i64 -> i64
fe 23  | i64.atomic.rmw16.add_u                | memarg:1          | address i64 -> i64
fe 24  | i64.atomic.rmw32.add_u                | memarg:2          | address i64 -> i64
fe 25  | i32.atomic.rmw.sub                    | memarg:2          | address i32 -> i32
fe 26  | i64.atomic.rmw.sub                    | memarg:3          | address i64 -> i64
fe 27  | i32.atomic.rmw8.sub_u                 | memarg:0          | address i32 -> i32
fe 28  | i32.atomic.rmw16.sub_u                | memarg:1          | address i32 -> i32
fe 29  | i64.atomic.rmw8.sub_u                 | memarg:0          | address i64 -> i64
fe 2a  | i64.atomic.rmw16.sub_u                | memarg:1          | address i64 -> i64
fe 2b  | i64.atomic.rmw32.sub_u                | memarg:2          | address i64 -> i64
fe 2c  | i32.atomic.rmw.and                    | memarg:2          | address i32 -> i32
fe 2d  | i64.atomic.rmw.and                    | memarg:3          | address i64 -> i64
fe 2e  | i32.atomic.rmw8.and_u                 | memarg:0          | address i32 -> i32
fe 2f  | i32.atomic.rmw16.and_u                | memarg:1          | address i32 -> i32
fe 30  | i64.atomic.rmw8.and_u                 | memarg:0          | address i64 -> i64
fe 31  | i64.atomic.rmw16.and_u                | memarg:1          | address i64 -> i64
fe 32  | i64.atomic.rmw32.and_u                | memarg:2          | address i64 -> i64
fe 33  | i32.atomic.rmw.or                     | memarg:2          | address i32 -> i32
fe 34  | i64.atomic.rmw.or                     | memarg:3          | address i64 -> i64
fe 35  | i32.atomic.rmw8.or_u                  | memarg:0          | address i32 -> i32
fe 36  | i32.atomic.rmw16.or_u                 | memarg:1          | address i32 -> i32
fe 37  | i64.atomic.rmw8.or_u                  | memarg:0          | address i64 -> i64
fe 38  | i64.atomic.rmw16.or_u                 | memarg:1          | address i64 -> i64
fe 39  | i64.atomic.rmw32.or_u                 | memarg:2          | address i64 -> i64
fe 3a  | i32.atomic.rmw.xor                    | memarg:2          | address i32 -> i32
fe 3b  | i64.atomic.rmw.xor                    | memarg:3          | address i64 -> i64
fe 3c  | i32.atomic.rmw8.xor_u                 | memarg:0          | address i32 -> i32
fe 3d  | i32.atomic.rmw16.xor_u                | memarg:1          | address i32 -> i32
fe 3e  | i64.atomic.rmw8.xor_u                 | memarg:0          | address i64 -> i64
fe 3f  | i64.atomic.rmw16.xor_u                | memarg:1          | address i64 -> i64
fe 40  | i64.atomic.rmw32.xor_u                | memarg:2          | address i64 -> i64
fe 41  | i32.atomic.rmw.xchg                   | memarg:2          | address i32 -> i32
fe 42  | i64.atomic.rmw.xchg                   | memarg:3          | address i64 -> i64
fe 43  | i32.atomic.rmw8.xchg_u                | memarg:0          | address i32 -> i32
fe 44  | i32.atomic.rmw16.xchg_u               | memarg:1          | address i32 -> i32
fe 45  | i64.atomic.rmw8.xchg_u                | memarg:0          | address i64 -> i64
fe 46  | i64.atomic.rmw16.xchg_u               | memarg:1          | address i64 -> i64
fe 47  | i64.atomic.rmw32.xchg_u               | memarg:2          | address i64 -> i64
fe 48  | i32.atomic.rmw.cmpxchg                | memarg:2          | address i32 i32 -> i32
fe 49  | i64.atomic.rmw.cmpxchg                | memarg:3          | address i64 i64 -> i64
fe 4a  | i32.atomic.rmw8.cmpxchg_u             | memarg:0          | address i32 i32 -> i32
fe 4b  | i32.atomic.rmw16.cmpxchg_u            | memarg:1          | address i32 i32 -> i32
fe 4c  | i64.atomic.rmw8.cmpxchg_u             | memarg:0          | address i64 i64 -> i64
fe 4d  | i64.atomic.rmw16.cmpxchg_u            | memarg:1          | address i64 i64 -> i64
fe 4e  | i64.atomic.rmw32.cmpxchg_u            | memarg:2          | address i64 i64 -> i64
"""
