"""Small declarations whose verdicts were worked out by hand from the psABI documents, not from clang.

Sources: System V ABI for AMD64 3.2.3; Procedure Call Standard for AArch64 6.8.2 (and Apple's deviations);
RISC-V Calling Convention, "Integer" and "Hardware Floating-point"; s390x ELF ABI 1.2.3; Microsoft x64 calling
convention; System V ABI for Intel386.
"""

from __future__ import annotations

import pytest

from sylvite import abi

ARM, MAC, RISCV, S390X, WIN, I386 = (
    "arm64-linux", "arm64-macos", "riscv64-linux", "s390x-linux", "x86_64-windows-msvc", "i386-linux",
)  # fmt: skip

# (declaration of f, why, verdict by target against x86-64 Linux)
CASES = [
    ("typedef struct { float x, y; } v2; float f(v2 a);",
     "one SSE eightbyte; two floating registers as an HFA; by reference on s390x, in rcx on Windows",
     {ARM: "SHIM", MAC: "SHIM", RISCV: "SHIM", S390X: "SHIM", WIN: "SHIM"}),
    ("typedef struct { double d; } wrapped; double f(wrapped a);",
     "one floating register as a plain double in both hardware float conventions",
     {RISCV: "SAFE", S390X: "SAFE"}),
    ("typedef struct { const char *data; unsigned long long size; } view; void f(view a, view b);",
     "two registers each, an aligned pair of registers each, or by reference",
     {ARM: "SHIM", RISCV: "SHIM", S390X: "SHIM", WIN: "SHIM"}),
    ("typedef struct { long long a, b, c; } three; three f(void);",
     "in memory behind a hidden pointer everywhere",
     {ARM: "SAFE", RISCV: "SAFE", S390X: "SAFE", WIN: "SAFE"}),
    ("typedef struct { int a; double b; } mixed; void f(const mixed *p);",
     "b lies at 8, but at 4 where doubles are aligned to 4",
     {ARM: "SAFE", S390X: "SAFE", WIN: "SAFE", I386: "LAYOUT"}),
    ("unsigned char f(unsigned char a);", "extended on x86 and at Apple's, by the callee on AAPCS64",
     {ARM: "PATCH", MAC: "SAFE"}),
    ("int f(int a);", "32 bits in 64-bit registers: extended by sign on RISC-V and s390x only",
     {ARM: "SAFE", MAC: "SAFE", WIN: "SAFE", RISCV: "PATCH", S390X: "PATCH"}),
    ("long f(long a);", "32 bits on Windows and i386", {ARM: "SAFE", WIN: "SHIM", I386: "SHIM"}),
    ("char f(char a);", "unsigned on arm64, riscv64 and s390x Linux, signed at Apple's and Microsoft's",
     {ARM: "RULE", RISCV: "RULE", S390X: "RULE", MAC: "SAFE"}),
    ("#include <wchar.h>\nvoid f(wchar_t a);", "int on x86-64, unsigned on arm64 Linux, 16 bits on Windows",
     {ARM: "RULE", MAC: "SAFE", WIN: "SHIM"}),
    ("long double f(long double a);", "x87's 80 bits, 128 bits on arm64 Linux, double elsewhere",
     {ARM: "SHIM", MAC: "SHIM", RISCV: "SHIM", S390X: "SHIM", WIN: "SHIM"}),
    ("typedef union { float f; int i; } either; int f(either a);",
     "INTEGER class by merging; a whole general register on arm64", {ARM: "SHIM"}),
    ("typedef struct { char c[3]; } rgb; void f(rgb a);", "three bytes: part of a register, or by reference",
     {ARM: "SHIM", RISCV: "SHIM", S390X: "SHIM", WIN: "SHIM"}),
    ("int f(const char *format, ...);", "variable arguments on the stack at Apple's",
     {ARM: "RULE", MAC: "RULE", WIN: "RULE"}),
    ("void f(void *p, double d, const int *n);", "pointers and doubles", dict.fromkeys(
        (ARM, MAC, RISCV, S390X, WIN), "SAFE")),
    ("void f(void *p, int (*compare)(const void *, const void *));",
     "the callback's int result is extended by sign on RISC-V and s390x",
     {ARM: "SAFE", MAC: "SAFE", RISCV: "PATCH", S390X: "PATCH"}),
    ("typedef struct node { struct node *next; double value; } node; double f(const node *head);",
     "a list: 16 bytes with 64-bit pointers, 12 on i386", {ARM: "SAFE", S390X: "SAFE", I386: "LAYOUT"}),
    ("typedef struct { unsigned kind : 4, size : 28; } head; void f(const head *h);",
     "bit-fields from the low end, from the high end on big-endian s390x", {ARM: "SAFE", S390X: "LAYOUT"}),
    ("typedef float v4 __attribute__((vector_size(16))); void f(v4 a);",
     "the registers depend on CPU features", {ARM: "RULE", WIN: "RULE"}),
    ("typedef struct { int n; char text[]; } counted; void f(const counted *c);", "flexible, by pointer",
     {ARM: "SAFE", S390X: "SAFE", WIN: "SAFE", I386: "SAFE"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why", "expected"), CASES, ids=[case[0].split(";")[-2][-40:] for case in CASES]
)
def test_verdict_is_the_one_the_documents_give(snippet, text, why, expected):
    path = snippet(text)
    for target, verdict in expected.items():
        report = abi.check(path, targets=target, base="x86_64-linux", cache=False)
        found = report.find("f", "function")
        assert (target, found.verdict.value) == (target, verdict), (why, found.reason)
