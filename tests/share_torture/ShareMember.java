// A member of a share group: ShareMember BOOTSTRAP GROUP TOPIC RELEASED. It releases a record whose value is divisible by
// RELEASED at its first delivery (0: none), and accepts all others. It sets the group to begin with the first record.
// It prints `got VALUE ATTEMPT SINCE MS` when it gets a record, `accepted VALUE MS` once its acceptance was answered, and
// `unsure VALUE` if it was refused or it is not known whether it was stored. MS: of the machine's monotonic clock. SINCE: a
// time before the record was acquired, the begin of the poll before, because a client fetches between polls. It ends in good
// order when its input ends.

import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ShareMember {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], group = arguments[1], topic = arguments[2];
        int released = Integer.parseInt(arguments[3]);
        AtomicBoolean stopping = new AtomicBoolean();
        Thread watching = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (java.io.IOException error) {
                // it ended
            }
            stopping.set(true);
        });
        watching.setDaemon(true);
        watching.start();
        Map<String, Object> patient = Map.of(
            "bootstrap.servers", bootstrap, "request.timeout.ms", 4_000, "default.api.timeout.ms", 240_000);
        try (Admin admin = Admin.create(patient)) { // a link may lose what is on it
            ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
            Collection<AlterConfigOp> set = List.of(new AlterConfigOp(earliest, AlterConfigOp.OpType.SET));
            admin.incrementalAlterConfigs(Map.of(resource, set)).all().get();
        }
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("request.timeout.ms", "4000");
        settings.put("default.api.timeout.ms", "8000");
        StringDeserializer text = new StringDeserializer();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings, text, text)) {
            consumer.setAcknowledgementCommitCallback(ShareMember::told);
            consumer.subscribe(List.of(topic));
            System.out.println("started");
            while (!stopping.get()) {
                take(consumer, released);
            }
        }
    }

    /** Values that were accepted and have no answer yet, by partition and offset. */
    private static final Map<String, String> unanswered = new HashMap<>();

    /** What became of acknowledgements: commitSync tells it of a partition only, also if it was sent to two agents. */
    private static void told(Map<TopicIdPartition, Set<Long>> offsets, Exception error) {
        offsets.forEach((partition, each) -> each.forEach(offset -> {
            String value = unanswered.remove(partition.partition() + ":" + offset);
            if (value != null) {
                System.out.println(error == null ? "accepted " + value + " " + nowMs() : "unsure " + value);
            }
        }));
    }

    private static long nowMs() {
        return System.nanoTime() / 1_000_000;
    }

    private static long pollMs = nowMs();

    private static void take(KafkaShareConsumer<String, String> consumer, int released) {
        long since = pollMs;
        pollMs = nowMs();
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
            int attempt = record.deliveryCount().orElse((short) 0);
            System.out.println("got " + record.value() + " " + attempt + " " + since + " " + nowMs());
            if (released > 0 && attempt == 1 && Integer.parseInt(record.value()) % released == 0) {
                consumer.acknowledge(record, AcknowledgeType.RELEASE);
            } else {
                unanswered.put(record.partition() + ":" + record.offset(), record.value());
                consumer.acknowledge(record, AcknowledgeType.ACCEPT);
            }
        }
        try {
            consumer.commitSync();
        } catch (KafkaException error) {
            System.out.println("trouble " + error);
        }
    }
}
