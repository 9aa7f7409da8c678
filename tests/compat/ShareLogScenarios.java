// Scenarios of what is in the log below a group: offsets at which it begins, transactions, removed records, topics that
// come and go, and the group's lag (ShareConsumerScenarios.java runs them).

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.serialization.StringDeserializer;

final class ShareLogScenarios {
    // -- where a group begins

    static void aGroupBeginsWithTheLatestRecord(ShareWorld world) throws Exception {
        String group = world.group + "-default";
        world.configure(group, "share.record.lock.duration.ms", "15000");
        world.produce(1);
        try (KafkaShareConsumer<String, String> consumer = world.consumerOf(group)) {
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.pollNothing(consumer, 2_000);
            ShareWorld.until("a later record", () -> {
                world.produce(1);
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(1_000));
                records.forEach(record -> ShareWorld.equal(true, record.offset() > 0, "a later record"));
                return !records.isEmpty();
            });
        }
    }

    static void aGroupBeginsAnHourAgo(ShareWorld world) throws Exception {
        long now = System.currentTimeMillis();
        try (KafkaProducer<String, String> producer = world.producer()) {
            producer.send(new ProducerRecord<>(world.topic, 0, now - TimeUnit.HOURS.toMillis(2), "k", "old")).get();
            producer.send(new ProducerRecord<>(world.topic, 0, now - TimeUnit.MINUTES.toMillis(30), "k", "recent")).get();
            producer.send(new ProducerRecord<>(world.topic, 0, now, "k", "current")).get();
        }
        Map<String, List<String>> wanted = Map.of(
            "by_duration:PT1H", List.of("recent", "current"), "by_duration:PT3H", List.of("old", "recent", "current"));
        for (Map.Entry<String, List<String>> each : wanted.entrySet()) {
            String group = world.group + "-" + each.getValue().size();
            world.configure(group, "share.auto.offset.reset", each.getKey());
            try (KafkaShareConsumer<String, String> consumer = world.consumerOf(group)) {
                consumer.subscribe(Set.of(world.topic));
                ShareWorld.equal(each.getValue(), ShareWorld.values(ShareWorld.pollAll(consumer, each.getValue().size())), each.getKey());
            }
        }
    }

    static void invalidDurations(ShareWorld world) {
        for (String invalid : List.of("by_duration:1h", "by_duration:-PT1H")) {
            ExecutionException error = ShareWorld.fails(
                ExecutionException.class, () -> world.configure("share.auto.offset.reset", invalid));
            ShareWorld.equal(InvalidConfigurationException.class, error.getCause().getClass(), invalid);
        }
    }

    // -- removed records

    static void recordsAreDeletedBetweenConsumers(ShareWorld world) throws Exception {
        world.produce(10);
        deleteBefore(world, 5);
        consumeFrom(world, 5, 10);
        world.produce(5);
        deleteBefore(world, 14);
        consumeFrom(world, 14, 15);
        deleteBefore(world, 15);
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.pollNothing(consumer, 3_000);
        }
    }

    private static void deleteBefore(ShareWorld world, long offset) throws Exception {
        world.admin.deleteRecords(Map.of(world.partition, RecordsToDelete.beforeOffset(offset))).all().get();
    }

    private static void consumeFrom(ShareWorld world, long first, long end) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.topic));
            List<Long> offsets = new ArrayList<>();
            ShareWorld.pollAll(consumer, (int) (end - first)).forEach(record -> offsets.add(record.offset()));
            ShareWorld.equal(first, offsets.get(0), "first offset");
            ShareWorld.equal(end - 1, offsets.get(offsets.size() - 1), "last offset");
            consumer.commitSync();
        }
    }

    /** Of 3,000 offsets the cleaner leaves three, and a group that takes two records at a time gets over the others. */
    static void removedOffsetsOfACompactedTopic(ShareWorld world) throws Exception {
        String topic = world.topic + "-compacted";
        world.create(topic, Map.of("cleanup.policy", "compact", "segment.ms", "100", "min.cleanable.dirty.ratio", "0"));
        try (KafkaProducer<String, String> producer = world.producer("linger.ms", 5)) {
            for (int number = 0; number < 3_000; number++) {
                producer.send(new ProducerRecord<>(topic, 0, "k" + number % 3, "v" + number));
            }
            producer.flush();
            ShareWorld.until("a cleaned topic", () -> {
                producer.send(new ProducerRecord<>(topic, 0, "last", "last")).get(); // begins a segment on Kafka
                Thread.sleep(500);
                return readAll(world, topic).size() < 100;
            });
        }
        List<String> wanted = readAll(world, topic);
        List<String> found = new ArrayList<>();
        try (KafkaShareConsumer<String, String> consumer = world.consumer("max.poll.records", 2)) {
            consumer.subscribe(Set.of(topic));
            ShareWorld.until("the last record", () -> {
                found.addAll(ShareWorld.values(consumer.poll(Duration.ofMillis(500))));
                return found.contains("last");
            });
        }
        ShareWorld.equal(List.of("v2997", "v2998", "v2999", "last"), found.subList(0, 4), "values");
        ShareWorld.equal(List.of("v2997", "v2998", "v2999", "last"), wanted.subList(0, 4), "values of a consumer");
    }

    private static List<String> readAll(ShareWorld world, String topic) {
        TopicPartition partition = new TopicPartition(topic, 0);
        List<String> found = new ArrayList<>();
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(Map.of("bootstrap.servers", world.bootstrap), text, text)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                consumer.poll(Duration.ofMillis(500)).forEach(record -> found.add(record.value()));
            }
        }
        return found;
    }

    // -- transactions

    private static void tenTransactions(ShareWorld world) throws Exception {
        try (KafkaProducer<String, String> producer = world.producer("transactional.id", world.group)) {
            producer.initTransactions();
            for (int number = 1; number <= 10; number++) {
                world.transact(producer, "M" + number, number % 5 != 0);
            }
        }
    }

    static void readCommitted(ShareWorld world) throws Exception {
        world.configure("share.isolation.level", "read_committed");
        tenTransactions(world);
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.equal(
                List.of("M1", "M2", "M3", "M4", "M6", "M7", "M8", "M9"), ShareWorld.values(ShareWorld.pollAll(consumer, 8)), "values");
        }
    }

    static void readUncommitted(ShareWorld world) throws Exception {
        world.configure("share.isolation.level", "read_uncommitted");
        tenTransactions(world);
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.equal(
                List.of("M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8", "M9", "M10"),
                ShareWorld.values(ShareWorld.pollAll(consumer, 10)), "values");
        }
    }

    static void uncommittedBecomesCommitted(ShareWorld world) throws Exception {
        world.configure("share.isolation.level", "read_uncommitted");
        try (KafkaProducer<String, String> producer = world.producer("transactional.id", world.group);
            KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            producer.initTransactions();
            consumer.subscribe(Set.of(world.topic));
            world.transact(producer, "M1", true);
            pollAndAccept(consumer, "M1");
            world.transact(producer, "M2", false);
            pollAndAccept(consumer, "M2");
            world.transact(producer, "M3", true);
            world.transact(producer, "M4", false);
            ShareWorld.until("M3 and M4 in one poll", () -> {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(1_000));
                records.forEach(record -> consumer.acknowledge(record, AcknowledgeType.RELEASE));
                consumer.commitSync();
                return ShareWorld.values(records).equals(List.of("M3", "M4"));
            });
            world.configure("share.isolation.level", "read_committed");
            lastTransactions(world, producer);
            ShareWorld.equal(List.of("M3", "M5", "M8"), acceptAll(consumer, 3), "values");
        }
    }

    private static void pollAndAccept(KafkaShareConsumer<String, String> consumer, String value) throws Exception {
        ConsumerRecords<String, String> records = ShareWorld.poll(consumer, 1);
        ShareWorld.equal(List.of(value), ShareWorld.values(records), "values");
        records.forEach(consumer::acknowledge);
        consumer.commitSync();
    }

    private static void lastTransactions(ShareWorld world, KafkaProducer<String, String> producer) throws Exception {
        world.transact(producer, "M5", true);
        world.transact(producer, "M6", false);
        world.transact(producer, "M7", false);
        world.transact(producer, "M8", true);
    }

    private static List<String> acceptAll(KafkaShareConsumer<String, String> consumer, int count) throws Exception {
        List<String> found = new ArrayList<>();
        ShareWorld.until(count + " records", () -> {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(1_000));
            records.forEach(consumer::acknowledge);
            consumer.commitSync();
            found.addAll(ShareWorld.values(records));
            return found.size() >= count;
        });
        return found;
    }

    static void committedBecomesUncommittedAfterARelease(ShareWorld world) throws Exception {
        committedBecomesUncommitted(world, AcknowledgeType.RELEASE, Set.of("M3", "M5", "M6", "M7", "M8"));
    }

    static void committedBecomesUncommittedAfterAReject(ShareWorld world) throws Exception {
        committedBecomesUncommitted(world, AcknowledgeType.REJECT, Set.of("M5", "M6", "M7", "M8"));
    }

    private static void committedBecomesUncommitted(ShareWorld world, AcknowledgeType type, Set<String> wanted) throws Exception {
        world.configure("share.isolation.level", "read_committed");
        world.configure("share.delivery.count.limit", "10");
        try (KafkaProducer<String, String> producer = world.producer("transactional.id", world.group);
            KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            producer.initTransactions();
            consumer.subscribe(Set.of(world.topic));
            world.transact(producer, "M1", true);
            pollAndAccept(consumer, "M1");
            world.transact(producer, "M2", false);
            world.untilLag(0, consumer);
            world.transact(producer, "M3", true);
            world.transact(producer, "M4", false);
            ConsumerRecords<String, String> records = ShareWorld.poll(consumer, 1);
            ShareWorld.equal(List.of("M3"), ShareWorld.values(records), "values");
            records.forEach(record -> consumer.acknowledge(record, type));
            consumer.commitSync();
            world.untilLag(type == AcknowledgeType.RELEASE ? 1 : 0, consumer);
            world.configure("share.isolation.level", "read_uncommitted");
            lastTransactions(world, producer);
            ShareWorld.equal(new TreeSet<>(wanted), new TreeSet<>(acceptAll(consumer, wanted.size())), "values");
        }
    }

    /** Kafka's client acknowledges the marker of an abort and tells the callback of it. */
    static void theCallbackHearsOfMarkers(ShareWorld world) throws Exception {
        world.configure("share.isolation.level", "read_committed");
        try (KafkaProducer<String, String> producer = world.producer("transactional.id", world.group);
            KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            producer.initTransactions();
            consumer.subscribe(Set.of(world.topic));
            world.transact(producer, "M1", true);
            pollAndAccept(consumer, "M1");
            ShareWorld.Heard heard = new ShareWorld.Heard();
            consumer.setAcknowledgementCommitCallback(heard);
            world.transact(producer, "M2", false);
            world.untilLag(0, consumer);
            for (int number = 0; number < 3; number++) {
                ShareWorld.pollNothing(consumer, 500);
            }
            ShareWorld.equal(true, heard.offsets.getOrDefault(world.partition, List.of()).contains(3L), "the marker was heard of");
        }
    }

    // -- topics

    static void aTopicIsCreatedAfterTheSubscription(ShareWorld world) throws Exception {
        String later = world.topic + "-later";
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(later));
            consumer.poll(Duration.ofMillis(500));
            world.create(later, Map.of());
            for (int number = 0; number < 3; number++) {
                world.produce(later, 1);
                ShareWorld.poll(consumer, 1);
            }
        }
    }

    static void aSubscribedTopicIsDeleted(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(List.of(world.topic, world.other));
            world.produce(1);
            ShareWorld.poll(consumer, 1);
            world.produce(world.other, 1);
            ShareWorld.poll(consumer, 1);
            world.admin.deleteTopics(List.of(world.topic)).all().get();
            ShareWorld.pollNothing(consumer, 500);
            for (int number = 0; number < 2; number++) {
                world.produce(world.other, 1);
                ShareWorld.poll(consumer, 1);
            }
        }
    }

    static void commitSyncOfADeletedTopic(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            world.produce(1);
            ConsumerRecord<String, String> record = ShareWorld.poll(consumer, 1).iterator().next();
            world.admin.deleteTopics(List.of(world.topic)).all().get();
            ShareWorld.until("the end of the topic", () -> !world.admin.listTopics().names().get().contains(world.topic));
            Thread.sleep(500); // a broker stops serving a topic a moment after it lists it no more
            consumer.acknowledge(record);
            Map<TopicIdPartition, Optional<KafkaException>> committed = consumer.commitSync();
            ShareWorld.equal(1, committed.size(), "partitions of commitSync");
            ShareWorld.equal(true, committed.values().iterator().next().isPresent(), "an error");
        }
    }

    // -- lag

    static void lagOfReleasedAndRejectedRecords(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            world.produce(1);
            acknowledge(consumer, AcknowledgeType.ACCEPT);
            world.untilLag(0);
            world.produce(1);
            acknowledge(consumer, AcknowledgeType.RELEASE);
            world.untilLag(1);
            acknowledge(consumer, AcknowledgeType.REJECT);
            world.untilLag(0);
        }
    }

    private static void acknowledge(KafkaShareConsumer<String, String> consumer, AcknowledgeType type) throws Exception {
        ShareWorld.poll(consumer, 1).forEach(record -> consumer.acknowledge(record, type));
        ShareWorld.succeeds(consumer.commitSync());
    }

    static void lagOfTwoConsumers(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> one = world.explicitConsumer();
            KafkaShareConsumer<String, String> two = world.explicitConsumer()) {
            one.subscribe(Set.of(world.topic));
            world.produce(1);
            acknowledge(one, AcknowledgeType.ACCEPT);
            world.untilLag(0);
            two.subscribe(Set.of(world.topic));
            world.produce(1);
            ConsumerRecord<String, String> held = ShareWorld.poll(one, 1).iterator().next();
            world.produce(1);
            acknowledge(two, AcknowledgeType.ACCEPT);
            world.untilLag(1);
            one.acknowledge(held);
            ShareWorld.succeeds(one.commitSync());
            world.untilLag(0);
        }
    }

    static void lagAfterOffsetsAreAlteredAndDeleted(ShareWorld world) throws Exception {
        world.produce(2);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 2).forEach(consumer::acknowledge);
            ShareWorld.succeeds(consumer.commitSync());
            world.untilLag(0);
        }
        world.admin.alterShareGroupOffsets(world.group, Map.of(world.partition, 0L)).all().get();
        world.untilLag(2);
        world.admin.deleteShareGroupOffsets(world.group, Set.of(world.topic)).all().get();
        ShareWorld.equal(null, world.offset(), "offset");
    }

    static void offsetOfAPartitionThatWasNeverRead(ShareWorld world) throws Exception {
        world.produce(1);
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.other));
            ShareWorld.pollNothing(consumer, 1_000);
            ShareWorld.equal(null, world.offset(), "offset");
        }
    }
}
