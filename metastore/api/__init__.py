"""The metastore's boundary: every operation that other packages may ask for, as Protocols grouped by noun.

Words: a *value* is a frozen tuple or data class that crosses the boundary; a *refusal* is an expected "no"
and is a value; an error is an exception of storage/errors.py.
Place: between the stored file and the acknowledgement on the write path; before the first byte on the read
path; under groups, background jobs and tools. metastore/postgres/ implements it; tests/model/ is the reference.
Invariant: each operation is one statement or one short server-side transaction. No lock outlasts the
statement, so a caller that crashes or pauses in mid-call blocks no other.
Errors, for every operation: UnavailableError (it did not happen), OutcomeUnknownError (its answer was lost;
repeat the same call), InvalidError (a bug of the caller).
Units: positions and lengths in bytes, offsets in records, times in milliseconds since the epoch on the
database's clock. `partition_key` as in metastore/keys.py.
"""
