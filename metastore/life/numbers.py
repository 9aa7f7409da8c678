"""The numbers that one life of the metastore may hand out.

Place: where a new life begins, and where leader epochs and generations of groups are first written; SQL has the same
arithmetic in metastore/postgres/life/life_numbers.sql.
Invariant: a life's numbers are all above those of every earlier life. Nothing that an old life handed out is handed
out again, although the rows that say so were lost. Life 0 begins at 0: the numbers of a cluster that is older than
this rule are in it.
"""

from __future__ import annotations

from headrace.storage.errors import InvalidError

NO_LIFE = -1
"""A process that knows of no life in which it may write: Postgres refuses each writing call."""
LOG_BITS = 27
"""Bits for the log of a life: 134 million records of the metadata log; a topic number is an offset and has 39 bits,
so 4,096 times.
"""
EPOCH_BITS = 20
"""Bits for the epochs of a life: a million raises of a partition's leader epoch, of the controller epoch or of a
group's generation. Job epochs begin there too, but at least a million above the last one that the server knows: a
life draws more.
"""
NUMBER_BITS = 40
"""Bits for the numbers of a life: 1.1e12 producer ids and coordinator epochs of groups."""
LIFE_MAX = (1 << (31 - EPOCH_BITS)) - 1
"""2,047: what int32 epochs leave room for; the other numbers have room for more."""


def log_floor(life: int) -> int:
    """The first offset of the metadata log in this life. InvalidError beyond LIFE_MAX."""
    return _checked(life) << LOG_BITS


def epoch_floor(life: int) -> int:
    """The lowest leader epoch, controller epoch and group generation of this life. InvalidError beyond LIFE_MAX."""
    return _checked(life) << EPOCH_BITS


def epochs_of_life(life: int) -> range:
    """The leader epochs, controller epochs and group generations of this life. InvalidError beyond LIFE_MAX."""
    return range(epoch_floor(life), epoch_floor(life) + (1 << EPOCH_BITS))


def life_of_offset(offset: int) -> int:
    """The life in which an offset of the metadata log was handed out."""
    return offset >> LOG_BITS


def life_of_epoch(epoch: int) -> int:
    """The life in which a leader epoch, a controller epoch or a generation of a group was handed out."""
    return epoch >> EPOCH_BITS


def life_of_number(number: int) -> int:
    """The life in which a producer id or a coordinator epoch was handed out."""
    return number >> NUMBER_BITS


def _checked(life: int) -> int:
    if not 0 <= life <= LIFE_MAX:
        raise InvalidError(f"the metastore of a cluster has no life of this number: life={life} highest={LIFE_MAX}")
    return life
