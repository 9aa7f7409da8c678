import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.types.RawTaggedField;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.generated.*;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.*;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;

/**
 * Kafka's own classes on lifecycle records.
 *
 * <p>{@code write}: a line per version-0 record, `name hex text`. {@code read}: for each line `hex` of the input, what
 * RemoteLogMetadataSerde reads, or its refusal. {@code body}: the same bytes as a version-0 reader takes the body:
 * `fields | unread bytes tag=hex ...`. {@code partition}: for each line `id partition`, the metadata partition of 50.
 */
public final class LifecycleRecords {
    private static final RemoteLogMetadataSerde SERDE = new RemoteLogMetadataSerde();

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("write")) {
            write();
            return;
        }
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(switch (arguments[0]) {
                case "read" -> read(HexFormat.of().parseHex(line.strip()));
                case "body" -> body(HexFormat.of().parseHex(line.strip()));
                case "partition" -> partition(line.strip().split(" "));
                default -> throw new IllegalArgumentException(arguments[0]);
            });
        }
    }

    private static void write() {
        TopicIdPartition orders = new TopicIdPartition(new Uuid(0x0102030405060708L, 0x090a0b0c0d0e0f10L), 7, "orders");
        RemoteLogSegmentId segment = new RemoteLogSegmentId(orders, new Uuid(0xf1f2f3f4f5f6f7f8L, 0x1112131415161718L));
        Map<Integer, Long> epochs = new TreeMap<>(Map.of(3, 10L, 5, 700L));
        Optional<CustomMetadata> custom = Optional.of(new CustomMetadata(new byte[] {1, 2, 3}));
        RemoteLogSegmentMetadata started = new RemoteLogSegmentMetadata(
            segment, 10, 1999, 1_700_000_000_123L, 101, 1_700_000_001_456L, 1_048_576, epochs);
        show("segment", started);
        show("segment_without_transactions", new RemoteLogSegmentMetadata(
            segment, 10, 1999, 1_700_000_000_123L, 101, 1_700_000_001_456L, 1_048_576, epochs, true));
        for (RemoteLogSegmentState state : List.of(
                RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
                RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)) {
            show("update_" + state.id(), new RemoteLogSegmentMetadataUpdate(
                segment, 1_700_000_002_000L, Optional.empty(), state, 102));
        }
        show("update_custom", new RemoteLogSegmentMetadataUpdate(
            segment, 1_700_000_002_000L, custom, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 102));
        show("partition_started", new RemotePartitionDeleteMetadata(
            orders, RemotePartitionDeleteState.DELETE_PARTITION_STARTED, 1_700_000_003_000L, 103));
        show("partition_finished", new RemotePartitionDeleteMetadata(
            orders, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED, 1_700_000_004_000L, 103));
    }

    private static void show(String name, RemoteLogMetadata metadata) {
        System.out.println(name + "\t" + HexFormat.of().formatHex(SERDE.serialize(metadata)) + "\t" + metadata);
    }

    private static String read(byte[] value) {
        try {
            return SERDE.deserialize(value).toString();
        } catch (RuntimeException refusal) {
            return "refused: " + refusal.getMessage();
        }
    }

    private static String body(byte[] value) {
        ByteBufferAccessor readable = new ByteBufferAccessor(ByteBuffer.wrap(value));
        readable.readUnsignedVarint();
        ApiMessage message = switch (readable.readUnsignedVarint()) {
            case 0 -> new RemoteLogSegmentMetadataRecord();
            case 1 -> new RemoteLogSegmentMetadataUpdateRecord();
            case 2 -> new RemotePartitionDeleteMetadataRecord();
            default -> throw new IllegalArgumentException("api key");
        };
        readable.readUnsignedVarint();
        message.read(readable, (short) 0);
        StringBuilder line = new StringBuilder(message + " | " + readable.remaining());
        for (RawTaggedField skipped : message.unknownTaggedFields()) {
            line.append(" ").append(skipped.tag()).append("=").append(HexFormat.of().formatHex(skipped.data()));
        }
        return line.toString();
    }

    private static String partition(String[] line) {
        TopicIdPartition owner = new TopicIdPartition(Uuid.fromString(line[0]), Integer.parseInt(line[1]), "t");
        return String.valueOf(new RemoteLogMetadataTopicPartitioner(50).metadataPartition(owner));
    }
}
