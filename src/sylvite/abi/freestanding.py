"""A few dozen lines of C that start and end a static program without a C library, for every Linux
architecture that is run here: entry, exit, write, and the four memory functions compilers call.

Source: each architecture's Linux system call convention, ``syscall(2)``.
"""

from __future__ import annotations

from ..errors import UnavailableError
from .targets import Target

__all__ = ["runtime_source"]

_ENTRY = {
    "x86_64": "xor %ebp, %ebp; mov %rsp, %rdi; mov %rsp, %rcx; and $-16, %rsp; sub $32, %rsp; "
    "call sylvite_start; "
    # Windows code probes large frames through this function, which may change nothing.
    ".globl __chkstk; __chkstk: ret",
    "i386": "xor %ebp, %ebp; mov %esp, %eax; and $-16, %esp; sub $12, %esp; push %eax; call sylvite_start",
    "aarch64": "mov x0, sp; bl sylvite_start",
    "arm": "mov r0, sp; bic sp, sp, #7; bl sylvite_start",
    "riscv64": "mv a0, sp; andi sp, sp, -16; call sylvite_start",
    "riscv32": "mv a0, sp; andi sp, sp, -16; call sylvite_start",
    "ppc64le": (
        "addis 2, 12, .TOC.-_start@ha; addi 2, 2, .TOC.-_start@l; mr 3, 1; clrrdi 1, 1, 4; li 0, 0; "
        "stdu 0, -32(1); bl sylvite_start; nop"
    ),
    "s390x": "lgr %r2, %r15; aghi %r15, -160; lghi %r0, 0; stg %r0, 0(%r15); brasl %r14, sylvite_start",
}

# (registers of number, first, second, third argument and result; instruction; number of write, exit)
_CALLS = {
    "x86_64": (("rax", "rdi", "rsi", "rdx"), "syscall", 1, 60),
    "i386": (("eax", "ebx", "ecx", "edx"), "int $0x80", 4, 1),
    "aarch64": (("x8", "x0", "x1", "x2"), "svc #0", 64, 93),
    "arm": (("r7", "r0", "r1", "r2"), "svc #0", 4, 1),
    "riscv64": (("a7", "a0", "a1", "a2"), "ecall", 64, 93),
    "riscv32": (("a7", "a0", "a1", "a2"), "ecall", 64, 93),
    "ppc64le": (("r0", "r3", "r4", "r5"), "sc", 4, 1),
    "s390x": (("r1", "r2", "r3", "r4"), "svc 0", 4, 1),
}
_CLOBBERS = {"x86_64": '"rcx", "r11", "memory"', "ppc64le": '"cr0", "memory"'}

_COMMON = """
typedef __UINTPTR_TYPE__ word;
__asm__(".text\\n.globl _start\\n.type _start,%function\\n_start:\\n  ENTRY\\n");
static long sylvite_call(word number, word a, word b, word c) {
  register word r0 __asm__("R0") = number;
  register word r1 __asm__("R1") = a;
  register word r2 __asm__("R2") = b;
  register word r3 __asm__("R3") = c;
  __asm__ volatile("INSTRUCTION" : "+r"(r0), "+r"(r1), "+r"(r2), "+r"(r3) : : CLOBBERS);
  return (long)r1;
}
int main(int argc, char **argv);
void sylvite_write(const char *text, word length) { sylvite_call(WRITE, 1, (word)text, length); }
__attribute__((noreturn)) void sylvite_exit(int code) {
  for (;;) sylvite_call(EXIT, (word)code, 0, 0);
}
__attribute__((used)) void sylvite_start(word *stack) __asm__("sylvite_start");
void sylvite_start(word *stack) { sylvite_exit(main((int)stack[0], (char **)(stack + 1))); }
void *memcpy(void *to, const void *from, word n) {
  volatile char *t = to; const char *f = from;
  while (n--) *t++ = *f++;
  return to;
}
void *memmove(void *to, const void *from, word n) {
  volatile char *t = to; const char *f = from;
  if (t <= f) while (n--) *t++ = *f++;
  else while (n--) t[n] = f[n];
  return to;
}
void *memset(void *to, int value, word n) {
  volatile char *t = to;
  while (n--) *t++ = (char)value;
  return to;
}
int memcmp(const void *a, const void *b, word n) {
  const unsigned char *x = a, *y = b;
  for (; n; n--, x++, y++) if (*x != *y) return *x - *y;
  return 0;
}
"""


def runtime_source(target: Target) -> str:
    """The C text of the runtime for one target.

    Raises:
        UnavailableError: programs for the target cannot be started this way.
    """
    arch = target.qemu or ""
    if arch not in _ENTRY:
        raise UnavailableError(f"programs for {target.name} cannot be run here")
    registers, instruction, write, leave = _CALLS[arch]
    text = _COMMON.replace("ENTRY", _ENTRY[arch].replace("; ", "\\n  "))
    text = text.replace("INSTRUCTION", instruction).replace("CLOBBERS", _CLOBBERS.get(arch, '"memory"'))
    text = text.replace("WRITE", str(write)).replace("EXIT", str(leave))
    for index, register in enumerate(registers):
        text = text.replace(f'"R{index}"', f'"{register}"')
    return text
