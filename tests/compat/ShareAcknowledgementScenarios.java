// Scenarios of acknowledgements: explicit and implicit ones, callbacks, renewals (ShareConsumerScenarios.java runs them).

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.errors.InvalidRecordStateException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.RecordDeserializationException;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.StringDeserializer;

final class ShareAcknowledgementScenarios {
    // -- callbacks

    static void aChangedSubscriptionSendsAcknowledgements(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            ShareWorld.Heard heard = new ShareWorld.Heard();
            world.produce(1);
            world.produce(world.other, 1);
            consumer.setAcknowledgementCommitCallback(heard);
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1);
            consumer.subscribe(Set.of(world.other));
            ShareWorld.until("acknowledgements of both topics", () -> {
                consumer.poll(Duration.ofMillis(500));
                return heard.offsets.keySet().equals(Set.of(world.partition, world.otherPartition));
            });
            ShareWorld.equal(Map.of(), heard.errors, "errors");
        }
    }

    static void callbackOfAnAcknowledgement(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            ShareWorld.Heard heard = new ShareWorld.Heard();
            world.produce(1);
            consumer.setAcknowledgementCommitCallback(heard);
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1);
            untilHeard(consumer, heard, 1);
            ShareWorld.equal(Map.of(), heard.errors, "errors");
        }
    }

    private static void untilHeard(KafkaShareConsumer<String, String> consumer, ShareWorld.Heard heard, int count) throws Exception {
        ShareWorld.until(count + " acknowledgements", () -> {
            consumer.poll(Duration.ofMillis(500));
            return heard.count() >= count;
        });
    }

    static void callbackOnClose(ShareWorld world) throws Exception {
        ShareWorld.Heard heard = new ShareWorld.Heard();
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            world.produce(1);
            consumer.setAcknowledgementCommitCallback(heard);
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1);
            consumer.poll(Duration.ofMillis(1_000));
        }
        ShareWorld.equal(1, heard.count(), "acknowledgements");
        ShareWorld.equal(Map.of(), heard.errors, "errors");
    }

    static void callbackAfterTheEndOfTheLock(ShareWorld world) throws Exception {
        world.configure("share.record.lock.duration.ms", "2000");
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            ShareWorld.Heard heard = new ShareWorld.Heard();
            world.produce(1);
            consumer.setAcknowledgementCommitCallback(heard);
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1);
            Thread.sleep(4_000);
            ShareWorld.until("an error", () -> {
                consumer.poll(Duration.ofMillis(500));
                return heard.errors.containsKey(world.partition);
            });
            ShareWorld.equal(InvalidRecordStateException.class, heard.errors.get(world.partition).getClass(), "error");
        }
    }

    static void callbackMayNotUseTheConsumer(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            AtomicInteger refused = new AtomicInteger();
            world.produce(1);
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                ShareWorld.fails(IllegalStateException.class, consumer::close);
                ShareWorld.fails(IllegalStateException.class, () -> consumer.subscribe(Set.of(world.topic)));
                ShareWorld.fails(IllegalStateException.class, () -> consumer.poll(Duration.ofMillis(500)));
                refused.incrementAndGet();
            });
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1);
            ShareWorld.until("a callback", () -> {
                consumer.poll(Duration.ofMillis(500));
                return refused.get() > 0;
            });
        }
    }

    static void callbackMayWakeUp(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            world.produce(1);
            consumer.setAcknowledgementCommitCallback((offsets, error) -> consumer.wakeup());
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1);
            ShareWorld.until("a wakeup", () -> throwsInPoll(consumer, WakeupException.class));
        }
    }

    /** Kafka's client of 4.3 logs what the callback throws, older ones throw it in poll. */
    static void callbackThatThrows(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            AtomicInteger called = new AtomicInteger();
            world.produce(1);
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                called.incrementAndGet();
                throw new OutOfOrderSequenceException("of the callback");
            });
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1);
            ShareWorld.until("a callback", () -> throwsInPoll(consumer, OutOfOrderSequenceException.class) || called.get() > 0);
            consumer.setAcknowledgementCommitCallback(null);
            world.produce(1);
            ShareWorld.equal(1L, ShareWorld.poll(consumer, 1).iterator().next().offset(), "offset");
        }
    }

    private static boolean throwsInPoll(KafkaShareConsumer<String, String> consumer, Class<? extends KafkaException> kind) {
        try {
            consumer.poll(Duration.ofMillis(500));
        } catch (KafkaException error) {
            if (kind.isInstance(error)) {
                return true;
            }
            throw error;
        }
        return false;
    }

    // -- explicit acknowledgements

    static void acceptedRecordsAreDone(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            world.produce(1);
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1).forEach(consumer::acknowledge);
            world.produce(1);
            ConsumerRecords<String, String> next = ShareWorld.poll(consumer, 1);
            ShareWorld.equal(1L, next.iterator().next().offset(), "offset");
            next.forEach(consumer::acknowledge);
        }
    }

    static void commitSyncAnswersForEachPartition(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            world.produce(1);
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1).forEach(consumer::acknowledge);
            ShareWorld.succeeds(consumer.commitSync());
            world.produce(1);
            ShareWorld.poll(consumer, 1).forEach(consumer::acknowledge);
            ShareWorld.succeeds(consumer.commitSync());
        }
    }

    static void commitAsyncReleasesToAnotherConsumer(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer();
            KafkaShareConsumer<String, String> other = world.consumer()) {
            ShareWorld.Heard heard = new ShareWorld.Heard();
            world.produce(3);
            consumer.subscribe(Set.of(world.topic));
            consumer.setAcknowledgementCommitCallback(heard);
            List<ConsumerRecord<String, String>> records = ShareWorld.poll(consumer, 3).records(world.partition);
            other.subscribe(Set.of(world.topic));
            consumer.acknowledge(records.get(0));
            consumer.acknowledge(records.get(1));
            consumer.acknowledge(records.get(2), AcknowledgeType.RELEASE);
            consumer.commitAsync();
            ShareWorld.equal(2L, ShareWorld.poll(other, 1).iterator().next().offset(), "offset");
            untilHeard(consumer, heard, 3);
            ShareWorld.equal(Map.of(), heard.errors, "errors");
        }
    }

    static void pollNeedsAllAcknowledgements(ShareWorld world) throws Exception {
        ShareWorld.Heard heard = new ShareWorld.Heard();
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            world.produce(3);
            consumer.subscribe(Set.of(world.topic));
            consumer.setAcknowledgementCommitCallback(heard);
            List<ConsumerRecord<String, String>> records = ShareWorld.poll(consumer, 3).records(world.partition);
            consumer.acknowledge(records.get(0));
            consumer.acknowledge(records.get(1));
            consumer.commitAsync();
            world.produce(1);
            ShareWorld.fails(IllegalStateException.class, () -> consumer.poll(Duration.ofMillis(5_000)));
            consumer.acknowledge(records.get(2));
            consumer.commitAsync();
            ShareWorld.poll(consumer, 1).forEach(consumer::acknowledge);
            consumer.poll(Duration.ofMillis(500));
        }
        ShareWorld.equal(4, heard.count(), "acknowledgements");
        ShareWorld.equal(Map.of(), heard.errors, "errors");
    }

    static void releasedRecordsComeAgain(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            world.produce(1);
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1).forEach(record -> consumer.acknowledge(record, AcknowledgeType.RELEASE));
            ShareWorld.poll(consumer, 1).forEach(consumer::acknowledge);
            ShareWorld.pollNothing(consumer, 500);
        }
    }

    static void theLastTypeBeforeThePollCounts(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            world.produce(1);
            consumer.subscribe(Set.of(world.topic));
            ConsumerRecords<String, String> records = ShareWorld.poll(consumer, 1);
            records.forEach(record -> consumer.acknowledge(record, AcknowledgeType.RELEASE));
            records.forEach(record -> consumer.acknowledge(record, AcknowledgeType.ACCEPT));
            ShareWorld.pollNothing(consumer, 500);
        }
    }

    static void closeSendsAcknowledgements(ShareWorld world) throws Exception {
        world.produce(2);
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            consumer.subscribe(Set.of(world.topic));
            List<ConsumerRecord<String, String>> records = ShareWorld.poll(consumer, 2).records(world.partition);
            consumer.acknowledge(records.get(0), AcknowledgeType.ACCEPT);
            consumer.acknowledge(records.get(1), AcknowledgeType.RELEASE);
        }
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.topic));
            ConsumerRecord<String, String> again = ShareWorld.poll(consumer, 1).iterator().next();
            ShareWorld.equal(1L, again.offset(), "offset");
            ShareWorld.equal(Optional.of((short) 2), again.deliveryCount(), "delivery count");
        }
    }

    static void aRecordThatIsDoneIsNotAcknowledged(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            world.produce(1);
            consumer.subscribe(Set.of(world.topic));
            ConsumerRecord<String, String> record = ShareWorld.poll(consumer, 1).iterator().next();
            consumer.acknowledge(record);
            ShareWorld.pollNothing(consumer, 500);
            ShareWorld.fails(IllegalStateException.class, () -> consumer.acknowledge(record));
        }
    }

    // -- records that cannot be deserialized

    /** Throws for the record of this number, counted from 1, each time it is read. */
    private static StringDeserializer failingAt(int number) {
        return new StringDeserializer() {
            private int seen;

            @Override
            public String deserialize(String topic, Headers headers, ByteBuffer data) {
                if (seen == number - 1) {
                    throw new SerializationException("unreadable");
                }
                seen++;
                return super.deserialize(topic, headers, data);
            }
        };
    }

    static void anUnreadableRecordIsReleasedAndRejected(ShareWorld world) throws Exception {
        world.produce(3);
        try (KafkaShareConsumer<String, String> consumer = world.consumerOf(world.group, failingAt(3), (Object[]) ShareWorld.EXPLICIT)) {
            consumer.subscribe(Set.of(world.topic));
            ConsumerRecords<String, String> records = ShareWorld.poll(consumer, 2);
            records.forEach(consumer::acknowledge);
            ShareWorld.equal(2L, unreadable(consumer).offset(), "offset");
            consumer.commitSync();
            ShareWorld.equal(2L, unreadable(consumer).offset(), "offset again");
            consumer.acknowledge(world.topic, 0, 2, AcknowledgeType.REJECT);
            consumer.commitSync();
            ShareWorld.pollNothing(consumer, 500);
        }
    }

    static void anUnreadableRecordIsAcknowledgedByItsOffset(ShareWorld world) throws Exception {
        world.produce(2);
        try (KafkaShareConsumer<String, String> consumer = world.consumerOf(world.group, failingAt(2), (Object[]) ShareWorld.EXPLICIT)) {
            consumer.subscribe(Set.of(world.topic));
            ConsumerRecord<String, String> readable = ShareWorld.poll(consumer, 1).iterator().next();
            ShareWorld.fails(IllegalStateException.class, () -> consumer.acknowledge(world.topic, 0, 0, AcknowledgeType.ACCEPT));
            consumer.acknowledge(readable);
            ShareWorld.equal(1L, unreadable(consumer).offset(), "offset");
            ShareWorld.fails(IllegalStateException.class, () -> consumer.acknowledge("foo", 0, 1, AcknowledgeType.REJECT));
            ShareWorld.fails(IllegalStateException.class, () -> consumer.acknowledge(world.topic, 1, 1, AcknowledgeType.REJECT));
            ShareWorld.fails(IllegalStateException.class, () -> consumer.acknowledge(world.topic, 0, 0, AcknowledgeType.REJECT));
            consumer.acknowledge(world.topic, 0, 1, AcknowledgeType.REJECT);
            consumer.commitSync();
            ShareWorld.fails(IllegalStateException.class, () -> consumer.acknowledge(world.topic, 0, 1, AcknowledgeType.REJECT));
            ShareWorld.pollNothing(consumer, 500);
        }
    }

    private static RecordDeserializationException unreadable(KafkaShareConsumer<String, String> consumer) {
        return ShareWorld.fails(RecordDeserializationException.class, () -> consumer.poll(ShareWorld.PATIENCE));
    }

    // -- implicit acknowledgements

    static void implicitModeTakesNoAcknowledgement(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer("share.acknowledgement.mode", "implicit")) {
            world.produce(1);
            consumer.subscribe(Set.of(world.topic));
            ConsumerRecord<String, String> record = ShareWorld.poll(consumer, 1).iterator().next();
            ShareWorld.fails(IllegalStateException.class, () -> consumer.acknowledge(record));
            ShareWorld.pollNothing(consumer, 500);
            ShareWorld.fails(IllegalStateException.class, () -> consumer.acknowledge(record));
        }
    }

    static void implicitCommitSync(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            world.produce(1);
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1);
            ShareWorld.succeeds(consumer.commitSync());
            ShareWorld.equal(0, consumer.commitSync().size(), "partitions of a second commitSync");
            ShareWorld.pollNothing(consumer, 500);
        }
    }

    static void implicitCommitAsync(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            ShareWorld.Heard heard = new ShareWorld.Heard();
            world.produce(3);
            consumer.subscribe(Set.of(world.topic));
            consumer.setAcknowledgementCommitCallback(heard);
            ShareWorld.poll(consumer, 3);
            consumer.commitAsync();
            untilHeard(consumer, heard, 3);
            ShareWorld.equal(Map.of(), heard.errors, "errors");
        }
    }

    // -- renewals

    static void renewedRecordsComeInTheNextPoll(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            ShareWorld.Heard heard = new ShareWorld.Heard();
            consumer.setAcknowledgementCommitCallback(heard);
            world.produce(10);
            consumer.subscribe(Set.of(world.topic));
            acceptAndRenew(consumer, ShareWorld.poll(consumer, 10));
            ShareWorld.poll(consumer, 5).forEach(consumer::acknowledge);
            consumer.commitSync();
            ShareWorld.equal(15, heard.count(), "acknowledgements");
            ShareWorld.equal(Map.of(), heard.errors, "errors");
        }
    }

    private static void acceptAndRenew(KafkaShareConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
        records.forEach(record -> consumer.acknowledge(
            record, record.offset() % 2 == 0 ? AcknowledgeType.ACCEPT : AcknowledgeType.RENEW));
    }

    static void renewalsByCommitSyncAndAChangedLock(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            world.produce(10);
            consumer.subscribe(Set.of(world.topic));
            ConsumerRecords<String, String> records = ShareWorld.poll(consumer, 10);
            ShareWorld.equal(Optional.of(ShareWorld.LOCK_MS), consumer.acquisitionLockTimeoutMs(), "lock");
            world.configure("share.record.lock.duration.ms", "25000");
            for (ConsumerRecord<String, String> record : records) {
                consumer.acknowledge(record, record.offset() % 2 == 0 ? AcknowledgeType.ACCEPT : AcknowledgeType.RENEW);
                ShareWorld.succeeds(consumer.commitSync());
                ShareWorld.equal(Optional.of(ShareWorld.LOCK_MS), consumer.acquisitionLockTimeoutMs(), "lock before a poll");
            }
            ConsumerRecords<String, String> renewed = ShareWorld.poll(consumer, 5);
            ShareWorld.equal(Optional.of(25_000), consumer.acquisitionLockTimeoutMs(), "lock after a poll");
            renewed.forEach(consumer::acknowledge);
        }
    }

    static void aRejectedRecordIsNotRenewed(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            world.produce(1);
            consumer.subscribe(Set.of(world.topic));
            ConsumerRecord<String, String> record = ShareWorld.poll(consumer, 1).iterator().next();
            consumer.acknowledge(record, AcknowledgeType.REJECT);
            consumer.commitSync();
            ShareWorld.fails(IllegalStateException.class, () -> consumer.acknowledge(record, AcknowledgeType.RENEW));
        }
    }

    static void renewalsThatTheGroupForbids(ShareWorld world) throws Exception {
        world.configure("share.renew.acknowledge.enable", "false");
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            world.produce(1);
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1).forEach(record -> consumer.acknowledge(record, AcknowledgeType.RENEW));
            Map<TopicIdPartition, Optional<KafkaException>> committed = new HashMap<>(consumer.commitSync());
            ShareWorld.equal(1, committed.size(), "partitions of commitSync");
            ShareWorld.equal(InvalidRecordStateException.class, committed.values().iterator().next().get().getClass(), "error");
        }
    }

    static void newRecordsComeAfterRenewedOnes(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.explicitConsumer()) {
            ShareWorld.Heard heard = new ShareWorld.Heard();
            consumer.setAcknowledgementCommitCallback(heard);
            world.produce(10);
            consumer.subscribe(Set.of(world.topic));
            acceptAndRenew(consumer, ShareWorld.poll(consumer, 10));
            world.produce(5);
            ConsumerRecords<String, String> renewed = ShareWorld.poll(consumer, 5);
            renewed.forEach(record -> ShareWorld.equal(1L, record.offset() % 2, "a renewed record's offset modulo 2"));
            renewed.forEach(consumer::acknowledge);
            consumer.commitSync();
            ConsumerRecords<String, String> newest = ShareWorld.poll(consumer, 5);
            newest.forEach(record -> ShareWorld.equal(true, record.offset() >= 10, "a new record"));
            newest.forEach(consumer::acknowledge);
            consumer.commitSync();
            ShareWorld.equal(20, heard.count(), "acknowledgements");
            ShareWorld.equal(Map.of(), heard.errors, "errors");
        }
    }
}
