import java.nio.ByteBuffer;
import java.util.*;
import java.util.stream.Stream;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.protocol.types.*;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.ByteUtils;

/**
 * Random requests of one key and version, written by Kafka's schemas field by field.
 *
 * Fields with a known name are drawn from what exists or is refused for a reason, so that requests get past the first
 * check; one in ten is any value of its type. Two kinds never are: waits, which would hold the connection, and ids of
 * brokers and features, whose change would end the agent for the requests that follow.
 */
final class RandomRequests {
    static final List<String> TOPICS = List.of("codec-a", "codec-b");
    private static final int FIRST_UNKNOWN_TAG = 7000;
    static final List<String> GROUPS = List.of("codec-group-1", "codec-group-2", "codec-group-3");
    static final List<String> TRANSACTIONS = List.of("codec-txn-1", "codec-txn-1", "codec-txn-2");
    private static final List<String> CONFIGS = List.of("retention.ms", "cleanup.policy", "segment.ms", "no.such");
    private static final List<Integer> RESOURCES = List.of(2, 2, 2, 3, 4, 8, 16, 32);
    private static final List<String> SOME_TOPICS = List.of("codec-a", "codec-b", "codec-new", "__cluster_metadata");
    /** By the field's name; by `parent.name` first. */
    private static final Map<String, List<String>> TEXTS = Map.ofEntries(
        Map.entry("topic", SOME_TOPICS), Map.entry("topic_name", SOME_TOPICS), Map.entry("topic_names", TOPICS),
        Map.entry("topics", TOPICS), Map.entry("subscribed_topic_names", TOPICS), Map.entry("name", SOME_TOPICS),
        Map.entry("configs.name", CONFIGS), Map.entry("protocols.name", List.of("range", "sticky")),
        Map.entry("users.name", List.of("codec-user")), Map.entry("deletions.name", List.of("codec-user")),
        Map.entry("upsertions.name", List.of("codec-user", "codec-other")),
        Map.entry("group_id", GROUPS), Map.entry("groups", GROUPS), Map.entry("group_ids", GROUPS),
        Map.entry("groups_names", GROUPS), Map.entry("coordinator_keys", GROUPS), Map.entry("key", GROUPS),
        Map.entry("ops.key", List.of("producer_byte_rate", "consumer_byte_rate")),
        Map.entry("transactional_id", TRANSACTIONS), Map.entry("transactional_ids", TRANSACTIONS),
        Map.entry("transactional_id_pattern", List.of("codec.*", "(")), Map.entry("member_id", List.of("", "codec-m")),
        Map.entry("group_instance_id", List.of("codec-i")), Map.entry("instance_id", List.of("codec-i")),
        Map.entry("protocol_type", List.of("consumer")), Map.entry("protocol_name", List.of("range")),
        Map.entry("server_assignor", List.of("uniform", "range")),
        Map.entry("subscribed_topic_regex", List.of("codec-.*", "")),
        Map.entry("configuration_keys", CONFIGS), Map.entry("resource_name", List.of("codec-a", "codec-b", "", "1")),
        Map.entry("resource_name_filter", TOPICS), Map.entry("value", List.of("1000", "delete", "compact", "x")),
        Map.entry("entity_type", List.of("user", "client-id")), Map.entry("mechanism", List.of("PLAIN")),
        Map.entry("entity_name", List.of("codec-user", "codec-other")), Map.entry("match", List.of("codec-user")),
        Map.entry("client_software_name", List.of("codec")), Map.entry("client_software_version", List.of("1.0")),
        Map.entry("states_filter", List.of("Stable", "Empty")), Map.entry("state_filters", List.of("Ongoing", "Empty")),
        Map.entry("types_filter", List.of("classic", "consumer")), Map.entry("principal", List.of("User:codec")),
        Map.entry("principal_filter", List.of("User:codec")), Map.entry("host", List.of("*", "10.0.0.1")),
        Map.entry("host_filter", List.of("*")), Map.entry("principal_type", List.of("User")),
        Map.entry("feature", List.of("codec.version")));
    private static final Map<String, List<Integer>> BYTES = Map.ofEntries(
        Map.entry("resource_type", RESOURCES), Map.entry("resource_types", RESOURCES),
        Map.entry("resource_type_filter", List.of(1, 2, 3, 5)), Map.entry("pattern_type_filter", List.of(1, 2, 3, 4)),
        Map.entry("resource_pattern_type", List.of(3, 4)), Map.entry("operation", List.of(2, 3, 4, 8)),
        Map.entry("permission_type", List.of(2, 3)), Map.entry("key_type", List.of(0, 1)),
        Map.entry("config_operation", List.of(0, 1, 2, 3)), Map.entry("election_type", List.of(0, 1)),
        Map.entry("endpoint_type", List.of(1, 1, 2)), Map.entry("isolation_level", List.of(0, 1)),
        Map.entry("match_type", List.of(0, 1, 2)), Map.entry("upgrade_type", List.of(1, 2, 3)));
    private static final Set<String> PARTITIONS = Set.of("partition", "partition_index", "partition_indexes",
        "partitions", "index", "count", "num_partitions");
    private static final Set<String> BROKERS = Set.of("broker_id", "broker_ids", "replicas", "replica_id");
    private static final String CHARACTERS = "abcXYZ09.-_ /:*\"'\\\u0000\n\u00e9\u0436\u6f22\ud83d\ude00";

