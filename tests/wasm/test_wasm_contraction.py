"""Fusing multiplications and additions: the right ones, with the right operands, and no others.

Random programs compute on small integers, where one rounding less makes no difference: whatever a wrong
operand, a stale factor or a lost value would do shows in the result.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sylvite import engines, wasm
from sylvite.linker import LinkSpace
from sylvite.wasm import ModuleBuilder, ValueType
from sylvite.wasm.contraction import ALLOWED_SECTION, allows_contraction, contract

V128, I32 = ValueType.V128, ValueType.I32
LOCALS = 6


def allowed(data):
    module = wasm.decode(data, where="test module")
    section = wasm.CustomSection(name=ALLOWED_SECTION, data=b"allowed")
    return dataclasses.replace(module, customs=(*module.customs, section))


def names(module):
    return [item.name for body in module.code for item in body.instructions()]


def count(module, name):
    return names(module).count(name)


@pytest.fixture(scope="module")
def space():
    with LinkSpace(engines.create("wasmtime")) as space:
        yield space


def run(space, module, inputs):
    """What ``f(address)`` leaves of v128 locals that it loads first and stores last."""
    data = wasm.encode(module)
    wasm.validate(wasm.decode(data, where="rewritten"))
    instance = space.store.instantiate(space.engine.compile(data, name="f"), space.platform)
    address = space.reserve(inputs.nbytes)
    space.write(address, inputs.tobytes())
    instance.exports["f"](address)
    got = np.frombuffer(space.read(address, inputs.nbytes), inputs.dtype).copy()
    space.release(address)
    return got


class Program:
    """A random function on v128 locals, with straight-line code, branches and loops."""

    def __init__(self, rng, shape):
        self.rng, self.shape = rng, shape
        self.module = ModuleBuilder("random")
        self.module.import_memory("env", "memory", 0)
        helper = self.module.function("helper", [V128], [V128])
        helper.get(0).emit(f"{shape}.neg")
        self.helper = helper
        self.f = self.module.function("f", [I32], [], export=True)
        self.locals = [self.f.local(V128) for _ in range(LOCALS)]
        self.counter = self.f.local(I32)
        for number, local in enumerate(self.locals):
            self.f.get(0).emit("v128.load", offset=16 * number).set(local)
        for _ in range(rng.integers(3, 9)):
            self.statement(2)
        for number, local in enumerate(self.locals):
            self.f.get(0).get(local).emit("v128.store", offset=16 * number)

    def pick(self):
        return int(self.rng.choice(self.locals))

    def build(self):
        return self.module.build()

    def value(self, depth):
        """Push a value; products are bounded to -1, 0 and 1 so that numbers stay exact."""
        f, kind = self.f, self.rng.integers(0, 10)
        if depth == 0 or kind < 2:
            f.get(self.pick())
        elif kind < 6:
            self.value(depth - 1)
            self.value(depth - 1)
            f.emit(f"{self.shape}.{self.rng.choice(['add', 'sub'])}")
        elif kind < 8:
            self.product(depth)
        elif kind == 8:
            self.product(depth)
            f.tee(self.pick())
        elif self.rng.integers(0, 2):
            self.value(depth - 1)
            f.call(self.helper)
        else:
            self.value(depth - 1)
            self.value(depth - 1)
            f.get(0).i32(16).emit("i32.and").emit("select")

    def product(self, depth):
        self.small(depth)
        self.small(depth)
        self.f.emit(f"{self.shape}.mul")

    def small(self, depth):
        """Push a value clamped to the numbers -2 to 2."""
        self.value(depth - 1)
        for operation, bound in (("min", 2.0), ("max", -2.0)):
            lanes = (bound,) * int(self.shape[-1])
            self.f.emit("v128.const", wasm.vector(self.shape, lanes)).emit(f"{self.shape}.{operation}")

    def statement(self, nesting):
        f, kind = self.f, self.rng.integers(0, 9)
        if nesting == 0 or kind < 5:
            self.value(3)
            f.set(self.pick())
        elif kind == 5:
            f.get(0).i32(int(self.rng.integers(1, 64))).emit("i32.and")
            with f.if_():
                self.statement(nesting - 1)
                if self.rng.integers(0, 2):
                    f.else_()
                    self.statement(nesting - 1)
        elif kind == 6:
            with f.block() as out:
                self.statement(nesting - 1)
                f.get(0).i32(int(self.rng.integers(1, 64))).emit("i32.and").br_if(out)
                self.statement(nesting - 1)
        elif kind == 7 and nesting == 2:
            f.i32(2).set(self.counter)
            with f.loop() as again:
                self.statement(nesting - 1)
                self.statement(nesting - 1)
                f.get(self.counter).i32(-1).emit("i32.add").tee(self.counter).br_if(again)
        else:
            # A product in a local, overwritten or not, before it is used.
            target = self.pick()
            self.product(2)
            f.set(target)
            if self.rng.integers(0, 2):
                self.statement(0)
            f.get(target).get(self.pick()).emit(f"{self.shape}.add").set(self.pick())


@pytest.mark.parametrize("shape", ["f32x4", "f64x2"])
def test_contract_random_programs_compute_the_same_numbers(space, shape):
    rng = np.random.default_rng(17)
    fused = 0
    for _ in range(150):
        module = allowed(Program(rng, shape).build())
        changed = contract(module)
        fused += sum(name.endswith("madd") for name in names(changed))
        dtype = np.float32 if shape == "f32x4" else np.float64
        inputs = rng.integers(-2, 3, 16 * LOCALS // np.dtype(dtype).itemsize).astype(dtype)
        plain = run(space, module, inputs)
        assert (abs(plain) < 2.0**20).all(), "the numbers are not exact: the test says nothing"
        np.testing.assert_array_equal(run(space, changed, inputs), plain)
    assert fused > 300


def body(emit, *, shape="f32x4", locals_=2):
    """A module whose function gets three vectors and returns one."""
    module = ModuleBuilder("pattern")
    f = module.function("f", [V128] * 3, [V128], export=True)
    extra = [f.local(V128) for _ in range(locals_)]
    emit(f, *extra)
    return allowed(module.build())


def test_contract_sum_over_product_on_the_stack_is_fused():
    module = body(lambda f, *_: f.get(0).get(1).emit("f32x4.mul").get(2).emit("f32x4.add"))
    assert count(contract(module), "f32x4.relaxed_madd") == 1
    module = body(lambda f, *_: f.get(2).get(0).get(1).emit("f32x4.mul").emit("f32x4.add"))
    assert count(contract(module), "f32x4.relaxed_madd") == 1
    module = body(lambda f, *_: f.get(2).get(0).get(1).emit("f64x2.mul").emit("f64x2.sub"))
    assert count(contract(module), "f64x2.relaxed_nmadd") == 1


@pytest.mark.parametrize(
    "emit",
    [
        # a * b - c has no instruction of its own.
        lambda f, *_: f.get(0).get(1).emit("f32x4.mul").get(2).emit("f32x4.sub"),
        # Lanes of another width.
        lambda f, *_: f.get(0).get(1).emit("f32x4.mul").get(2).emit("f64x2.add"),
        # The local holds something else by then.
        lambda f, t, _: (
            f.get(0).get(1).emit("f32x4.mul").set(t).get(2).set(t).get(t).get(2).emit("f32x4.add")
        ),
        # Something happens to the product first.
        lambda f, *_: f.get(0).get(1).emit("f32x4.mul").emit("f32x4.neg").get(2).emit("f32x4.add"),
    ],
)
def test_contract_other_sums_stay(emit):
    module = body(emit)
    assert contract(module) is module


def test_contract_product_does_not_outlive_a_join():
    def emit(f, t, _):
        f.get(0).get(1).emit("f32x4.mul").set(t)
        with f.block() as out:
            f.get(2).emit("v128.any_true").br_if(out)
            f.get(2).set(t)
        f.get(t).get(2).emit("f32x4.add")

    module = body(emit)
    assert contract(module) is module


def test_contract_product_in_a_loop_is_not_that_of_the_turn_before():
    def emit(f, t, counter):
        with f.loop() as again:
            f.get(t).get(2).emit("f32x4.add").set(2)
            f.get(0).get(1).emit("f32x4.mul").set(t)
            f.get(counter).emit("v128.any_true").br_if(again)
        f.get(2)

    module = body(emit)
    assert contract(module) is module


def test_contract_product_with_two_uses_serves_both():
    def emit(f, t, _):
        f.get(0).get(1).emit("f32x4.mul").tee(t).get(2).emit("f32x4.add")
        f.get(t).get(2).emit("f32x4.add").emit("f32x4.max").get(t).emit("f32x4.min")

    changed = contract(body(emit))
    assert count(changed, "f32x4.relaxed_madd") == 2
    assert count(changed, "f32x4.mul") == 1


def test_contract_module_that_does_not_allow_it_is_left_alone():
    module = body(lambda f, *_: f.get(0).get(1).emit("f32x4.mul").get(2).emit("f32x4.add"))
    silent = dataclasses.replace(module, customs=())
    assert allows_contraction(module)
    assert not allows_contraction(silent)
    assert contract(silent) is silent


def test_contract_function_without_room_for_locals_is_left_alone():
    def emit(f, *_):
        f.get(0).get(1).emit("f32x4.mul").get(2).emit("f32x4.add")

    module = body(emit, locals_=49_996)
    assert contract(module) is module
    assert count(contract(body(emit, locals_=49_990)), "f32x4.relaxed_madd") == 1
