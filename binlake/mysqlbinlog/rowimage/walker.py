"""Finds where each row of an event begins: a function generated for one shape, which only adds up sizes.

Rows have no stored lengths; a row begins where the previous one ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from struct import Struct

from binlake.mysqlbinlog.rowimage.shape import ImageShape, Shape

Walk = Callable[[bytes, int], list[int]]
"""(rows, where they end) -> the offset of each row. Raises IndexError or struct.error if a row is cut short."""

_KNOWN_WALKERS = 1024
_LENGTHS = {1: "d[i]", 2: "(d[i] | d[i + 1] << 8)", 3: "(d[i] | d[i + 1] << 8 | d[i + 2] << 16)", 4: "u32(d, i)[0]"}


@lru_cache(_KNOWN_WALKERS)
def compile_walker(shape: Shape) -> Walk:
    """The walker of a shape; not for partial updates, whose rows contain more than images."""
    lines = ["def walk(d, n):", " i, out = 0, []", " add = out.append", " while i < n:", "  add(i)"]
    for image in shape.images:
        lines += _render_image_lines(image)
    lines += [" if i != n: raise IndexError(i)", " return out"]
    names: dict[str, Walk] = {}
    exec("\n".join(lines), {"u32": Struct("<I").unpack_from}, names)
    return names["walk"]


def _render_image_lines(image: ImageShape) -> Iterator[str]:
    size, count = image.null_bytes, len(image.columns)
    bits = _LENGTHS[size] if size < 3 else f"int.from_bytes(d[i:i + {size}], 'little')"
    # Bits beyond the last column may be set.
    yield f"  b = {bits} & {(1 << count) - 1}"
    yield f"  i += {size}"
    yield "  if not b:"
    yield from (f"   {line}" for line in _render_whole_lines(image))
    yield "  else:"
    for index, column in enumerate(image.columns):
        layout = column.layout
        step = f"{layout.prefix} + {_LENGTHS[layout.prefix]}" if layout.prefix else str(layout.size)
        yield f"   if not b & {1 << index}: i += {step}"


def _render_whole_lines(image: ImageShape) -> Iterator[str]:
    """Lines for rows without NULLs: consecutive columns of fixed size are one step."""
    step, length = 0, ""
    for column in image.columns:
        layout = column.layout
        if layout.prefix:
            yield f"i += {step}{length}"
            step, length = layout.prefix, f" + {_LENGTHS[layout.prefix]}"
        else:
            step += layout.size
    yield f"i += {step}{length}"
