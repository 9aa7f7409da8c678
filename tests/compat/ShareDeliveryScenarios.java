// Scenarios of deliveries: locks, delivery counts, smaller deliveries of suspects, acquire modes
// (ShareConsumerScenarios.java runs them).

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;

final class ShareDeliveryScenarios {
    private static final Object[] RECORD_LIMIT = {"share.acquire.mode", "record_limit", "max.poll.records", 10};

    static void theLockEndsBetweenPolls(ShareWorld world) throws Exception {
        world.configure("share.record.lock.duration.ms", "4000");
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.topic));
            world.produce(1);
            ShareWorld.poll(consumer, 1);
            ShareWorld.pollNothing(consumer, 1_000);
            world.produce(1);
            ShareWorld.poll(consumer, 1);
            Thread.sleep(6_000);
            ConsumerRecord<String, String> again = ShareWorld.poll(consumer, 1).iterator().next();
            ShareWorld.equal(1L, again.offset(), "offset");
            ShareWorld.equal(Optional.of((short) 2), again.deliveryCount(), "delivery count");
            ShareWorld.pollNothing(consumer, 1_000);
        }
    }

    // -- delivery counts

    static void closeCountsDeliveriesOfAllRecords(ShareWorld world) throws Exception {
        world.produce(2);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            ConsumerRecords<String, String> records = ShareWorld.poll(consumer, 2);
            consumer.acknowledge(records.records(world.partition).get(0), AcknowledgeType.RELEASE);
            ShareWorld.succeeds(consumer.commitSync());
        }
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.pollAll(consumer, 2).forEach(
                record -> ShareWorld.equal(Optional.of((short) 2), record.deliveryCount(), "delivery count"));
        }
    }

    static void theLastDeliveryAtTheLimit(ShareWorld world) throws Exception {
        world.configure("share.delivery.count.limit", "3");
        world.produce(1);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            deliver(consumer, 1, AcknowledgeType.RELEASE);
            ShareWorld.equal(Optional.of((short) 2), ShareWorld.poll(consumer, 1).iterator().next().deliveryCount(), "count");
        }
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            deliver(consumer, 3, AcknowledgeType.RELEASE);
            ShareWorld.pollNothing(consumer, 2_000);
        }
    }

    /** Poll the one record, check the number of its delivery, and acknowledge it. */
    private static void deliver(KafkaShareConsumer<String, String> consumer, int count, AcknowledgeType type) throws Exception {
        ConsumerRecord<String, String> record = ShareWorld.poll(consumer, 1).iterator().next();
        ShareWorld.equal(Optional.of((short) count), record.deliveryCount(), "delivery count");
        consumer.acknowledge(record, type);
        ShareWorld.succeeds(consumer.commitSync());
    }

    static void closedSessionsCountUntilTheLimit(ShareWorld world) throws Exception {
        world.produce(1);
        for (int count = 1; count <= 5; count++) {
            try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
                consumer.subscribe(Set.of(world.topic));
                ConsumerRecord<String, String> record = ShareWorld.poll(consumer, 1).iterator().next();
                ShareWorld.equal(Optional.of((short) count), record.deliveryCount(), "delivery count");
            }
        }
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.pollNothing(consumer, 2_000);
        }
    }

    static void aMixOfAllTypes(ShareWorld world) throws Exception {
        world.produce(700);
        Map<Long, Integer> delivered = new HashMap<>();
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.until("all deliveries", () -> {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(1_000))) {
                    int wanted = wantedDeliveries(record.offset());
                    boolean isLast = delivered.merge(record.offset(), 1, Integer::sum) == wanted;
                    ShareWorld.equal(Optional.of(delivered.get(record.offset()).shortValue()), record.deliveryCount(), "delivery count");
                    AcknowledgeType last = record.offset() % 2 == 0 ? AcknowledgeType.ACCEPT : AcknowledgeType.REJECT;
                    consumer.acknowledge(record, isLast ? last : AcknowledgeType.RELEASE);
                }
                consumer.commitSync();
                return delivered.values().stream().mapToInt(each -> each).sum() == 1_399;
            });
            ShareWorld.pollNothing(consumer, 1_000);
        }
        delivered.forEach((offset, count) -> ShareWorld.equal(wantedDeliveries(offset), count, "deliveries of " + offset));
    }

    private static int wantedDeliveries(long offset) {
        return (int) (offset % 3) + 1; // 700 records: 234 once, 233 twice, 233 three times
    }

    static void theLimitIsLoweredMeanwhile(ShareWorld world) throws Exception {
        world.produce(1);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            deliver(consumer, 1, AcknowledgeType.RELEASE);
            deliver(consumer, 2, AcknowledgeType.RELEASE);
            world.configure("share.delivery.count.limit", "3");
            deliver(consumer, 3, AcknowledgeType.RELEASE);
            ShareWorld.pollNothing(consumer, 2_000);
        }
    }

    static void theLimitIsRaisedMeanwhile(ShareWorld world) throws Exception {
        world.configure("share.delivery.count.limit", "3");
        world.produce(1);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            deliver(consumer, 1, AcknowledgeType.RELEASE);
            deliver(consumer, 2, AcknowledgeType.RELEASE);
            world.configure("share.delivery.count.limit", "5");
            for (int count = 3; count <= 5; count++) {
                deliver(consumer, count, AcknowledgeType.RELEASE);
            }
            ShareWorld.pollNothing(consumer, 2_000);
        }
    }

    // -- suspects are delivered in smaller parts

    static void suspectsOfADefaultLimit(ShareWorld world) throws Exception {
        world.produce(100);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            for (int count : new int[] {100, 100, 100, 50, 1}) {
                releaseEach(consumer, 0, count, count);
            }
            releaseEach(consumer, 1, 50, 1);
            releaseEach(consumer, 50, 100, 50);
            releaseEach(consumer, 50, 100, 1);
            ShareWorld.pollNothing(consumer, 2_000);
        }
    }

    /** Polls deliver the records from `first` up to `end`, so many at a time; release them. */
    private static void releaseEach(KafkaShareConsumer<String, String> consumer, int first, int end, int count) throws Exception {
        for (int at = first; at < end; at += count) {
            ConsumerRecords<String, String> records = ShareWorld.poll(consumer, count);
            ShareWorld.equal((long) at, records.iterator().next().offset(), "first offset of a poll");
            records.forEach(record -> consumer.acknowledge(record, AcknowledgeType.RELEASE));
            ShareWorld.succeeds(consumer.commitSync());
        }
    }

    static void suspectsOfARaisedLimit(ShareWorld world) throws Exception {
        world.configure("share.delivery.count.limit", "10");
        world.produce(512);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer("max.poll.records", 512)) {
            consumer.subscribe(Set.of(world.topic));
            for (int count : new int[] {512, 512, 512, 512, 512, 256, 128, 64, 32, 1}) {
                releaseEach(consumer, 0, count, count);
            }
            releaseEach(consumer, 1, 32, 1);
            releaseEach(consumer, 32, 64, 32);
            releaseEach(consumer, 32, 64, 1);
            releaseEach(consumer, 64, 128, 64);
            releaseEach(consumer, 64, 96, 32);
            releaseEach(consumer, 64, 96, 1);
            releaseEach(consumer, 96, 128, 32);
            releaseEach(consumer, 96, 128, 1);
            releaseEach(consumer, 128, 256, 128);
        }
    }

    static void suspectsOfAnOddCount(ShareWorld world) throws Exception {
        world.configure("share.delivery.count.limit", "10");
        world.produce(100);
        Map<Long, Integer> delivered = new HashMap<>();
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            List<Integer> counts = new ArrayList<>();
            for (int number = 0; number < 10; number++) {
                counts.add(release(consumer, delivered));
            }
            ShareWorld.equal(List.of(100, 100, 100, 100, 100, 50, 25, 12, 6, 1), counts, "records of the first polls");
            ShareWorld.until("ten deliveries of all", () -> {
                release(consumer, delivered);
                return delivered.values().stream().allMatch(each -> each == 10);
            });
            ShareWorld.pollNothing(consumer, 2_000);
        }
        ShareWorld.equal(100, delivered.size(), "records");
    }

    private static int release(KafkaShareConsumer<String, String> consumer, Map<Long, Integer> delivered) throws Exception {
        ConsumerRecords<String, String> records = ShareWorld.someOf(consumer);
        records.forEach(record -> {
            delivered.merge(record.offset(), 1, Integer::sum);
            consumer.acknowledge(record, AcknowledgeType.RELEASE);
        });
        ShareWorld.succeeds(consumer.commitSync());
        return records.count();
    }

    static void aLimitOfTwoHasNoSuspects(ShareWorld world) throws Exception {
        world.configure("share.delivery.count.limit", "2");
        world.produce(512);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer("max.poll.records", 512)) {
            consumer.subscribe(Set.of(world.topic));
            releaseEach(consumer, 0, 512, 512);
            releaseEach(consumer, 0, 512, 512);
            ShareWorld.pollNothing(consumer, 2_000);
        }
    }

    static void suspectsOfTwoConsumers(ShareWorld world) throws Exception {
        world.produce(1);
        world.produce(1);
        try (KafkaShareConsumer<String, String> one = world.explicitConsumer("max.poll.records", 1);
            KafkaShareConsumer<String, String> two = world.explicitConsumer("max.poll.records", 2)) {
            one.subscribe(Set.of(world.topic));
            ConsumerRecord<String, String> first = ShareWorld.poll(one, 1).iterator().next();
            ShareWorld.equal(0L, first.offset(), "offset");
            two.subscribe(Set.of(world.topic));
            for (int number = 0; number < 4; number++) {
                releaseEach(two, 1, 2, 1);
            }
            one.acknowledge(first, AcknowledgeType.RELEASE);
            ShareWorld.succeeds(one.commitSync());
            for (long offset = 0; offset < 2; offset++) {
                ConsumerRecord<String, String> record = ShareWorld.poll(two, 1).iterator().next();
                ShareWorld.equal(offset, record.offset(), "offset");
                two.acknowledge(record);
                ShareWorld.succeeds(two.commitSync());
            }
            ShareWorld.pollNothing(one, 2_000);
        }
    }

    // -- acquire modes

    static void batchOptimizedTakesWholeBatches(ShareWorld world) throws Exception {
        world.produce(10);
        try (KafkaShareConsumer<String, String> consumer = world.consumer("max.poll.records", 5, "share.acquire.mode", "batch_optimized")) {
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 10);
        }
    }

    static void recordLimitTakesNoMore(ShareWorld world) throws Exception {
        world.produce(15);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer(RECORD_LIMIT)) {
            consumer.subscribe(Set.of(world.topic));
            for (int count : new int[] {10, 5}) {
                ShareWorld.poll(consumer, count).forEach(consumer::acknowledge);
                ShareWorld.succeeds(consumer.commitSync());
            }
        }
    }

    static void recordLimitOfOne(ShareWorld world) throws Exception {
        world.produce(10);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer("share.acquire.mode", "record_limit", "max.poll.records", 1)) {
            consumer.subscribe(Set.of(world.topic));
            for (long offset = 0; offset < 10; offset++) {
                ConsumerRecord<String, String> record = ShareWorld.poll(consumer, 1).iterator().next();
                ShareWorld.equal(offset, record.offset(), "offset");
                consumer.acknowledge(record);
                consumer.commitSync();
            }
        }
    }

    static void recordLimitCountsRecordsThatWereReleased(ShareWorld world) throws Exception {
        world.produce(20);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer(RECORD_LIMIT)) {
            consumer.subscribe(Set.of(world.topic));
            for (ConsumerRecord<String, String> record : ShareWorld.poll(consumer, 10)) {
                consumer.acknowledge(record, record.offset() % 2 == 0 ? AcknowledgeType.ACCEPT : AcknowledgeType.RELEASE);
                ShareWorld.succeeds(consumer.commitSync());
            }
            for (int count : new int[] {10, 5}) {
                ShareWorld.poll(consumer, count).forEach(consumer::acknowledge);
                ShareWorld.succeeds(consumer.commitSync());
            }
        }
    }
}
