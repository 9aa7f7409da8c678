"""Records of the metadata log, one of each type and more, with the bytes that they never lose."""

from __future__ import annotations

import uuid

from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.kip631_records import (
    AccessControlRecord,
    AncestorEpoch,
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    CredentialInfo,
    DelegationTokenRecord,
    EntityData,
    FailedReplicasRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    QuotaRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    TopicWithFailures,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from headrace.metastore.log.own_records import (
    AliasPartitionRecord,
    ControlledShutdownRecord,
    DoubleTopicRecord,
    HalveTopicRecord,
    HideBrokerRecord,
    MarkPartitionRecord,
    PartitionCountRecord,
    RemoveAccessControlRecord,
    RemoveDelegationTokenRecord,
    RemoveFeatureLevelRecord,
    RemovePartitionRecord,
    RemoveUserScramCredentialRecord,
    ScramKeys,
    ShowBrokerRecord,
    SplitPartitionRecord,
    UserScramKeysRecord,
)

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
ID_HEX = "00112233445566778899aabbccddeeff"

# Frozen: written out manually from KIP-631's schemas and KIP-482's encoding.
SEEDS_NAMES = (
    "RegisterBrokerRecord",
    "UnregisterBrokerRecord",
    "TopicRecord",
    "PartitionRecord",
    "ConfigRecord",
    "PartitionChangeRecord",
    "AccessControlRecord",
    "FenceBrokerRecord",
    "UnfenceBrokerRecord",
    "RemoveTopicRecord",
    "DelegationTokenRecord",
    "UserScramCredentialRecord",
    "FeatureLevelRecord",
    "FailedReplicasRecord",
    "QuotaRecord",
)
"""KIP-631's schemas, by their numbers: 0 to 14."""
OWN_NAMES = (
    "RemoveAccessControlRecord",
    "RemoveUserScramCredentialRecord",
    "RemoveDelegationTokenRecord",
    "RemoveFeatureLevelRecord",
    "ControlledShutdownRecord",
    "HideBrokerRecord",
    "ShowBrokerRecord",
    "PartitionCountRecord",
    "MarkPartitionRecord",
    "RemovePartitionRecord",
    "SplitPartitionRecord",
    "UserScramKeysRecord",
    "HalveTopicRecord",
    "AliasPartitionRecord",
    "DoubleTopicRecord",
)
"""The removals that KIP-631 lacks, the announcement of a shutdown, agents hidden from clients, and changes of counts:
100 to 114."""

GOLDEN: list[tuple[MetadataRecord, str]] = [
    (
        RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=ID,
            broker_epoch=300,
            end_points=(BrokerEndpoint(name="P", host="h", port=65535, security_protocol=0),),
            features=(BrokerFeature(name="f", min_version=1, max_version=2),),
            rack=None,
        ),
        f"000000 00000001 {ID_HEX} 000000000000012c 02 0250 0268 ffff 0000 00 02 0266 0001 0002 00 00 00",
    ),
    (
        RegisterBrokerRecord(
            broker_id=1, incarnation_id=ID, broker_epoch=300, end_points=None, features=None, rack="az"
        ),
        f"000000 00000001 {ID_HEX} 000000000000012c 00 00 03617a 00",
    ),
    (UnregisterBrokerRecord(broker_id=7, broker_epoch=9), "000100 00000007 0000000000000009 00"),
    (TopicRecord(topic_name="bar", topic_id=ID), f"000200 04626172 {ID_HEX} 00"),
    (
        TopicRecord(topic_name="bar", topic_id=ID, initial_partition_count=3, undeleted_partition_count=4),
        f"000200 04626172 {ID_HEX} 02 904e 04 00000003 914e 04 00000004",
    ),
    (TopicRecord(topic_name="bar", topic_id=ID, replication_factor=3), f"000200 04626172 {ID_HEX} 01 934e 02 0003"),
    (
        PartitionRecord(
            partition_id=2,
            topic_id=ID,
            replicas=(1, 2),
            isr=(1,),
            removing_replicas=(),
            adding_replicas=(),
            leader=-1,
            leader_epoch=5,
        ),
        f"000300 00000002 {ID_HEX} 03 00000001 00000002 02 00000001 01 01 ffffffff 00000005 00",
    ),
    (
        ConfigRecord(resource_type=2, resource_name="t", name="n", value="v"),
        "000400 02 0274 026e 0276 00",
    ),
    (ConfigRecord(resource_type=4, resource_name="", name="n", value=None), "000400 04 01 026e 00 00"),
    (PartitionChangeRecord(partition_id=1, topic_id=ID), f"000500 00000001 {ID_HEX} 00"),
    (
        PartitionChangeRecord(partition_id=1, topic_id=ID, isr=(3,), leader=-1, adding_replicas=()),
        f"000500 00000001 {ID_HEX} 03 00 05 02 00000003 01 04 ffffffff 04 01 01",
    ),
    (
        AccessControlRecord(
            resource_type=2,
            resource_name=None,
            pattern_type=3,
            principal="U",
            host="*",
            operation=-1,
            permission_type=1,
        ),
        "000600 02 00 03 0255 022a ff 01 00",
    ),
    (FenceBrokerRecord(broker_id=7, broker_epoch=9), "000700 00000007 0000000000000009 00"),
    (UnfenceBrokerRecord(broker_id=7, broker_epoch=9), "000800 00000007 0000000000000009 00"),
    (RemoveTopicRecord(topic_id=ID), f"000900 {ID_HEX} 00"),
    (
        DelegationTokenRecord(
            owner="o",
            renewers=("a", "b"),
            issue_timestamp=1,
            max_timestamp=2,
            expiration_timestamp=-1,
            token_id="t",
        ),
        "000a00 026f 03 0261 0262 0000000000000001 0000000000000002 ffffffffffffffff 0274 00",
    ),
    (
        UserScramCredentialRecord(
            user_name="u",
            credential_infos=(CredentialInfo(mechanism=1, salt=b"\x00\xff", salted_password=b"", iterations=4096),),
        ),
        "000b00 0275 02 01 0300ff 01 00001000 00 00",
    ),
    (
        FeatureLevelRecord(name="metadata.format", min_feature_level=1, max_feature_level=2),
        "000c00 106d657461646174612e666f726d6174 0001 0002 00",
    ),
    (
        FailedReplicasRecord(broker_id=3, topics=(TopicWithFailures(topic_id=ID, partitions=(0,)),)),
        f"000d00 00000003 02 {ID_HEX} 02 00000000 00 00",
    ),
    (
        QuotaRecord(entity=(EntityData(entity_type="user", entity_name=None),), key="k", value=1.5, remove=True),
        "000e00 02 0575736572 00 00 026b 3ff8000000000000 01 00",
    ),
    (
        TopicRecord(topic_name="bar", topic_id=ID, topic_number=5),
        f"000200 04626172 {ID_HEX} 01 924e 08 0000000000000005",
    ),
    (
        RemoveAccessControlRecord(
            resource_type=2,
            resource_name="r",
            pattern_type=3,
            principal="U",
            host="*",
            operation=-1,
            permission_type=1,
        ),
        "006400 02 0272 03 0255 022a ff 01 00",
    ),
    (RemoveUserScramCredentialRecord(user_name="u"), "006500 0275 00"),
    (RemoveDelegationTokenRecord(token_id="t"), "006600 0274 00"),
    (RemoveFeatureLevelRecord(name="f"), "006700 0266 00"),
    (ControlledShutdownRecord(broker_id=7, broker_epoch=9), "006800 00000007 0000000000000009 00"),
    (HideBrokerRecord(broker_id=7, broker_epoch=9), "006900 00000007 0000000000000009 00"),
    (ShowBrokerRecord(broker_id=7, broker_epoch=9), "006a00 00000007 0000000000000009 00"),
    (
        PartitionRecord(
            partition_id=9,
            topic_id=ID,
            replicas=(),
            isr=(),
            removing_replicas=(),
            adding_replicas=(),
            leader=-1,
            leader_epoch=5,
            source=1,
            source_epoch=4,
            before_deletion=(AncestorEpoch(ancestor=1, leader_epoch=6),),
            is_removed=True,
        ),
        f"000300 00000009 {ID_HEX} 01 01 01 01 ffffffff 00000005 04"
        " 904e 04 00000001 914e 04 00000004 924e 0a 02 00000001 00000006 00 934e 01 01",
    ),
    (
        PartitionCountRecord(topic_id=ID, initial_partition_count=8, undeleted_partition_count=13),
        f"006b00 {ID_HEX} 00000008 0000000d 00",
    ),
    (
        MarkPartitionRecord(partition_id=9, topic_id=ID, before_deletion=(AncestorEpoch(ancestor=1, leader_epoch=6),)),
        f"006c00 00000009 {ID_HEX} 02 00000001 00000006 00 00",
    ),
    (RemovePartitionRecord(partition_id=9, topic_id=ID), f"006d00 00000009 {ID_HEX} 00"),
    (
        SplitPartitionRecord(partition_id=1, topic_id=ID, child=9, boundary=258),
        f"006e00 00000001 {ID_HEX} 00000009 0000000000000102 00",
    ),
    (DoubleTopicRecord(topic_id=ID, partition_count=258), f"007200 {ID_HEX} 00000102 00"),
    (
        UserScramKeysRecord(
            user_name="u",
            keys=(ScramKeys(mechanism=2, salt=b"\x00\xff", iterations=4096, stored_key=b"\x01", server_key=b""),),
        ),
        "006f00 0275 02 02 0300ff 00001000 0201 01 00 00",
    ),
    (HalveTopicRecord(topic_id=ID, partition_count=4), f"007000 {ID_HEX} 00000004 00"),
    (AliasPartitionRecord(partition_id=9, topic_id=ID, parent=1), f"007100 00000009 {ID_HEX} 00000001 00"),
]
