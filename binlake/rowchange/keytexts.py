"""Keys of many rows at once: the text that `row_key` makes of one, which is that of `mutation.key` too."""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.codec.texts import text_bytes

_NEEDS_ESCAPE = np.zeros(256, np.bool_)
_NEEDS_ESCAPE[:0x20] = True
_NEEDS_ESCAPE[[ord('"'), ord("\\")]] = True


def key_texts(columns: Sequence[pa.Array]) -> pa.Array:
    """The JSON array of each row's texts, `columns` by place in the key; null for NULL."""
    pieces: list[pa.Array | pa.Scalar] = []
    constant = "["
    for number, texts in enumerate(columns):
        constant += "," if number else ""
        if texts.null_count:
            quoted = pc.binary_join_element_wise(_text('"'), _escaped(texts), _text('"'), _text(""))
            pieces += [_text(constant), pc.fill_null(quoted, "null")]
            constant = ""
        else:
            pieces += [_text(constant + '"'), _escaped(texts)]
            constant = '"'
    return pc.binary_join_element_wise(*pieces, _text(constant + "]"), _text(""))


def _escaped(texts: pa.Array) -> pa.Array:
    """`texts` as they stand between the quotes of JSON."""
    offsets, data = text_bytes(texts)
    odd = np.flatnonzero(_NEEDS_ESCAPE[data])
    if not odd.size:
        return texts
    rows = np.unique(np.searchsorted(offsets, odd, side="right") - 1)
    mask = np.zeros(len(texts), np.bool_)
    mask[rows] = True
    found = [encode_basestring(text)[1:-1] for text in texts.take(pa.array(rows)).to_pylist()]
    return pc.replace_with_mask(texts, pa.array(mask), pa.array(found, texts.type))


def _text(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.string())
