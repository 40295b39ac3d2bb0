"""Benchmarks: results are checked first, then all sides are timed interleaved in one run."""
