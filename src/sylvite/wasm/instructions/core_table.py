"""Instructions without a vector or an atomic operand. Source: core specification, 5.4.

Columns: opcode bytes (hexadecimal; a prefix byte first where there is one), name, immediates, signature.
A line with one upper-case word starts the instructions of that `Feature` (``MVP``: of none).
"""

from __future__ import annotations

__all__ = ["CORE"]

CORE = """\
MVP
00     | unreachable                           | -                 | *
01     | nop                                   | -                 | ->
02     | block                                 | blocktype         | *
03     | loop                                  | blocktype         | *
04     | if                                    | blocktype         | *
05     | else                                  | -                 | *
0b     | end                                   | -                 | *
0c     | br                                    | label             | *
0d     | br_if                                 | label             | *
0e     | br_table                              | labels            | *
0f     | return                                | -                 | *
10     | call                                  | function          | *
11     | call_indirect                         | type table        | *
1a     | drop                                  | -                 | *
1b     | select                                | -                 | *
20     | local.get                             | local             | *
21     | local.set                             | local             | *
22     | local.tee                             | local             | *
23     | global.get                            | global            | *
24     | global.set                            | global            | *
28     | i32.load                              | memarg:2          | address -> i32
29     | i64.load                              | memarg:3          | address -> i64
2a     | f32.load                              | memarg:2          | address -> f32
2b     | f64.load                              | memarg:3          | address -> f64
2c     | i32.load8_s                           | memarg:0          | address -> i32
2d     | i32.load8_u                           | memarg:0          | address -> i32
2e     | i32.load16_s                          | memarg:1          | address -> i32
2f     | i32.load16_u                          | memarg:1          | address -> i32
30     | i64.load8_s                           | memarg:0          | address -> i64
31     | i64.load8_u                           | memarg:0          | address -> i64
32     | i64.load16_s                          | memarg:1          | address -> i64
33     | i64.load16_u                          | memarg:1          | address -> i64
34     | i64.load32_s                          | memarg:2          | address -> i64
35     | i64.load32_u                          | memarg:2          | address -> i64
36     | i32.store                             | memarg:2          | address i32 ->
37     | i64.store                             | memarg:3          | address i64 ->
38     | f32.store                             | memarg:2          | address f32 ->
39     | f64.store                             | memarg:3          | address f64 ->
3a     | i32.store8                            | memarg:0          | address i32 ->
3b     | i32.store16                           | memarg:1          | address i32 ->
3c     | i64.store8                            | memarg:0          | address i64 ->
3d     | i64.store16                           | memarg:1          | address i64 ->
3e     | i64.store32                           | memarg:2          | address i64 ->
3f     | memory.size                           | memory            | -> address
40     | memory.grow                           | memory            | address -> address
41     | i32.const                             | i32               | -> i32
42     | i64.const                             | i64               | -> i64
43     | f32.const                             | f32               | -> f32
44     | f64.const                             | f64               | -> f64
45     | i32.eqz                               | -                 | i32 -> i32
46     | i32.eq                                | -                 | i32 i32 -> i32
47     | i32.ne                                | -                 | i32 i32 -> i32
48     | i32.lt_s                              | -                 | i32 i32 -> i32
49     | i32.lt_u                              | -                 | i32 i32 -> i32
4a     | i32.gt_s                              | -                 | i32 i32 -> i32
4b     | i32.gt_u                              | -                 | i32 i32 -> i32
4c     | i32.le_s                              | -                 | i32 i32 -> i32
4d     | i32.le_u                              | -                 | i32 i32 -> i32
4e     | i32.ge_s                              | -                 | i32 i32 -> i32
4f     | i32.ge_u                              | -                 | i32 i32 -> i32
50     | i64.eqz                               | -                 | i64 -> i32
51     | i64.eq                                | -                 | i64 i64 -> i32
52     | i64.ne                                | -                 | i64 i64 -> i32
53     | i64.lt_s                              | -                 | i64 i64 -> i32
54     | i64.lt_u                              | -                 | i64 i64 -> i32
55     | i64.gt_s                              | -                 | i64 i64 -> i32
56     | i64.gt_u                              | -                 | i64 i64 -> i32
57     | i64.le_s                              | -                 | i64 i64 -> i32
58     | i64.le_u                              | -                 | i64 i64 -> i32
59     | i64.ge_s                              | -                 | i64 i64 -> i32
5a     | i64.ge_u                              | -                 | i64 i64 -> i32
5b     | f32.eq                                | -                 | f32 f32 -> i32
5c     | f32.ne                                | -                 | f32 f32 -> i32
5d     | f32.lt                                | -                 | f32 f32 -> i32
5e     | f32.gt                                | -                 | f32 f32 -> i32
5f     | f32.le                                | -                 | f32 f32 -> i32
60     | f32.ge                                | -                 | f32 f32 -> i32
61     | f64.eq                                | -                 | f64 f64 -> i32
62     | f64.ne                                | -                 | f64 f64 -> i32
63     | f64.lt                                | -                 | f64 f64 -> i32
64     | f64.gt                                | -                 | f64 f64 -> i32
65     | f64.le                                | -                 | f64 f64 -> i32
66     | f64.ge                                | -                 | f64 f64 -> i32
67     | i32.clz                               | -                 | i32 -> i32
68     | i32.ctz                               | -                 | i32 -> i32
69     | i32.popcnt                            | -                 | i32 -> i32
6a     | i32.add                               | -                 | i32 i32 -> i32
6b     | i32.sub                               | -                 | i32 i32 -> i32
6c     | i32.mul                               | -                 | i32 i32 -> i32
6d     | i32.div_s                             | -                 | i32 i32 -> i32
6e     | i32.div_u                             | -                 | i32 i32 -> i32
6f     | i32.rem_s                             | -                 | i32 i32 -> i32
70     | i32.rem_u                             | -                 | i32 i32 -> i32
71     | i32.and                               | -                 | i32 i32 -> i32
72     | i32.or                                | -                 | i32 i32 -> i32
73     | i32.xor                               | -                 | i32 i32 -> i32
74     | i32.shl                               | -                 | i32 i32 -> i32
75     | i32.shr_s                             | -                 | i32 i32 -> i32
76     | i32.shr_u                             | -                 | i32 i32 -> i32
77     | i32.rotl                              | -                 | i32 i32 -> i32
78     | i32.rotr                              | -                 | i32 i32 -> i32
79     | i64.clz                               | -                 | i64 -> i64
7a     | i64.ctz                               | -                 | i64 -> i64
7b     | i64.popcnt                            | -                 | i64 -> i64
7c     | i64.add                               | -                 | i64 i64 -> i64
7d     | i64.sub                               | -                 | i64 i64 -> i64
7e     | i64.mul                               | -                 | i64 i64 -> i64
7f     | i64.div_s                             | -                 | i64 i64 -> i64
80     | i64.div_u                             | -                 | i64 i64 -> i64
81     | i64.rem_s                             | -                 | i64 i64 -> i64
82     | i64.rem_u                             | -                 | i64 i64 -> i64
83     | i64.and                               | -                 | i64 i64 -> i64
84     | i64.or                                | -                 | i64 i64 -> i64
85     | i64.xor                               | -                 | i64 i64 -> i64
86     | i64.shl                               | -                 | i64 i64 -> i64
87     | i64.shr_s                             | -                 | i64 i64 -> i64
88     | i64.shr_u                             | -                 | i64 i64 -> i64
89     | i64.rotl                              | -                 | i64 i64 -> i64
8a     | i64.rotr                              | -                 | i64 i64 -> i64
8b     | f32.abs                               | -                 | f32 -> f32
8c     | f32.neg                               | -                 | f32 -> f32
8d     | f32.ceil                              | -                 | f32 -> f32
8e     | f32.floor                             | -                 | f32 -> f32
8f     | f32.trunc                             | -                 | f32 -> f32
90     | f32.nearest                           | -                 | f32 -> f32
91     | f32.sqrt                              | -                 | f32 -> f32
92     | f32.add                               | -                 | f32 f32 -> f32
93     | f32.sub                               | -                 | f32 f32 -> f32
94     | f32.mul                               | -                 | f32 f32 -> f32
95     | f32.div                               | -                 | f32 f32 -> f32
96     | f32.min                               | -                 | f32 f32 -> f32
97     | f32.max                               | -                 | f32 f32 -> f32
98     | f32.copysign                          | -                 | f32 f32 -> f32
99     | f64.abs                               | -                 | f64 -> f64
9a     | f64.neg                               | -                 | f64 -> f64
9b     | f64.ceil                              | -                 | f64 -> f64
9c     | f64.floor                             | -                 | f64 -> f64
9d     | f64.trunc                             | -                 | f64 -> f64
9e     | f64.nearest                           | -                 | f64 -> f64
9f     | f64.sqrt                              | -                 | f64 -> f64
a0     | f64.add                               | -                 | f64 f64 -> f64
a1     | f64.sub                               | -                 | f64 f64 -> f64
a2     | f64.mul                               | -                 | f64 f64 -> f64
a3     | f64.div                               | -                 | f64 f64 -> f64
a4     | f64.min                               | -                 | f64 f64 -> f64
a5     | f64.max                               | -                 | f64 f64 -> f64
a6     | f64.copysign                          | -                 | f64 f64 -> f64
a7     | i32.wrap_i64                          | -                 | i64 -> i32
a8     | i32.trunc_f32_s                       | -                 | f32 -> i32
a9     | i32.trunc_f32_u                       | -                 | f32 -> i32
aa     | i32.trunc_f64_s                       | -                 | f64 -> i32
ab     | i32.trunc_f64_u                       | -                 | f64 -> i32
ac     | i64.extend_i32_s                      | -                 | i32 -> i64
ad     | i64.extend_i32_u                      | -                 | i32 -> i64
ae     | i64.trunc_f32_s                       | -                 | f32 -> i64
af     | i64.trunc_f32_u                       | -                 | f32 -> i64
b0     | i64.trunc_f64_s                       | -                 | f64 -> i64
b1     | i64.trunc_f64_u                       | -                 | f64 -> i64
b2     | f32.convert_i32_s                     | -                 | i32 -> f32
b3     | f32.convert_i32_u                     | -                 | i32 -> f32
b4     | f32.convert_i64_s                     | -                 | i64 -> f32
b5     | f32.convert_i64_u                     | -                 | i64 -> f32
b6     | f32.demote_f64                        | -                 | f64 -> f32
b7     | f64.convert_i32_s                     | -                 | i32 -> f64
b8     | f64.convert_i32_u                     | -                 | i32 -> f64
b9     | f64.convert_i64_s                     | -                 | i64 -> f64
ba     | f64.convert_i64_u                     | -                 | i64 -> f64
bb     | f64.promote_f32                       | -                 | f32 -> f64
bc     | i32.reinterpret_f32                   | -                 | f32 -> i32
bd     | i64.reinterpret_f64                   | -                 | f64 -> i64
be     | f32.reinterpret_i32                   | -                 | i32 -> f32
bf     | f64.reinterpret_i64                   | -                 | i64 -> f64
SIGN_EXTENSION
c0     | i32.extend8_s                         | -                 | i32 -> i32
c1     | i32.extend16_s                        | -                 | i32 -> i32
c2     | i64.extend8_s                         | -                 | i64 -> i64
c3     | i64.extend16_s                        | -                 | i64 -> i64
c4     | i64.extend32_s                        | -                 | i64 -> i64
REFERENCE_TYPES
1c     | select_t                              | valtypes          | *
25     | table.get                             | table             | *
26     | table.set                             | table             | *
d0     | ref.null                              | heaptype          | *
d1     | ref.is_null                           | -                 | *
d2     | ref.func                              | function          | -> funcref
fc 0f  | table.grow                            | table             | *
fc 10  | table.size                            | table             | *
fc 11  | table.fill                            | table             | *
SATURATING
fc 00  | i32.trunc_sat_f32_s                   | -                 | f32 -> i32
fc 01  | i32.trunc_sat_f32_u                   | -                 | f32 -> i32
fc 02  | i32.trunc_sat_f64_s                   | -                 | f64 -> i32
fc 03  | i32.trunc_sat_f64_u                   | -                 | f64 -> i32
fc 04  | i64.trunc_sat_f32_s                   | -                 | f32 -> i64
fc 05  | i64.trunc_sat_f32_u                   | -                 | f32 -> i64
fc 06  | i64.trunc_sat_f64_s                   | -                 | f64 -> i64
fc 07  | i64.trunc_sat_f64_u                   | -                 | f64 -> i64
BULK_MEMORY
fc 08  | memory.init                           | data memory       | *
fc 09  | data.drop                             | data              | ->
fc 0a  | memory.copy                           | memory memory     | *
fc 0b  | memory.fill                           | memory            | address i32 address ->
fc 0c  | table.init                            | element table     | *
fc 0d  | elem.drop                             | element           | ->
fc 0e  | table.copy                            | table table       | *
TAIL_CALL
12     | return_call                           | function          | *
13     | return_call_indirect                  | type table        | *
EXCEPTIONS
08     | throw                                 | tag               | *
0a     | throw_ref                             | -                 | *
1f     | try_table                             | blocktype catches | *
WIDE_ARITHMETIC
fc 13  | i64.add128                            | -                 | i64 i64 i64 i64 -> i64 i64
fc 14  | i64.sub128                            | -                 | i64 i64 i64 i64 -> i64 i64
fc 15  | i64.mul_wide_s                        | -                 | i64 i64 -> i64 i64
fc 16  | i64.mul_wide_u                        | -                 | i64 i64 -> i64 i64
"""