    private final Random random;
    private final List<Uuid> topicIds;
    private final Map<String, Object> answered;

    /** `answered`: values of earlier answers by the field's name, as members' ids: requests go on from them. */
    RandomRequests(Random random, List<Uuid> topicIds, Map<String, Object> answered) {
        this.random = random;
        this.topicIds = topicIds;
        this.answered = answered;
    }

    byte[] body(ApiMessageType type, short version) {
        ByteBuffer bytes = ByteBuffer.allocate(1 << 20);
        write(bytes, type.requestSchemas()[version], "", "");
        byte[] body = Arrays.copyOf(bytes.array(), bytes.position());
        CodecCheck.read(type.newRequest(), body, version);
        return body;
    }

    byte[] header(ApiMessageType type, short version, int correlation) {
        RequestHeaderData header = new RequestHeaderData().setRequestApiKey(type.apiKey())
            .setRequestApiVersion(version).setCorrelationId(correlation)
            .setClientId(pick(Arrays.asList("codec", "", null)));
        if (type.requestHeaderVersion(version) >= 2 && random.nextInt(4) == 0)
            header.unknownTaggedFields().add(new RawTaggedField(FIRST_UNKNOWN_TAG, bytes(5)));
        return CodecCheck.written(header, type.requestHeaderVersion(version));
    }

    private void write(ByteBuffer out, Type type, String parent, String field) {
        if (type instanceof Schema) {
            if (type.isNullable()) {
                boolean absent = random.nextBoolean();
                out.put((byte) (absent ? -1 : 1));
                if (absent)
                    return;
            }
            for (BoundField each : ((Schema) type).fields())
                write(out, each.def.type, field, each.def.name);
        } else if (type instanceof TaggedFields) {
            writeTags(out, ((TaggedFields) type).fields());
        } else if (type.isArray()) {
            writeArray(out, type, parent, field);
        } else if (type == Type.NULLABLE_RECORDS) {
            Type.NULLABLE_BYTES.write(out, random.nextInt(10) == 0 ? null : records());
        } else if (type == Type.COMPACT_NULLABLE_RECORDS) {
            Type.COMPACT_NULLABLE_BYTES.write(out, random.nextInt(10) == 0 ? null : records());
        } else {
            type.write(out, value(type, parent, field));
        }
    }

    private void writeTags(ByteBuffer out, Map<Integer, Field> known) {
        TreeMap<Integer, byte[]> tags = new TreeMap<>();
        known.forEach((tag, field) -> {
            if (random.nextBoolean()) {
                ByteBuffer content = ByteBuffer.allocate(1 << 16);
                write(content, field.type, "", field.name);
                tags.put(tag, Arrays.copyOf(content.array(), content.position()));
            }
        });
        if (random.nextInt(10) == 0)
            tags.put(FIRST_UNKNOWN_TAG + random.nextInt(100), bytes(random.nextInt(20)));
        ByteUtils.writeUnsignedVarint(tags.size(), out);
        tags.forEach((tag, content) -> {
            ByteUtils.writeUnsignedVarint(tag, out);
            ByteUtils.writeUnsignedVarint(content.length, out);
            out.put(content);
        });
    }

