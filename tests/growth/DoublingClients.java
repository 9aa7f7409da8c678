import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own producer and consumer while a topic doubles (tests/growth/doubling_readers.py); both end after some seconds. */
public final class DoublingClients {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[1]);
        long until = System.nanoTime() + (long) (Double.parseDouble(arguments[4]) * 1e9);
        if (arguments[0].equals("produce")) {
            produce(settings, arguments[2], arguments[3], until, Integer.parseInt(arguments[5]), arguments[6]);
        } else {
            consume(settings, arguments[2], arguments[3], until);
        }
    }

    private static void produce(
            Properties settings, String topic, String name, long until, int keys, String maxAgeMs) throws Exception {
        settings.put("metadata.max.age.ms", maxAgeMs);
        settings.put("linger.ms", "5");
        settings.put("request.timeout.ms", "5000");
        settings.put("delivery.timeout.ms", "8000");  // less than what alternating_clients.py waits between changes
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        Random random = new Random(name.hashCode());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (long number = 0; System.nanoTime() < until; number++) {
                String value = name + "/" + number;
                String key = "key-" + random.nextInt(keys);
                producer.send(new ProducerRecord<>(topic, key, value), (metadata, error) ->
                    tell(error == null ? "ack " + value + " " + key + " " + metadata.partition()
                        : "fail " + error.getClass().getSimpleName()));
                Thread.sleep(4);
            }
        }
    }

    private static void consume(Properties settings, String topic, String group, long until) {
        settings.put("group.id", group);
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            while (System.nanoTime() < until) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    tell("got " + record.value() + " " + record.key() + " " + record.partition());
                }
                try {
                    consumer.commitSync();
                } catch (org.apache.kafka.clients.consumer.CommitFailedException error) {
                    System.err.println(error);
                }
            }
        }
    }

    private static synchronized void tell(String line) {
        System.out.println(line);
    }
}
