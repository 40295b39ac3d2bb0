"""Pipelines of the example, written in Halide's Python: a resize with normalisation, and a sharpener."""

from __future__ import annotations

import halide as hl

x, y, c = hl.Var("x"), hl.Var("y"), hl.Var("c")
yo, yi = hl.Var("yo"), hl.Var("yi")


def prepare():
    """u8 photo to normalised f32 at a quarter of its size: a 4x4 box filter, then (v - mean) / deviation."""
    photo = hl.ImageParam(hl.UInt(8), 3, "photo")
    photo.dim(0).set_stride(hl.Expr())  # interleaved or planar
    mean = hl.Param(hl.Float(32), "mean", 0.5)
    deviation = hl.Param(hl.Float(32), "deviation", 0.25)
    r = hl.RDom([(0, 4), (0, 4)])
    small, out = hl.Func("small"), hl.Func("tensor")
    small[x, y, c] = hl.f32(0.0)
    small[x, y, c] += hl.f32(photo[4 * x + r.x, 4 * y + r.y, c])
    out[x, y, c] = (small[x, y, c] / hl.f32(16 * 255) - mean) / deviation
    small.compute_at(out, x)
    out.parallel(c)
    return out, [photo, mean, deviation]


def sharpen():
    """Unsharp mask: the photo plus its difference from a 5x5 blur, times ``amount``."""
    photo = hl.ImageParam(hl.UInt(8), 3, "photo")
    amount = hl.Param(hl.Float(32), "amount", 1.5)
    amount.set_range(-1.0, 10.0)
    edge = hl.BoundaryConditions.repeat_edge(photo)
    weights = (1, 4, 6, 4, 1)
    wide, across, blurred, out = hl.Func("wide"), hl.Func("across"), hl.Func("blurred"), hl.Func("sharp")
    wide[x, y, c] = hl.i32(edge[x, y, c])
    across[x, y, c] = sum(w * wide[x + i - 2, y, c] for i, w in enumerate(weights))
    blurred[x, y, c] = hl.f32(sum(w * across[x, y + i - 2, c] for i, w in enumerate(weights))) / hl.f32(256.0)
    value = hl.f32(wide[x, y, c])
    out[x, y, c] = hl.u8_sat(hl.round(value + amount * (value - blurred[x, y, c])))
    out.split(y, yo, yi, 16).parallel(yo).vectorize(x, 8)
    across.compute_at(out, yi).store_at(out, yo).vectorize(x, 8)
    return out, [photo, amount]