    private void writeArray(ByteBuffer out, Type type, String parent, String field) {
        boolean compact = type instanceof CompactArrayOf;
        int size = type.isNullable() && random.nextInt(5) == 0 ? -1 : pick(List.of(0, 1, 1, 1, 2, 4));
        if (compact)
            ByteUtils.writeUnsignedVarint(size + 1, out);
        else
            out.putInt(size);
        for (int n = 0; n < size; n++)
            write(out, type.arrayElementType().get(), parent, field);
    }

    private Object value(Type type, String parent, String field) {
        if (type.isNullable() && random.nextInt(4) == 0)
            return null;
        Object known = answered.get(field.equals("generation_id_or_member_epoch") ? "generation_id" : field);
        if (known != null && random.nextBoolean())
            return known;
        boolean any = random.nextInt(10) == 0;
        if (type == Type.BOOLEAN)
            return random.nextBoolean();
        if (type == Type.INT8)
            return (byte) (any ? random.nextInt() : (int) pick(BYTES.getOrDefault(field, List.of(0, 1, 2))));
        if (type == Type.INT16)
            return int16(field, any);
        if (type == Type.UINT16)
            return random.nextInt(1 << 16);
        if (type == Type.INT32)
            return int32(field, any);
        if (type == Type.INT64)
            return any ? random.nextLong() : (long) pick(List.of(-6, -3, -2, -1, 0, 1, 3, 1000));
        if (type == Type.FLOAT64)  // a small quota would mute this connection
            return pick(List.of(1e9, 1e15, -1.0, Double.NaN, Double.POSITIVE_INFINITY));
        if (type == Type.UUID)
            return pick(Stream.concat(topicIds.stream(), Stream.of(Uuid.ZERO_UUID, uuid())).toList());
        if (type.toString().contains("BYTES"))
            return ByteBuffer.wrap(bytes(random.nextInt(40)));
        List<String> usual = TEXTS.getOrDefault(parent + "." + field, TEXTS.get(field));
        return any || usual == null ? text() : pick(usual);
    }

    private short int16(String field, boolean any) {
        if (field.equals("acks"))
            return pick(List.of((short) -1, (short) 1, (short) 7));
        return any ? (short) random.nextInt() : pick(List.of((short) -1, (short) 0, (short) 1, (short) 3));
    }

    private int int32(String field, boolean any) {
        if (field.endsWith("_ms"))
            return field.startsWith("session") ? 6000 + random.nextInt(1000) : random.nextInt(30);
        if (field.equals("member_epoch"))
            return pick(List.of(0, 0, 0, 1, -1, -2));
        if (field.equals("iterations"))
            return pick(List.of(4096, 8192, 1));
        if (BROKERS.contains(field))
            return random.nextInt(4) < (field.equals("replica_id") ? 3 : 1) ? -1 : 100_000 + random.nextInt(1000);
        if (PARTITIONS.contains(field))
            return any ? random.nextInt() | 1 << 30 : random.nextInt(5) - 1;
        return any ? random.nextInt() : pick(List.of(-1, 0, 0, 1, 2, 100, 1 << 20));
    }

    private String text() {
        int[] characters = CHARACTERS.codePoints().toArray();
        StringBuilder text = new StringBuilder();
        for (int size = random.nextInt(20) == 0 ? 300 : random.nextInt(12); size > 0; size--)
            text.appendCodePoint(characters[random.nextInt(characters.length)]);
        return text.toString();
    }

    private ByteBuffer records() {
        if (random.nextInt(5) == 0)
            return ByteBuffer.wrap(bytes(random.nextInt(100)));
        return MemoryRecords.withRecords(Compression.NONE, new SimpleRecord(1_000_000L, bytes(3), bytes(10)),
            new SimpleRecord(bytes(8))).buffer();
    }

    private Uuid uuid() {
        return new Uuid(random.nextLong(), random.nextLong());
    }

    private byte[] bytes(int size) {
        byte[] bytes = new byte[size];
        random.nextBytes(bytes);
        return bytes;
    }

    private <T> T pick(List<T> from) {
        return from.get(random.nextInt(from.size()));
    }
}
