"""Nothing is copied that need not be, and what is looked at stays right whatever else goes away."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import sylvite
from sylvite.errors import ClosedError

pytestmark = pytest.mark.compiler
pytest.importorskip("iree.compiler")

DOUBLE = """
func.func @main(%a: tensor<64xf32>) -> tensor<64xf32> {
  %0 = arith.addf %a, %a : tensor<64xf32>
  return %0 : tensor<64xf32>
}
"""
PRODUCT = """
func.func @main(%a: tensor<64xf32>, %b: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
  %0 = arith.mulf %a, %b : tensor<64xf32>
  %1 = arith.subf %a, %b : tensor<64xf32>
  return %0, %1 : tensor<64xf32>, tensor<64xf32>
}
"""
X = np.arange(64, dtype=np.float32)


@pytest.fixture(scope="module")
def double():
    return sylvite.compile(DOUBLE)


@pytest.fixture(scope="module")
def product():
    return sylvite.compile(PRODUCT)


def is_in_guest_memory(device, array):
    memory = device.space.memory
    begin = memory.base_address
    return begin <= array.ctypes.data and array.ctypes.data + array.nbytes <= begin + memory.byte_length


def test_whole_flow_of_two_modules_copies_nothing(double, product):
    with (
        sylvite.create_device("local-sync") as device,
        sylvite.load(double, device=device) as first,
        sylvite.load(product, device=device) as second,
    ):
        x = device.allocate(64)
        x[:] = X
        for _ in range(3):
            y = first(x)
            products, differences = second(y, x)
            z = first(differences)
            for array in (x, y, products, differences, z):
                assert is_in_guest_memory(device, array)
        assert device.tracer.counters.bytes_copied == 0
        np.testing.assert_array_equal(products, 2 * X * X)
        np.testing.assert_array_equal(differences, X)
        np.testing.assert_array_equal(z, 2 * X)
        # What comes from elsewhere is copied, once, and counted.
        first(X)
        assert device.tracer.counters.bytes_copied == X.nbytes


def test_outputs_have_memory_of_their_own(double):
    with sylvite.load(double) as model:
        results = [model(np.full(64, n, np.float32)) for n in range(8)]
        assert len({result.ctypes.data for result in results}) == len(results)
        for n, result in enumerate(results):
            assert (result == 2 * n).all()


def views_of(array):
    """Everything that can look at an array's memory."""
    return [
        array,
        array[1:3],
        array.reshape(8, 8).T,
        memoryview(array),
        np.from_dlpack(array),
        array.view(np.uint32),
    ]


def check_views(views):
    expected = [2 * X, 2 * X[1:3], (2 * X).reshape(8, 8).T, 2 * X, 2 * X, (2 * X).view(np.uint32)]
    for view, right in zip(views, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(view), right)


@pytest.mark.parametrize("order", ["close", "delete", "both", "device"])
def test_views_stay_right_when_their_model_goes(double, order):
    device = sylvite.create_device("local-sync")
    model = sylvite.load(double, device=device)
    views = views_of(model(X))
    if order in ("close", "both"):
        model.close()
    if order in ("delete", "both"):
        del model
    if order in ("device", "both"):
        device.close()
    del device
    gc.collect()
    # Others come and take what memory is free.
    for _ in range(3):
        with sylvite.load(double) as other:
            other(X + 7)
    check_views(views)
    while views:
        views.pop(0)
        gc.collect()
        for view in views:
            np.asarray(view).sum()


def test_views_stay_right_when_memory_grows_and_is_reused(double):
    with sylvite.load(double) as model:
        memory = model.device.space.memory
        base, length = memory.base_address, memory.byte_length
        views = views_of(model(X))
        kept = [model.device.allocate(4 << 20, np.uint8) for _ in range(40)]
        for array in kept:
            array[:] = 0xFF
        assert memory.byte_length >= max(length, 160 << 20)
        assert memory.base_address == base
        check_views(views)
        del kept, array
        gc.collect()
        model.device.allocator.trim()
        for _ in range(20):
            model(X + 1)
        check_views(views)


def test_allocated_array_outlives_its_device_but_the_device_does_not_come_back(double):
    device = sylvite.create_device("local-sync")
    placed = device.allocate(64)
    placed[:] = X
    device.close()
    np.testing.assert_array_equal(placed, X)
    with pytest.raises(ClosedError):
        device.allocate(4)
    with sylvite.load(double) as model:
        before = model.device.tracer.counters.bytes_copied
        np.testing.assert_array_equal(model(placed), 2 * X)  # of another device: copied
        assert model.device.tracer.counters.bytes_copied - before == X.nbytes


def test_device_closed_under_its_models_raises_and_keeps_outputs(double):
    device = sylvite.create_device("local-sync")
    first, second = (sylvite.load(double, device=device) for _ in range(2))
    result = first(X)
    device.close()
    for model in (first, second):
        with pytest.raises(ClosedError):
            model(X)
        model.close()
    np.testing.assert_array_equal(result, 2 * X)


def test_threads_that_pass_buffers_between_models_get_right_results(double, product):
    wrong = []
    with (
        sylvite.create_device("local-sync") as device,
        sylvite.load(double, device=device) as first,
        sylvite.load(product, device=device) as second,
    ):

        def work(number):
            x = device.allocate(64)
            x[:] = number
            for step in range(40):
                products, differences = second(first(x), x)
                if not ((products == 2 * number * number).all() and (differences == number).all()):
                    wrong.append((number, step))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert device.tracer.counters.bytes_copied == 0
    assert not wrong
