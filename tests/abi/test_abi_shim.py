"""Generated shims: complete, deterministic, free of warnings, and driving a real library."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from pathlib import Path

import pytest
from conftest_abi import needs_runner, query_of, wgpu_resources

from sylvite import abi, errors
from sylvite.abi.oracle import Query
from sylvite.abi.retarget import HostProgram, retarget
from sylvite.abi.running import generic_ir, run_pair
from sylvite.abi.shim import build_shim, generate_shim
from sylvite.abi.targets import find_target, select_targets
from sylvite.abi.toolchain import default_toolchain

BASE = find_target("x86_64-generic")
EVERY = select_targets("64-bit")
TEXT = """
#include <stdarg.h>
typedef struct { double x, y, z; } point;
typedef union { short s[3]; float f; } mixed;
typedef enum { RED, GREEN } colour;
typedef point (*transform)(point p, int index, void *user);
typedef struct { transform apply; void *user; } job;
point move(point p, point by, colour c, _Bool flag, float f, long double precise);
mixed blend(mixed a, unsigned char weight, const char *name);
void map(point *points, int count, transform fn, void *user);
void run(job j);
transform current(void);
void visit(void (*each)(mixed m), int n);
int log_message(const char *format, ...);
void log_list(const char *format, va_list arguments);
int harmless(double d, void *p);
"""


@pytest.fixture
def query(tmp_path):
    (tmp_path / "api.h").write_text(TEXT)
    return query_of(str(tmp_path / "api.h"), include_dirs=(str(tmp_path),))


def test_shim_covers_what_needs_it_and_says_what_it_leaves_out(query):
    shim = generate_shim(query, EVERY, base=BASE, name="api")
    assert {"move", "blend", "map", "run", "visit", "log_message"} <= set(shim.functions)
    assert "harmless" not in shim.functions
    assert {"transform", "visit.each"} <= set(shim.callbacks)
    assert {item.name for item in shim.skipped} == {"log_message", "log_list"}
    assert "harmless" in generate_shim(query, EVERY, base=BASE, name="api", everything=True).functions


def test_shim_is_deterministic(query):
    assert generate_shim(query, EVERY, base=BASE) == generate_shim(query, EVERY, base=BASE)


def test_wrappers_take_void_pointers_i64_and_double_only(query, tmp_path):
    shim = generate_shim(query, EVERY, base=BASE, name="api")
    native, _ = shim.write(tmp_path)
    header = tmp_path / "crossing.h"
    lines = [line for line in shim.native.splitlines() if line.startswith("void ") and line.endswith(");")]
    header.write_text("typedef __INT64_TYPE__ sylvite_i64;\n" + "\n".join(lines) + "\n")
    report = abi.check(header, targets="64-bit", cache=False)
    assert len(report.entities) >= len(shim.functions)
    assert all(entity.verdict is abi.Verdict.SAFE for entity in report.entities)
    assert native.name == "api_native.c"


@pytest.mark.parametrize("target", [target.name for target in EVERY])
def test_shim_compiles_without_warnings_for(query, tmp_path, target):
    shim = generate_shim(query, EVERY, base=BASE, name="api")
    output = build_shim(shim, find_target(target), tmp_path, query=query)
    assert output.stat().st_size > 500


def test_shim_builds_as_library_and_ir_reproducibly(query, tmp_path):
    shim = generate_shim(query, EVERY, base=BASE, name="api")
    arm = find_target("arm64-linux")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (build_shim(shim, arm, tmp_path / folder, query=query, kind="library") for folder in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"!<arch>")
    assert "aarch64" in build_shim(shim, arm, tmp_path, query=query, kind="ir").read_text()
    with pytest.raises(errors.InvalidArgumentError):
        build_shim(shim, arm, tmp_path, query=query, kind="tarball")


def test_shim_refuses_a_target_with_other_layouts(tmp_path):
    (tmp_path / "api.h").write_text("typedef struct { void *p; int n; } view; void take(view v);")
    query = query_of(str(tmp_path / "api.h"))
    shim = generate_shim(query, [find_target("arm64-linux")], base=BASE, name="api")
    with pytest.raises(errors.FormatError, match="size of view"):
        build_shim(shim, find_target("armv7-linux-hard"), tmp_path, query=query)


def test_bad_names_and_slots_are_refused(query):
    with pytest.raises(errors.InvalidArgumentError):
        generate_shim(query, EVERY, base=BASE, name="not a name")
    with pytest.raises(errors.InvalidArgumentError):
        generate_shim(query, EVERY, base=BASE, slots=0)


# -- callbacks behind pointers ----------------------------------------------------------------------

BEHIND = """
typedef struct { double x, y, z; } point;
typedef double (*visit)(point p, point q, void *user);
struct inner { int pad; visit second; };
typedef struct { void *next; visit first; struct inner in; void *user; } config;
typedef struct { int n; config *more; } chain;
double run_const(const config *c);
double run_filled(config *c);
double run_several(const config *c, int count);
double run_chain(const chain *c);
"""
BEHIND_LIBRARY = """
#include "behind.h"
static double both(const config *c) {
  point p = {1, 2, 3}, q = {10, 20, 30};
  return c->first(p, q, c->user) + c->in.second(q, p, c->user);
}
double run_const(const config *c) { return c ? both(c) : -1; }
double run_filled(config *c) { return both(c); }
double run_several(const config *c, int count) { return count == 1 ? both(c) : 0; }
double run_chain(const chain *c) { return both(c->more); }
"""
BEHIND_CALLER = """
#include "behind_generic.h"
static double one(point p, point q, void *user) { return p.z * 100 + q.x + *(double *)user; }
static double two(point p, point q, void *user) { return p.x * 1000 + q.z + *(double *)user; }
int main(int argc, char **argv) {
  double half = 0.5, expected = 300 + 10 + .5 + 10000 + 3 + .5;
  const config c = {0, one, {1, two}, &half};
  config mine = {0, sylvite_wrap_visit(one), {1, sylvite_wrap_visit(two)}, &half};
  chain links = {1, &mine};
  if (run_const(&c) != expected) return 1;
  if (c.first != one || c.in.second != two) return 2;
  if (run_const(0) != -1) return 3;
  if (run_filled(&mine) != expected || run_several(&mine, 1) != expected) return 4;
  return run_chain(&links) != expected ? 5 : 0;
}
"""


def test_callbacks_behind_pointers_are_wrapped_or_named(tmp_path):
    (tmp_path / "behind.h").write_text(BEHIND)
    shim = generate_shim(query_of(str(tmp_path / "behind.h")), EVERY, base=BASE, name="behind")
    assert set(shim.functions) == {"run_const", "run_filled", "run_several", "run_chain"}
    notes = {item.name: item.reason for item in shim.skipped}
    assert set(notes) == {f"callbacks behind c of run_{name}" for name in ("filled", "several", "chain")}
    assert notes["callbacks behind c of run_filled"] == (
        "set first, in.second with sylvite_wrap_visit before the call"
    )
    assert "leads to config" in notes["callbacks behind c of run_chain"]
    assert all(reason in shim.header for reason in notes.values())


@pytest.mark.parametrize("target", ["x86_64-linux", "arm64-linux", "s390x-linux"])
def test_callbacks_behind_pointers_arrive(tmp_path, target):
    needs_runner(target)
    for name, text in (("behind.h", BEHIND), ("library.c", BEHIND_LIBRARY), ("caller.c", BEHIND_CALLER)):
        (tmp_path / name).write_text(text)
    query = query_of(str(tmp_path / "behind.h"), include_dirs=(str(tmp_path),))
    native, _ = generate_shim(query, EVERY, base=BASE, name="behind").write(tmp_path)
    outcome = run_pair(tmp_path / "caller.c", [tmp_path / "library.c"], base=BASE, target=find_target(target),
                       query=query, extra=[native])  # fmt: skip
    assert (outcome.result, outcome.status) == ("right", 0)


# -- wgpu-native ------------------------------------------------------------------------------------

DRIVE = """
#include "gpu_generic.h"
struct outcome { int adapter_status, device_status; void *adapter, *device; };
static void on_adapter(WGPURequestAdapterStatus status, WGPUAdapter adapter, WGPUStringView message, void *u1,
                       void *u2) {
  struct outcome *o = u1;
  o->adapter_status = (int)status; o->adapter = adapter; (void)message; (void)u2;
}
static void on_device(WGPURequestDeviceStatus status, WGPUDevice device, WGPUStringView message, void *u1,
                      void *u2) {
  struct outcome *o = u1;
  o->device_status = (int)status; o->device = device; (void)message; (void)u2;
}
void drive(struct outcome *o) {
  WGPUInstance instance = wgpuCreateInstance((void *)0);
  WGPURequestAdapterCallbackInfo first = {0};
  first.mode = WGPUCallbackMode_AllowProcessEvents; first.callback = on_adapter; first.userdata1 = o;
  wgpuInstanceRequestAdapter(instance, (void *)0, first);
  wgpuInstanceProcessEvents(instance);
  if (!o->adapter) return;
  WGPURequestDeviceCallbackInfo next = {0};
  next.mode = WGPUCallbackMode_AllowProcessEvents; next.callback = on_device; next.userdata1 = o;
  wgpuAdapterRequestDevice((WGPUAdapter)o->adapter, (void *)0, next);
  wgpuInstanceProcessEvents(instance);
}
"""


def software_driver() -> str | None:
    """The description of SwiftShader, which Debian's chromium-common brings, if it is installed."""
    given = os.environ.get("SYLVITE_VULKAN_DRIVER", "/usr/lib/chromium/vk_swiftshader_icd.json")
    return given if os.path.isfile(given) else None


