import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** The clients of one scenario of TransactionVerifier, and the names that only it uses. Topics have one partition. */
final class VerifierClients implements AutoCloseable {
    static final Duration POLL = Duration.ofMillis(200);
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final String STRING = "org.apache.kafka.common.serialization.String";

    final String topic;
    final String target;
    final String group;
    /** The offset of the last record that was sent. */
    volatile long lastSent = -1;

    private final String bootstrap;
    private final String name;
    private final List<KafkaProducer<String, String>> producers = new ArrayList<>();

    VerifierClients(String bootstrap, String scenario) throws Exception {
        this.bootstrap = bootstrap;
        name = scenario + "-" + UUID.randomUUID();
        topic = name + "-topic";
        target = name + "-target";
        group = name + "-group";
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) bootstrap))) {
            short replication = 1;
            admin.createTopics(List.of(new NewTopic(topic, 1, replication), new NewTopic(target, 1, replication))).all().get();
        }
    }

    TopicPartition partition() {
        return new TopicPartition(topic, 0);
    }

    KafkaProducer<String, String> plainProducer() {
        return kept(new Properties());
    }

    /** Not initialised yet. */
    KafkaProducer<String, String> producer(String id, int timeoutMs) {
        Properties settings = new Properties();
        settings.put("transactional.id", name + "-" + id);
        settings.put("transaction.timeout.ms", String.valueOf(timeoutMs));
        return kept(settings);
    }

    /** A new producer with an open transaction that has one record. */
    KafkaProducer<String, String> begun(String id, String value) throws Exception {
        KafkaProducer<String, String> producer = producer(id, 60_000);
        producer.initTransactions();
        producer.beginTransaction();
        send(producer, topic, value);
        return producer;
    }

    long send(KafkaProducer<String, String> producer, String into, String value) throws Exception {
        lastSent = producer.send(new ProducerRecord<>(into, "key", value)).get().offset();
        return lastSent;
    }

    KafkaConsumer<String, String> consumer(String isolation) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("isolation.level", isolation);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", STRING + "Deserializer");
        settings.put("value.deserializer", STRING + "Deserializer");
        return new KafkaConsumer<>(settings);
    }

    /** What a seek to the end leads to. */
    long end(String isolation) {
        try (KafkaConsumer<String, String> consumer = consumer(isolation)) {
            return end(consumer, partition());
        }
    }

    void awaitEndAfter(long offset, String isolation) {
        try (KafkaConsumer<String, String> consumer = consumer(isolation)) {
            long until = System.nanoTime() + PATIENCE.toNanos();
            while (end(consumer, partition()) <= offset) {
                if (System.nanoTime() > until) {
                    throw new AssertionError("the end of " + isolation + " does not pass offset " + offset);
                }
            }
        }
    }

    /** The group's offset; null for none. */
    Long committed(KafkaConsumer<String, String> consumer) {
        OffsetAndMetadata found = consumer.committed(Set.of(partition())).get(partition());
        return found == null ? null : found.offset();
    }

    List<String> values(String isolation) {
        return values(topic, isolation);
    }

    /** The records before the end that the isolation level shows now. */
    List<String> values(String from, String isolation) {
        return read(from, isolation, () -> true);
    }

    /** As `values`, while records come: until the end as it is once it is over. */
    List<String> follow(String isolation, BooleanSupplier isOver) {
        return read(topic, isolation, isOver);
    }

    @Override
    public void close() {
        producers.forEach(producer -> producer.close(Duration.ZERO));
    }

    private List<String> read(String from, String isolation, BooleanSupplier isOver) {
        List<String> values = new ArrayList<>();
        TopicPartition place = new TopicPartition(from, 0);
        try (KafkaConsumer<String, String> consumer = consumer(isolation)) {
            consumer.assign(List.of(place));
            consumer.seek(place, 0);
            long until = System.nanoTime() + PATIENCE.toNanos();
            while (!isOver.getAsBoolean() || consumer.position(place) < end(consumer, place)) {
                if (System.nanoTime() > until) {
                    throw new AssertionError("stopped at " + consumer.position(place) + " after " + values);
                }
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    values.add(record.value());
                }
            }
        }
        return values;
    }

    private KafkaProducer<String, String> kept(Properties settings) {
        settings.put("bootstrap.servers", bootstrap);
        settings.put("linger.ms", "0");
        settings.put("key.serializer", STRING + "Serializer");
        settings.put("value.serializer", STRING + "Serializer");
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
        producers.add(producer);
        return producer;
    }

    private static long end(KafkaConsumer<String, String> consumer, TopicPartition place) {
        return consumer.endOffsets(List.of(place)).get(place);
    }
}
