import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Reads partition 0 from each of some offsets up to an end: `java ReadFrom.java host:port topic 0,1,2 end`.
 * A line per record: where the reading began, offset, key, value; and a line with `end` when the position is the end.
 */
public final class ReadFrom {
    public static void main(String[] arguments) {
        Map<String, Object> settings =
                Map.of("bootstrap.servers", arguments[0], "enable.auto.commit", "false", "fetch.max.wait.ms", "20");
        TopicPartition partition = new TopicPartition(arguments[1], 0);
        long end = Long.parseLong(arguments[3]);
        try (Consumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(partition));
            for (String start : arguments[2].split(",")) {
                consumer.seek(partition, Long.parseLong(start));
                while (consumer.position(partition) < end) {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                        System.out.println(start + " " + record.offset() + " " + record.key() + " " + record.value());
                    }
                }
                System.out.println(start + " end");
            }
        }
    }
}
