"""SIMD and relaxed SIMD instructions. Source: core specification, 5.4.8.

Columns: opcode bytes (hexadecimal; a prefix byte first where there is one), name, immediates, signature.
A line with one upper-case word starts the instructions of that `Feature` (``MVP``: of none).
"""

from __future__ import annotations

__all__ = ["VECTOR"]

VECTOR = """\
SIMD
fd 00  | v128.load                             | memarg:4          | address -> v128
fd 01  | v128.load8x8_s                        | memarg:3          | address -> v128
fd 02  | v128.load8x8_u                        | memarg:3          | address -> v128
fd 03  | v128.load16x4_s                       | memarg:3          | address -> v128
fd 04  | v128.load16x4_u                       | memarg:3          | address -> v128
fd 05  | v128.load32x2_s                       | memarg:3          | address -> v128
fd 06  | v128.load32x2_u                       | memarg:3          | address -> v128
fd 07  | v128.load8_splat                      | memarg:0          | address -> v128
fd 08  | v128.load16_splat                     | memarg:1          | address -> v128
fd 09  | v128.load32_splat                     | memarg:2          | address -> v128
fd 0a  | v128.load64_splat                     | memarg:3          | address -> v128
fd 0b  | v128.store                            | memarg:4          | address v128 ->
fd 0c  | v128.const                            | v128              | -> v128
fd 0d  | i8x16.shuffle                         | shuffle           | v128 v128 -> v128
fd 0e  | i8x16.swizzle                         | -                 | v128 v128 -> v128
fd 0f  | i8x16.splat                           | -                 | i32 -> v128
fd 10  | i16x8.splat                           | -                 | i32 -> v128
fd 11  | i32x4.splat                           | -                 | i32 -> v128
fd 12  | i64x2.splat                           | -                 | i64 -> v128
fd 13  | f32x4.splat                           | -                 | f32 -> v128
fd 14  | f64x2.splat                           | -                 | f64 -> v128
fd 15  | i8x16.extract_lane_s                  | lane:16           | v128 -> i32
fd 16  | i8x16.extract_lane_u                  | lane:16           | v128 -> i32
fd 17  | i8x16.replace_lane                    | lane:16           | v128 i32 -> v128
fd 18  | i16x8.extract_lane_s                  | lane:8            | v128 -> i32
fd 19  | i16x8.extract_lane_u                  | lane:8            | v128 -> i32
fd 1a  | i16x8.replace_lane                    | lane:8            | v128 i32 -> v128
fd 1b  | i32x4.extract_lane                    | lane:4            | v128 -> i32
fd 1c  | i32x4.replace_lane                    | lane:4            | v128 i32 -> v128
fd 1d  | i64x2.extract_lane                    | lane:2            | v128 -> i64
fd 1e  | i64x2.replace_lane                    | lane:2            | v128 i64 -> v128
fd 1f  | f32x4.extract_lane                    | lane:4            | v128 -> f32
fd 20  | f32x4.replace_lane                    | lane:4            | v128 f32 -> v128
fd 21  | f64x2.extract_lane                    | lane:2            | v128 -> f64
fd 22  | f64x2.replace_lane                    | lane:2            | v128 f64 -> v128
fd 23  | i8x16.eq                              | -                 | v128 v128 -> v128
fd 24  | i8x16.ne                              | -                 | v128 v128 -> v128
fd 25  | i8x16.lt_s                            | -                 | v128 v128 -> v128
fd 26  | i8x16.lt_u                            | -                 | v128 v128 -> v128
fd 27  | i8x16.gt_s                            | -                 | v128 v128 -> v128
fd 28  | i8x16.gt_u                            | -                 | v128 v128 -> v128
fd 29  | i8x16.le_s                            | -                 | v128 v128 -> v128
fd 2a  | i8x16.le_u                            | -                 | v128 v128 -> v128
fd 2b  | i8x16.ge_s                            | -                 | v128 v128 -> v128
fd 2c  | i8x16.ge_u                            | -                 | v128 v128 -> v128
fd 2d  | i16x8.eq                              | -                 | v128 v128 -> v128
fd 2e  | i16x8.ne                              | -                 | v128 v128 -> v128
fd 2f  | i16x8.lt_s                            | -                 | v128 v128 -> v128
fd 30  | i16x8.lt_u                            | -                 | v128 v128 -> v128
fd 31  | i16x8.gt_s                            | -                 | v128 v128 -> v128
fd 32  | i16x8.gt_u                            | -                 | v128 v128 -> v128
fd 33  | i16x8.le_s                            | -                 | v128 v128 -> v128
fd 34  | i16x8.le_u                            | -                 | v128 v128 -> v128
fd 35  | i16x8.ge_s                            | -                 | v128 v128 -> v128
fd 36  | i16x8.ge_u                            | -                 | v128 v128 -> v128
fd 37  | i32x4.eq                              | -                 | v128 v128 -> v128
fd 38  | i32x4.ne                              | -                 | v128 v128 -> v128
fd 39  | i32x4.lt_s                            | -                 | v128 v128 -> v128
fd 3a  | i32x4.lt_u                            | -                 | v128 v128 -> v128
fd 3b  | i32x4.gt_s                            | -                 | v128 v128 -> v128
fd 3c  | i32x4.gt_u                            | -                 | v128 v128 -> v128
fd 3d  | i32x4.le_s                            | -                 | v128 v128 -> v128
fd 3e  | i32x4.le_u                            | -                 | v128 v128 -> v128
fd 3f  | i32x4.ge_s                            | -                 | v128 v128 -> v128
fd 40  | i32x4.ge_u                            | -                 | v128 v128 -> v128
fd 41  | f32x4.eq                              | -                 | v128 v128 -> v128
fd 42  | f32x4.ne                              | -                 | v128 v128 -> v128
fd 43  | f32x4.lt                              | -                 | v128 v128 -> v128
fd 44  | f32x4.gt                              | -                 | v128 v128 -> v128
fd 45  | f32x4.le                              | -                 | v128 v128 -> v128
fd 46  | f32x4.ge                              | -                 | v128 v128 -> v128
fd 47  | f64x2.eq                              | -                 | v128 v128 -> v128
fd 48  | f64x2.ne                              | -                 | v128 v128 -> v128
fd 49  | f64x2.lt                              | -                 | v128 v128 -> v128
fd 4a  | f64x2.gt                              | -                 | v128 v128 -> v128
fd 4b  | f64x2.le                              | -                 | v128 v128 -> v128
fd 4c  | f64x2.ge                              | -                 | v128 v128 -> v128
fd 4d  | v128.not                              | -                 | v128 -> v128
fd 4e  | v128.and                              | -                 | v128 v128 -> v128
fd 4f  | v128.andnot                           | -                 | v128 v128 -> v128
fd 50  | v128.or                               | -                 | v128 v128 -> v128
fd 51  | v128.xor                              | -                 | v128 v128 -> v128
fd 52  | v128.bitselect                        | -                 | v128 v128 v128 -> v128
fd 53  | v128.any_true                         | -                 | v128 -> i32
fd 54  | v128.load8_lane                       | memarg:0 lane:16  | address v128 -> v128
fd 55  | v128.load16_lane                      | memarg:1 lane:8   | address v128 -> v128
fd 56  | v128.load32_lane                      | memarg:2 lane:4   | address v128 -> v128
fd 57  | v128.load64_lane                      | memarg:3 lane:2   | address v128 -> v128
fd 58  | v128.store8_lane                      | memarg:0 lane:16  | address v128 ->
fd 59  | v128.store16_lane                     | memarg:1 lane:8   | address v128 ->
fd 5a  | v128.store32_lane                     | memarg:2 lane:4   | address v128 ->
fd 5b  | v128.store64_lane                     | memarg:3 lane:2   | address v128 ->
fd 5c  | v128.load32_zero                      | memarg:2          | address -> v128
fd 5d  | v128.load64_zero                      | memarg:3          | address -> v128
fd 5e  | f32x4.demote_f64x2_zero               | -                 | v128 -> v128
fd 5f  | f64x2.promote_low_f32x4               | -                 | v128 -> v128
fd 60  | i8x16.abs                             | -                 | v128 -> v128
fd 61  | i8x16.neg                             | -                 | v128 -> v128
fd 62  | i8x16.popcnt                          | -                 | v128 -> v128
fd 63  | i8x16.all_true                        | -                 | v128 -> i32
fd 64  | i8x16.bitmask                         | -                 | v128 -> i32
fd 65  | i8x16.narrow_i16x8_s                  | -                 | v128 v128 -> v128
fd 66  | i8x16.narrow_i16x8_u                  | -                 | v128 v128 -> v128
fd 67  | f32x4.ceil                            | -                 | v128 -> v128
fd 68  | f32x4.floor                           | -                 | v128 -> v128
fd 69  | f32x4.trunc                           | -                 | v128 -> v128
fd 6a  | f32x4.nearest                         | -                 | v128 -> v128
fd 6b  | i8x16.shl                             | -                 | v128 i32 -> v128
fd 6c  | i8x16.shr_s                           | -                 | v128 i32 -> v128
fd 6d  | i8x16.shr_u                           | -                 | v128 i32 -> v128
fd 6e  | i8x16.add                             | -                 | v128 v128 -> v128
fd 6f  | i8x16.add_sat_s                       | -                 | v128 v128 -> v128
fd 70  | i8x16.add_sat_u                       | -                 | v128 v128 -> v128
fd 71  | i8x16.sub                             | -                 | v128 v128 -> v128
fd 72  | i8x16.sub_sat_s                       | -                 | v128 v128 -> v128
fd 73  | i8x16.sub_sat_u                       | -                 | v128 v128 -> v128
fd 74  | f64x2.ceil                            | -                 | v128 -> v128
fd 75  | f64x2.floor                           | -                 | v128 -> v128
fd 76  | i8x16.min_s                           | -                 | v128 v128 -> v128
fd 77  | i8x16.min_u                           | -                 | v128 v128 -> v128
fd 78  | i8x16.max_s                           | -                 | v128 v128 -> v128
fd 79  | i8x16.max_u                           | -                 | v128 v128 -> v128
fd 7a  | f64x2.trunc                           | -                 | v128 -> v128
fd 7b  | i8x16.avgr_u                          | -                 | v128 v128 -> v128
fd 7c  | i16x8.extadd_pairwise_i8x16_s         | -                 | v128 -> v128
fd 7d  | i16x8.extadd_pairwise_i8x16_u         | -                 | v128 -> v128
fd 7e  | i32x4.extadd_pairwise_i16x8_s         | -                 | v128 -> v128
fd 7f  | i32x4.extadd_pairwise_i16x8_u         | -                 | v128 -> v128
fd 80  | i16x8.abs                             | -                 | v128 -> v128
fd 81  | i16x8.neg                             | -                 | v128 -> v128
fd 82  | i16x8.q15mulr_sat_s                   | -                 | v128 v128 -> v128
fd 83  | i16x8.all_true                        | -                 | v128 -> i32
fd 84  | i16x8.bitmask                         | -                 | v128 -> i32
fd 85  | i16x8.narrow_i32x4_s                  | -                 | v128 v128 -> v128
fd 86  | i16x8.narrow_i32x4_u                  | -                 | v128 v128 -> v128
fd 87  | i16x8.extend_low_i8x16_s              | -                 | v128 -> v128
fd 88  | i16x8.extend_high_i8x16_s             | -                 | v128 -> v128
fd 89  | i16x8.extend_low_i8x16_u              | -                 | v128 -> v128
fd 8a  | i16x8.extend_high_i8x16_u             | -                 | v128 -> v128
fd 8b  | i16x8.shl                             | -                 | v128 i32 -> v128
fd 8c  | i16x8.shr_s                           | -                 | v128 i32 -> v128
fd 8d  | i16x8.shr_u                           | -                 | v128 i32 -> v128
fd 8e  | i16x8.add                             | -                 | v128 v128 -> v128
fd 8f  | i16x8.add_sat_s                       | -                 | v128 v128 -> v128
fd 90  | i16x8.add_sat_u                       | -                 | v128 v128 -> v128
fd 91  | i16x8.sub                             | -                 | v128 v128 -> v128
fd 92  | i16x8.sub_sat_s                       | -                 | v128 v128 -> v128
fd 93  | i16x8.sub_sat_u                       | -                 | v128 v128 -> v128
fd 94  | f64x2.nearest                         | -                 | v128 -> v128
fd 95  | i16x8.mul                             | -                 | v128 v128 -> v128
fd 96  | i16x8.min_s                           | -                 | v128 v128 -> v128
fd 97  | i16x8.min_u                           | -                 | v128 v128 -> v128
fd 98  | i16x8.max_s                           | -                 | v128 v128 -> v128
fd 99  | i16x8.max_u                           | -                 | v128 v128 -> v128
fd 9b  | i16x8.avgr_u                          | -                 | v128 v128 -> v128
fd 9c  | i16x8.extmul_low_i8x16_s              | -                 | v128 v128 -> v128
fd 9d  | i16x8.extmul_high_i8x16_s             | -                 | v128 v128 -> v128
fd 9e  | i16x8.extmul_low_i8x16_u              | -                 | v128 v128 -> v128
fd 9f  | i16x8.extmul_high_i8x16_u             | -                 | v128 v128 -> v128
fd a0  | i32x4.abs                             | -                 | v128 -> v128
fd a1  | i32x4.neg                             | -                 | v128 -> v128
fd a3  | i32x4.all_true                        | -                 | v128 -> i32
fd a4  | i32x4.bitmask                         | -                 | v128 -> i32
fd a7  | i32x4.extend_low_i16x8_s              | -                 | v128 -> v128
fd a8  | i32x4.extend_high_i16x8_s             | -                 | v128 -> v128
fd a9  | i32x4.extend_low_i16x8_u              | -                 | v128 -> v128
fd aa  | i32x4.extend_high_i16x8_u             | -                 | v128 -> v128
fd ab  | i32x4.shl                             | -                 | v128 i32 -> v128
fd ac  | i32x4.shr_s                           | -                 | v128 i32 -> v128
fd ad  | i32x4.shr_u                           | -                 | v128 i32 -> v128
fd ae  | i32x4.add                             | -                 | v128 v128 -> v128
fd b1  | i32x4.sub                             | -                 | v128 v128 -> v128
fd b5  | i32x4.mul                             | -                 | v128 v128 -> v128
fd b6  | i32x4.min_s                           | -                 | v128 v128 -> v128
fd b7  | i32x4.min_u                           | -                 | v128 v128 -> v128
fd b8  | i32x4.max_s                           | -                 | v128 v128 -> v128
fd b9  | i32x4.max_u                           | -                 | v128 v128 -> v128
fd ba  | i32x4.dot_i16x8_s                     | -                 | v128 v128 -> v128
fd bc  | i32x4.extmul_low_i16x8_s              | -                 | v128 v128 -> v128
fd bd  | i32x4.extmul_high_i16x8_s             | -                 | v128 v128 -> v128
fd be  | i32x4.extmul_low_i16x8_u              | -                 | v128 v128 -> v128
fd bf  | i32x4.extmul_high_i16x8_u             | -                 | v128 v128 -> v128
fd c0  | i64x2.abs                             | -                 | v128 -> v128
fd c1  | i64x2.neg                             | -                 | v128 -> v128
fd c3  | i64x2.all_true                        | -                 | v128 -> i32
fd c4  | i64x2.bitmask                         | -                 | v128 -> i32
fd c7  | i64x2.extend_low_i32x4_s              | -                 | v128 -> v128
fd c8  | i64x2.extend_high_i32x4_s             | -                 | v128 -> v128
fd c9  | i64x2.extend_low_i32x4_u              | -                 | v128 -> v128
fd ca  | i64x2.extend_high_i32x4_u             | -                 | v128 -> v128
fd cb  | i64x2.shl                             | -                 | v128 i32 -> v128
fd cc  | i64x2.shr_s                           | -                 | v128 i32 -> v128
fd cd  | i64x2.shr_u                           | -                 | v128 i32 -> v128
fd ce  | i64x2.add                             | -                 | v128 v128 -> v128
fd d1  | i64x2.sub                             | -                 | v128 v128 -> v128
fd d5  | i64x2.mul                             | -                 | v128 v128 -> v128
fd d6  | i64x2.eq                              | -                 | v128 v128 -> v128
fd d7  | i64x2.ne                              | -                 | v128 v128 -> v128
fd d8  | i64x2.lt_s                            | -                 | v128 v128 -> v128
fd d9  | i64x2.gt_s                            | -                 | v128 v128 -> v128
fd da  | i64x2.le_s                            | -                 | v128 v128 -> v128
fd db  | i64x2.ge_s                            | -                 | v128 v128 -> v128
fd dc  | i64x2.extmul_low_i32x4_s              | -                 | v128 v128 -> v128
fd dd  | i64x2.extmul_high_i32x4_s             | -                 | v128 v128 -> v128
fd de  | i64x2.extmul_low_i32x4_u              | -                 | v128 v128 -> v128
fd df  | i64x2.extmul_high_i32x4_u             | -                 | v128 v128 -> v128
fd e0  | f32x4.abs                             | -                 | v128 -> v128
fd e1  | f32x4.neg                             | -                 | v128 -> v128
fd e3  | f32x4.sqrt                            | -                 | v128 -> v128
fd e4  | f32x4.add                             | -                 | v128 v128 -> v128
fd e5  | f32x4.sub                             | -                 | v128 v128 -> v128
fd e6  | f32x4.mul                             | -                 | v128 v128 -> v128
fd e7  | f32x4.div                             | -                 | v128 v128 -> v128
fd e8  | f32x4.min                             | -                 | v128 v128 -> v128
fd e9  | f32x4.max                             | -                 | v128 v128 -> v128
fd ea  | f32x4.pmin                            | -                 | v128 v128 -> v128
fd eb  | f32x4.pmax                            | -                 | v128 v128 -> v128
fd ec  | f64x2.abs                             | -                 | v128 -> v128
fd ed  | f64x2.neg                             | -                 | v128 -> v128
fd ef  | f64x2.sqrt                            | -                 | v128 -> v128
fd f0  | f64x2.add                             | -                 | v128 v128 -> v128
fd f1  | f64x2.sub                             | -                 | v128 v128 -> v128
fd f2  | f64x2.mul                             | -                 | v128 v128 -> v128
fd f3  | f64x2.div                             | -                 | v128 v128 -> v128
fd f4  | f64x2.min                             | -                 | v128 v128 -> v128
fd f5  | f64x2.max                             | -                 | v128 v128 -> v128
fd f6  | f64x2.pmin                            | -                 | v128 v128 -> v128
fd f7  | f64x2.pmax                            | -                 | v128 v128 -> v128
fd f8  | i32x4.trunc_sat_f32x4_s               | -                 | v128 -> v128
fd f9  | i32x4.trunc_sat_f32x4_u               | -                 | v128 -> v128
fd fa  | f32x4.convert_i32x4_s                 | -                 | v128 -> v128
fd fb  | f32x4.convert_i32x4_u                 | -                 | v128 -> v128
fd fc  | i32x4.trunc_sat_f64x2_s_zero          | -                 | v128 -> v128
fd fd  | i32x4.trunc_sat_f64x2_u_zero          | -                 | v128 -> v128
fd fe  | f64x2.convert_low_i32x4_s             | -                 | v128 -> v128
fd ff  | f64x2.convert_low_i32x4_u             | -                 | v128 -> v128
RELAXED_SIMD
fd 100 | i8x16.relaxed_swizzle                 | -                 | v128 v128 -> v128
fd 101 | i32x4.relaxed_trunc_f32x4_s           | -                 | v128 -> v128
fd 102 | i32x4.relaxed_trunc_f32x4_u           | -                 | v128 -> v128
fd 103 | i32x4.relaxed_trunc_f64x2_s_zero      | -                 | v128 -> v128
fd 104 | i32x4.relaxed_trunc_f64x2_u_zero      | -                 | v128 -> v128
fd 105 | f32x4.relaxed_madd                    | -                 | v128 v128 v128 -> v128
fd 106 | f32x4.relaxed_nmadd                   | -                 | v128 v128 v128 -> v128
fd 107 | f64x2.relaxed_madd                    | -                 | v128 v128 v128 -> v128
fd 108 | f64x2.relaxed_nmadd                   | -                 | v128 v128 v128 -> v128
fd 109 | i8x16.relaxed_laneselect              | -                 | v128 v128 v128 -> v128
fd 10a | i16x8.relaxed_laneselect              | -                 | v128 v128 v128 -> v128
fd 10b | i32x4.relaxed_laneselect              | -                 | v128 v128 v128 -> v128
fd 10c | i64x2.relaxed_laneselect              | -                 | v128 v128 v128 -> v128
fd 10d | f32x4.relaxed_min                     | -                 | v128 v128 -> v128
fd 10e | f32x4.relaxed_max                     | -                 | v128 v128 -> v128
fd 10f | f64x2.relaxed_min                     | -                 | v128 v128 -> v128
fd 110 | f64x2.relaxed_max                     | -                 | v128 v128 -> v128
fd 111 | i16x8.relaxed_q15mulr_s               | -                 | v128 v128 -> v128
fd 112 | i16x8.relaxed_dot_i8x16_i7x16_s       | -                 | v128 v128 -> v128
fd 113 | i32x4.relaxed_dot_i8x16_i7x16_add_s   | -                 | v128 v128 v128 -> v128
"""