class Outcome(ctypes.Structure):
    _fields_ = (
        ("adapter_status", ctypes.c_int),
        ("device_status", ctypes.c_int),
        ("adapter", ctypes.c_void_p),
        ("device", ctypes.c_void_p),
    )


def test_every_by_value_function_and_callback_of_webgpu_is_found(cache_home):
    path = wgpu_resources() / "webgpu.h"
    report = abi.check(path, targets="all")
    found = {entity.name: entity for entity in report.entities}
    assert found["wgpuInstanceRequestAdapter"].verdict is abi.Verdict.SHIM
    assert found["WGPURequestAdapterCallback"].verdict is abi.Verdict.SHIM
    assert report.rejections == ()
    # An independent count: a record's name without * in the text of a prototype.
    records = {entity.name for entity in report.entities if entity.kind == "struct"}
    text = path.read_text()

    by_value = {
        name
        for name, arguments in re.findall(r"\b(wgpu\w+)\(([^)]*)\) WGPU_FUNCTION_ATTRIBUTE;", text)
        if any(
            part.split()[0] in records and "*" not in part for part in arguments.split(",") if part.split()
        )
    }
    assert len(by_value) > 20
    assert {name for name in by_value if found[name].verdict is not abi.Verdict.SHIM} == set()


@pytest.mark.slow
@pytest.mark.parametrize("target", [target.name for target in EVERY])
def test_shim_of_webgpu_compiles_for(tmp_path, target):
    query = query_of(str(wgpu_resources() / "webgpu.h"))
    shim = generate_shim(query, EVERY, base=BASE, name="gpu")
    assert build_shim(shim, find_target(target), tmp_path, query=query).stat().st_size > 10_000


