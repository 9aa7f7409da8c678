"""What merging small compressed batches at ingestion would cost: `python -m load.bench_merge_codecs`.

For each codec, 40 small batches of one partition are merged as agent/produce/merge.py merges uncompressed ones: each is
decompressed, the records are rewritten, and the result is compressed again. Prints CPU per merged GB of records, the
CPU for each batch that the commit is spared, and what becomes of the stored bytes. Compare it with what a batch costs
the commit: the line `without producer ids` of `python -m load.bench_commit`. `none` is what agents do today.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
import uuid
from typing import cast

import crc32c

from headrace.agent.produce.batches import Arrival
from headrace.agent.produce.merge import merge
from headrace.agent.produce.pending import PendingRequest
from headrace.protocol.produce_codec import ProducePartitionReply
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec, compress, decompress_into
from headrace.storage.records.header import CRC_START, HEADER, HEADER_BYTES, LENGTH_PREFIX_BYTES, read_header
from load.machine_state import machine_state

BATCHES = 40
MAX_BYTES = 1 << 20
CODEC_BITS = 7
SHAPES = ((1, 200), (4, 250), (8, 1_000))
"""Records of a batch, and bytes of a record's value."""


def batches(codec: Codec, records: int, value_bytes: int, rng: random.Random) -> list[bytes]:
    """As a producer without idempotence and with a short linger sends them."""
    return [
        encode_batch(
            [Record(n, 1_700_000_000_000 + batch, None, _value(value_bytes, rng), []) for n in range(records)],
            base_offset=0,
            codec=codec,
        )
        for batch in range(BATCHES)
    ]


def _value(size: int, rng: random.Random) -> bytes:
    """JSON of events: names repeat, numbers do not."""
    fields: dict[str, object] = {"user": rng.randrange(10**6), "event": rng.choice(["view", "click", "buy"])}
    while len(text := json.dumps(fields)) < size:
        fields[f"field_{len(fields)}"] = rng.choice([rng.randrange(10**9), f"value-{rng.randrange(1_000)}"])
    return text[:size].encode()


def opened(data: bytes) -> bytes:
    """The same batch without compression; its checksum is not needed for merging."""
    header = read_header(data)
    if not header.codec:
        return data
    target = bytearray(64 * len(data) + 4_096)
    size = decompress_into(Codec(header.codec), memoryview(data)[HEADER_BYTES:], memoryview(target))
    plain = header._replace(
        attributes=header.attributes & ~CODEC_BITS, batch_length=HEADER_BYTES - LENGTH_PREFIX_BYTES + size
    )
    return HEADER.pack(*plain) + bytes(target[:size])


def merged(codec: Codec, given: list[bytes]) -> bytes:
    """One batch of the codec with all records."""
    arrivals = []
    for data in map(opened, given):
        # merging looks at bytes and header only
        arrival = Arrival(
            uuid.UUID(int=0), 0, 0, 0, -2, memoryview(data), read_header(data),
            cast("PendingRequest", None), cast("ProducePartitionReply", None),
        )  # fmt: skip
        arrivals.append(arrival)
    (laid,) = merge(arrivals, MAX_BYTES)
    if codec is Codec.NONE:
        return bytes(laid.data)
    body = compress(codec, bytes(laid.data[HEADER_BYTES:]))
    header = laid.header._replace(
        attributes=laid.header.attributes | codec, batch_length=HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body)
    )
    sealed = header._replace(crc=crc32c.crc32c(body, crc32c.crc32c(HEADER.pack(*header)[CRC_START:])))
    return HEADER.pack(*sealed) + body


def main() -> None:
    """Print a line per shape and codec."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{machine_state()}, seed {arguments.seed}")
    print(f"{'records x bytes':>16} {'codec':>7} {'CPU s/GB':>9} {'us/batch':>9} {'stored before':>14} {'after':>7}")
    gc.disable()
    for records, value_bytes in SHAPES:
        for codec in Codec:
            given = batches(codec, records, value_bytes, random.Random(arguments.seed))
            merged(codec, given)
            began = time.process_time()
            for _ in range(arguments.rounds):
                result = merged(codec, given)
            seconds = (time.process_time() - began) / arguments.rounds
            opened_bytes = sum(len(opened(data)) - HEADER_BYTES for data in given)
            stored = sum(map(len, given))
            print(
                f"{f'{records} x {value_bytes}':>16} {codec.name.lower():>7} {seconds / opened_bytes * 1e9:9.1f}"
                f" {seconds / BATCHES * 1e6:9.1f} {stored:14} {len(result) / stored:7.2f}"
            )


if __name__ == "__main__":
    main()
