"""Updates that say all of their segment: its facts are in their custom metadata.

Place: written by rendering.py and migration.py; read by the projection and the migration.
Invariant: after compaction the update of a finished upload is the only record of its key, and `full_of` has what the
segment's first record said. Custom metadata of others is bytes of any kind, and says nothing here.
"""

from __future__ import annotations

import json

from headrace.metastore.api.segment_states import RemoteLogSegmentState
from headrace.metastore.segment_logs.records import (
    NO_OFFSET,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    SegmentLeaderEpoch,
)


def update_of(
    full: RemoteLogSegmentMetadataRecord, state: RemoteLogSegmentState
) -> RemoteLogSegmentMetadataUpdateRecord:
    """The update that is the segment's only record after compaction: its custom metadata has what the update lacks."""
    facts = {
        "startOffset": full.start_offset,
        "maxTimestampMs": full.max_timestamp_ms,
        "sizeBytes": full.segment_size_in_bytes,
        "leaderEpochs": [[each.leader_epoch, each.offset] for each in full.segment_leader_epochs],
        "custom": None if full.custom_metadata is None else full.custom_metadata.hex(),
    }
    return RemoteLogSegmentMetadataUpdateRecord(
        remote_log_segment_id=full.remote_log_segment_id,
        broker_id=full.broker_id,
        event_timestamp_ms=full.event_timestamp_ms,
        custom_metadata=json.dumps(facts).encode(),
        remote_log_segment_state=state,
        broker_leader_epoch=full.broker_leader_epoch,
        end_offset=full.end_offset,
    )


def full_of(value: RemoteLogSegmentMetadataUpdateRecord) -> RemoteLogSegmentMetadataRecord | None:
    """The segment of an update, by its custom metadata; None if that is not ours, or has no start offset."""
    try:
        facts = json.loads(value.custom_metadata or b"null")
        if not isinstance(facts, dict) or value.end_offset == NO_OFFSET:
            return None
        epochs = facts.get("leaderEpochs") or [[facts.get("leaderEpoch", 0), facts["startOffset"]]]
        custom = facts.get("custom")
        return RemoteLogSegmentMetadataRecord(
            remote_log_segment_id=value.remote_log_segment_id,
            start_offset=facts["startOffset"],
            end_offset=value.end_offset,
            broker_id=value.broker_id,
            max_timestamp_ms=facts.get("maxTimestampMs", -1),
            event_timestamp_ms=value.event_timestamp_ms,
            segment_leader_epochs=tuple(SegmentLeaderEpoch(leader_epoch=e, offset=o) for e, o in epochs),
            segment_size_in_bytes=facts.get("sizeBytes", 0),
            custom_metadata=None if custom is None else bytes.fromhex(custom),
            remote_log_segment_state=value.remote_log_segment_state,
            broker_leader_epoch=value.broker_leader_epoch,
        )
    except (ValueError, KeyError, TypeError):
        return None
