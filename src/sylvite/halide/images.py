"""Images and arrays in files, and how they become a pipeline's arguments: PNG, JPEG and whatever else Pillow
reads, and numpy's ``.npy``. Needs the ``halide`` extra for images."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, InvalidArgumentError, NotFoundError, UnavailableError
from .metadata import Argument
from .types import TypeCode

__all__ = ["as_input", "as_picture", "draw", "read_array", "to_html", "write_array"]

Array = npt.NDArray[Any]

_SHADES = " ░▒▓█"
_LUMA = (0.299, 0.587, 0.114)


def _imageio() -> ModuleType:
    try:
        import imageio.v3
    except ImportError as error:
        raise UnavailableError(
            "reading and writing images needs imageio and Pillow", extra="halide"
        ) from error
    module: ModuleType = imageio.v3
    return module


def read_array(path: str | Path) -> Array:
    """The array in a file: ``[y, x]`` or ``[y, x, c]`` for images.

    Raises:
        NotFoundError: no such file.
        FormatError: it cannot be read.
        UnavailableError: images need packages that are not installed.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFoundError(f"no such file: {path}")
    try:
        if path.suffix.lower() == ".npy":
            return np.asarray(np.load(path, allow_pickle=False))
        return np.asarray(_imageio().imread(path))
    except (OSError, ValueError, SyntaxError) as error:
        raise FormatError(f"cannot be read: {error}", where=str(path)) from error


def write_array(path: str | Path, array: Array) -> None:
    """Write ``.npy`` as it is, images as `as_picture` makes them.

    Raises:
        InvalidArgumentError: the array is no picture, or the format is not known.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        np.save(path, array)
        return
    picture = array if array.dtype == np.uint16 and path.suffix.lower() == ".png" else as_picture(array)
    try:
        _imageio().imwrite(path, picture)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(f"cannot write {path}: {error}") from error


def as_picture(array: Array) -> Array:
    """An array as 8-bit grey or RGB: floats from 0..1, wider integers scaled down.

    Raises:
        InvalidArgumentError: it does not have two axes, or three with 1, 3 or 4 channels.
    """
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise InvalidArgumentError(f"an array of shape {array.shape} is no picture")
    if array.dtype == np.bool_:
        array = np.where(array, np.uint8(255), np.uint8(0))
    if array.dtype.kind in "fV":
        with np.errstate(invalid="ignore"):
            scaled = np.nan_to_num(np.clip(array.astype(np.float32), 0, 1)) * 255 + 0.5
        picture: Array = scaled.astype(np.uint8)
        return picture
    if array.dtype == np.uint16:
        array = array >> 8
    clipped: Array = np.clip(array, 0, 255).astype(np.uint8)
    return clipped


def as_input(array: Array, argument: Argument) -> Array:
    """An image as a pipeline wants it: grey or colour by its dimensions, 0..1 for floats.

    Raises:
        InvalidArgumentError: it has no such number of axes, or its elements do not convert.
    """
    if array.ndim == 3 and argument.dimensions == 2:
        array = (array[:, :, :3] @ np.array(_LUMA)).round().astype(array.dtype)
    elif array.ndim == 2 and argument.dimensions == 3:
        array = np.repeat(array[:, :, None], 3, axis=2)
    elif array.ndim == 3 and argument.dimensions == 3 and array.shape[2] == 4:
        array = array[:, :, :3]
    wanted = argument.type.dtype
    converted: Array
    if array.dtype == wanted:
        return array
    if argument.type.code in (TypeCode.FLOAT, TypeCode.BFLOAT):
        scale = np.iinfo(array.dtype).max if array.dtype.kind == "u" else 1
        converted = (array.astype(np.float32) / np.float32(scale)).astype(wanted)
        return converted
    if array.dtype == np.uint8 and wanted == np.uint16:
        converted = array.astype(np.uint16)
        converted *= np.uint16(257)
        return converted
    if np.can_cast(array.dtype, wanted):
        return array.astype(wanted)
    raise InvalidArgumentError(f"{argument.name} wants {wanted}, the file holds {array.dtype}")


def draw(array: Array, width: int = 64, *, colour: bool = True) -> str:
    """A picture as text, two rows of pixels per line.

    Args:
        array: a picture; see `as_picture`.
        width: most columns.
        colour: with ANSI colours; else in four shades of grey.
    """
    picture = as_picture(array)
    if picture.ndim == 2:
        picture = np.repeat(picture[:, :, None], 3, axis=2)
    step = max(1, -(-picture.shape[1] // width))
    height, columns = picture.shape[0] // step // 2 * 2, picture.shape[1] // step
    if not height or not columns:
        return ""
    cells = picture[: height * step, : columns * step, :3].reshape(height, step, columns, step, 3)
    pixels = cells.mean((1, 3)).astype(int)
    if not colour:
        grey = ((pixels[::2] + pixels[1::2]) // 2).mean(2).astype(int)
        return "\n".join("".join(_SHADES[value * 4 // 255] for value in row) for row in grey.tolist())
    lines = []
    for top, bottom in zip(pixels[::2], pixels[1::2], strict=True):
        line = "".join(
            f"\x1b[38;2;{a[0]};{a[1]};{a[2]};48;2;{b[0]};{b[1]};{b[2]}m▀"
            for a, b in zip(top.tolist(), bottom.tolist(), strict=True)
        )
        lines.append(line + "\x1b[0m")
    return "\n".join(lines)


def to_html(pictures: Sequence[tuple[str, Array]], title: str) -> str:
    """A page with pictures side by side, self-contained."""
    cells = []
    for caption, array in pictures:
        buffer = io.BytesIO()
        _imageio().imwrite(buffer, as_picture(array), extension=".png")
        data = base64.b64encode(buffer.getvalue()).decode()
        cells.append(
            f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption} {array.shape} {array.dtype}</figcaption></figure>"
        )
    style = "body{font-family:sans-serif;display:flex;flex-wrap:wrap}img{max-width:46vw}"
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{style}</style>{''.join(cells)}\n"
    )