def test_wgpu_native_is_driven_from_generic_ir_through_the_shim(tmp_path, monkeypatch):
    if platform.machine() not in ("x86_64", "AMD64") or platform.system() != "Linux":
        pytest.skip("the generic code of this test is run on x86-64 Linux")
    resources = wgpu_resources()
    query = query_of(str(resources / "webgpu.h"), include_dirs=(str(resources), str(tmp_path)))
    shim = generate_shim(query, EVERY, base=BASE, name="gpu")
    shim.write(tmp_path)
    (tmp_path / "drive.c").write_text(DRIVE)
    ir = generic_ir(tmp_path / "drive.c", BASE, Query(files=query.files, include_dirs=query.include_dirs))
    text = retarget(ir, BASE, query=query)
    shared = tmp_path / "shim.so"
    built = build_shim(shim, BASE, tmp_path, query=query)
    default_toolchain().check(["-shared", str(built), "-o", str(shared)], where="shim", tool="ld.lld")
    library = next(iter(sorted(Path(resources).glob("libwgpu_native*.so"))), None)
    if library is None:
        pytest.skip("the wgpu package holds no libwgpu_native for this system")
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(shared), mode=ctypes.RTLD_GLOBAL)
    software = software_driver()
    if software is not None:
        # Vulkan's loader reads these at each start, in this process.
        monkeypatch.setenv("VK_ICD_FILENAMES", software)
        monkeypatch.setenv("VK_DRIVER_FILES", software)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    outcome = Outcome()
    with HostProgram(text) as program:
        program.function("drive", ctypes.CFUNCTYPE(None, ctypes.c_void_p))(ctypes.byref(outcome))
        # 1 is success; without any graphics driver the callback says so (3), and that too has crossed.
        assert outcome.adapter_status in ((1,) if software else (1, 3))
        if outcome.adapter_status == 3:
            pytest.skip("no graphics driver: the answer crossed, but there is no adapter to go on with")
        assert outcome.adapter
        assert outcome.device_status == 1
        assert outcome.device
