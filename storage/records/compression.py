"""The five codecs of a record batch: names, compression and decompression of a body.

Place: under codec.py, which opens and builds records; check.py uses only the numbers.
Invariant: decompression never uses more memory than the caller's limit, regardless of the compressed bytes,
and compressing the same bytes gives the same bytes.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable

import cramjam
from aiokafka.codec import snappy_encode

from headrace.storage.errors import CorruptError
from headrace.storage.records.errors import BatchTooLargeError


class Codec(enum.IntEnum):
    """Bits 0-2 of a batch's attributes, with Kafka's numbers."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


MAX_EXPANSION = (1, 1032, 22, 255, 32_768)
"""Largest expansion by codec: the highest number of output bytes per compressed byte.

Deflate: 258 bytes in 2 bits. Snappy: 64 bytes in 3. LZ4: 255 for each byte of a match length.
Zstandard: a run of 128 KiB in 4 bytes.
"""

_TARGET_IS_FULL = ("failed to write whole buffer", "is smaller than required")
"""cramjam's messages for a full target; its other messages are about malformed bytes."""
_ZSTD_LEVEL = 3
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = struct.Struct(">i")


def compress(codec: Codec, body: bytes) -> bytes:
    """`body` compressed in the form that Kafka's clients expect: xerial framing for snappy, independent blocks for
    LZ4.
    """
    if codec is Codec.NONE:
        return body
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(body))
    if codec is Codec.SNAPPY:
        return bytes(snappy_encode(body))
    if codec is Codec.ZSTD:
        return bytes(cramjam.zstd.compress(body, level=_ZSTD_LEVEL))
    packer = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
    packer.compress(body)
    return bytes(packer.finish())


def decompress_into(codec: Codec, body: memoryview, target: memoryview) -> int:
    """Decompress `body` into `target`; returns the number of bytes written.

    CorruptError if `body` is malformed, BatchTooLargeError if it expands beyond `target` (a compression bomb).
    """
    try:
        return _UNPACK[codec](body, target)
    except cramjam.DecompressionError as error:
        text = f"codec={codec.name.lower()} size={len(body)} limit={len(target)} {error}"
        if any(words in str(error) for words in _TARGET_IS_FULL):
            raise BatchTooLargeError(f"records too large to unpack: {text}") from error
        raise CorruptError(f"broken compressed records: {text}") from error


def _unpack_snappy(body: memoryview, target: memoryview) -> int:
    """Raw snappy (librdkafka), or the Java library's framing: a 16-byte header, then length-prefixed raw blocks."""
    if body[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return int(cramjam.snappy.decompress_raw_into(body, target))
    position, written = _XERIAL_HEADER_BYTES, 0
    while position < len(body):
        start = position + _BLOCK_LENGTH.size
        if start > len(body):
            raise CorruptError(f"broken compressed records: codec=snappy truncated at {position} of {len(body)}")
        (length,) = _BLOCK_LENGTH.unpack_from(body, position)
        position = start + length
        if length <= 0 or position > len(body):
            raise CorruptError(f"broken compressed records: codec=snappy block={length} at {start} of {len(body)}")
        written += int(cramjam.snappy.decompress_raw_into(body[start:position], target[written:]))
    return written


_UNPACK: dict[Codec, Callable[[memoryview, memoryview], int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.SNAPPY: _unpack_snappy,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}
