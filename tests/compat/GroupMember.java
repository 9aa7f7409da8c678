import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;

/** tests/compat/group_member.py once more, by Kafka's own consumer: the same arguments, the same lines. */
public final class GroupMember {
    public static void main(String[] arguments) throws Exception {
        AtomicBoolean stopping = new AtomicBoolean();
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException ignored) {
                // an input that cannot be read has ended
            }
            stopping.set(true);
        });
        input.setDaemon(true);
        input.start();
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("group.protocol", arguments[3]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("auto.commit.interval.ms", "200");
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("request.timeout.ms", "4000");
        settings.put("default.api.timeout.ms", "20000");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        if (arguments[3].equals("classic")) {
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
            settings.put("session.timeout.ms", "6000");
            settings.put("heartbeat.interval.ms", "300");
        }
        if (arguments.length > 4) {
            settings.put("group.instance.id", arguments[4]);
        }
        try (Consumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            if (arguments[2].startsWith("^")) {
                consumer.subscribe(new SubscriptionPattern(arguments[2]), new Listener());
            } else {
                consumer.subscribe(List.of(arguments[2]), new Listener());
            }
            while (!stopping.get()) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    System.out.println("value " + record.value());
                }
            }
        }
    }

    private static final class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            say("assigned", partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            say("revoked", partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            say("lost", partitions);
        }

        private static void say(String event, Collection<TopicPartition> partitions) {
            System.out.println(event + " " + partitions.stream().map(TopicPartition::partition).sorted()
                .map(String::valueOf).collect(Collectors.joining(",")));
        }
    }
}
