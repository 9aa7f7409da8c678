// Where a scenario of ShareConsumerScenarios takes place: two topics of one partition, a group that reads from the
// earliest record with long locks, and the clients. What is not reached within PATIENCE is an AssertionError.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.AcknowledgementCommitCallback;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class ShareWorld implements AutoCloseable {
    static final Duration PATIENCE = Duration.ofSeconds(120);
    static final int LOCK_MS = 15_000;
    static final String[] EXPLICIT = {"share.acknowledgement.mode", "explicit"};

    final Admin admin;
    final String topic, other, group;
    final TopicPartition partition, otherPartition;
    final String bootstrap;

    ShareWorld(String bootstrap, String name) throws Exception {
        String run = name + "-" + UUID.randomUUID();
        this.bootstrap = bootstrap;
        topic = "topic-" + run;
        other = "other-" + run;
        group = "group-" + run;
        partition = new TopicPartition(topic, 0);
        otherPartition = new TopicPartition(other, 0);
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        create(topic, Map.of());
        create(other, Map.of());
        configure(group, "share.auto.offset.reset", "earliest");
        configure(group, "share.record.lock.duration.ms", String.valueOf(LOCK_MS));
    }

    @Override
    public void close() {
        admin.close();
    }

    // -- topics, groups and their configs

    void create(String name, Map<String, String> configs) throws Exception {
        admin.createTopics(List.of(new NewTopic(name, 1, (short) 1).configs(configs))).all().get();
        until("topic " + name, () -> admin.listTopics().names().get().contains(name));
    }

    void configure(String group, String config, String value) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        Collection<AlterConfigOp> set = List.of(new AlterConfigOp(new ConfigEntry(config, value), AlterConfigOp.OpType.SET));
        admin.incrementalAlterConfigs(Map.of(resource, set)).all().get();
        until(config + "=" + value, () -> {
            ConfigEntry entry = admin.describeConfigs(List.of(resource)).all().get().get(resource).get(config);
            return entry != null && entry.value().equals(value);
        });
        Thread.sleep(300); // Kafka describes a config a moment before its share partitions use it
    }

    void configure(String config, String value) throws Exception {
        configure(group, config, value);
    }

    /** Start offset and lag of the topic's partition, null if there are none. */
    SharePartitionOffsetInfo offset() throws Exception {
        return admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
            .partitionsToOffsetInfo(group).get().get(partition);
    }

    void untilLag(long lag) throws Exception {
        until("lag " + lag, () -> hasLag(lag));
    }

    /** Wait for the lag while this consumer polls; what it gets it releases. */
    void untilLag(long lag, KafkaShareConsumer<String, String> consumer) throws Exception {
        until("lag " + lag, () -> {
            consumer.poll(Duration.ofMillis(500)).forEach(record -> consumer.acknowledge(record, AcknowledgeType.RELEASE));
            consumer.commitSync();
            return hasLag(lag);
        });
    }

    private boolean hasLag(long lag) throws Exception {
        SharePartitionOffsetInfo found = offset();
        return found != null && found.lag().isPresent() && found.lag().get() == lag;
    }

    // -- records

    KafkaProducer<String, String> producer(Object... settings) {
        return new KafkaProducer<>(with(settings), new StringSerializer(), new StringSerializer());
    }

    /** Write so many records to the topic as one batch: `value 0` and so on. */
    void produce(int count) throws Exception {
        produce(topic, count);
    }

    void produce(String to, int count) throws Exception {
        try (KafkaProducer<String, String> producer = producer("linger.ms", 10_000)) {
            List<Future<?>> sent = new ArrayList<>();
            for (int number = 0; number < count; number++) {
                sent.add(producer.send(new ProducerRecord<>(to, 0, "key " + number, "value " + number)));
            }
            producer.flush();
            for (Future<?> each : sent) {
                each.get();
            }
        }
    }

    /** Write one record in a transaction, and commit or abort it. */
    void transact(KafkaProducer<String, String> producer, String value, boolean commits) throws Exception {
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, 0, value, value)).get();
        if (commits) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
    }

    // -- consumers

    KafkaShareConsumer<String, String> consumer(Object... settings) {
        return consumerOf(group, settings);
    }

    KafkaShareConsumer<String, String> consumerOf(String of, Object... settings) {
        return consumerOf(of, new StringDeserializer(), settings);
    }

    KafkaShareConsumer<String, String> explicitConsumer(Object... settings) {
        List<Object> all = new ArrayList<>(Arrays.asList((Object[]) EXPLICIT));
        all.addAll(Arrays.asList(settings));
        return consumer(all.toArray());
    }

    KafkaShareConsumer<String, String> consumerOf(String of, Deserializer<String> values, Object... settings) {
        Map<String, Object> all = with(settings);
        all.put("group.id", of);
        return new KafkaShareConsumer<>(all, new StringDeserializer(), values);
    }

    private Map<String, Object> with(Object... settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        for (int at = 0; at < settings.length; at += 2) {
            all.put((String) settings[at], settings[at + 1]);
        }
        return all;
    }

    /** The first poll that has records; it must have so many. */
    static ConsumerRecords<String, String> poll(KafkaShareConsumer<String, String> consumer, int count) throws Exception {
        ConsumerRecords<String, String> records = someOf(consumer);
        equal(count, records.count(), "records of a poll");
        return records;
    }

    /** The first poll that has records. */
    static ConsumerRecords<String, String> someOf(KafkaShareConsumer<String, String> consumer) throws Exception {
        List<ConsumerRecords<String, String>> last = new ArrayList<>();
        until("records", () -> {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(2_000));
            last.add(records);
            return !records.isEmpty();
        });
        return last.get(last.size() - 1);
    }

    /** All records of as many polls as it takes to have so many. */
    static List<ConsumerRecord<String, String>> pollAll(KafkaShareConsumer<String, String> consumer, int count) throws Exception {
        List<ConsumerRecord<String, String>> all = new ArrayList<>();
        until(count + " records", () -> {
            consumer.poll(Duration.ofMillis(500)).forEach(all::add);
            return all.size() >= count;
        });
        return all;
    }

    static void pollNothing(KafkaShareConsumer<String, String> consumer, int milliseconds) {
        equal(0, consumer.poll(Duration.ofMillis(milliseconds)).count(), "records of a poll that should have none");
    }

    /** The answer to commitSync names one partition, without an error. */
    static void succeeds(Map<TopicIdPartition, Optional<KafkaException>> committed) {
        equal(List.of(Optional.empty()), List.copyOf(committed.values()), "answers to commitSync");
    }

    static List<String> values(Iterable<ConsumerRecord<String, String>> records) {
        List<String> found = new ArrayList<>();
        records.forEach(record -> found.add(record.value()));
        return found;
    }

    /** What the callback of acknowledgements heard. */
    static final class Heard implements AcknowledgementCommitCallback {
        final Map<TopicPartition, List<Long>> offsets = new HashMap<>();
        final Map<TopicPartition, Exception> errors = new HashMap<>();

        @Override
        public void onComplete(Map<TopicIdPartition, Set<Long>> committed, Exception error) {
            committed.forEach((where, of) -> {
                offsets.computeIfAbsent(where.topicPartition(), none -> new ArrayList<>()).addAll(of);
                if (error != null) {
                    errors.putIfAbsent(where.topicPartition(), error);
                }
            });
        }

        int count() {
            return offsets.values().stream().mapToInt(List::size).sum();
        }
    }

    // -- checks

    static void until(String what, Callable<Boolean> isReached) throws Exception {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!isReached.call()) {
            if (System.nanoTime() > end) {
                throw new AssertionError("not reached: " + what);
            }
            Thread.sleep(50);
        }
    }

    static void equal(Object wanted, Object found, String what) {
        if (!Objects.equals(wanted, found)) {
            throw new AssertionError(what + ": wanted " + wanted + ", found " + found);
        }
    }

    interface Step {
        void run() throws Exception;
    }

    static <T extends Throwable> T fails(Class<T> kind, Step step) {
        try {
            step.run();
        } catch (Throwable error) {
            if (kind.isInstance(error)) {
                return kind.cast(error);
            }
            throw new AssertionError("wanted " + kind.getSimpleName() + ", found " + error);
        }
        throw new AssertionError("wanted " + kind.getSimpleName() + ", nothing was thrown");
    }
}
