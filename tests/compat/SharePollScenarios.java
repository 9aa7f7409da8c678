// Scenarios of subscriptions, polls and several consumers (ShareConsumerScenarios.java runs them).

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

final class SharePollScenarios {
    static void pollWithoutASubscriptionFails(ShareWorld world) {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            ShareWorld.equal(Set.of(), consumer.subscription(), "subscription");
            ShareWorld.fails(IllegalStateException.class, () -> consumer.poll(Duration.ofMillis(500)));
        }
    }

    static void subscribePollUnsubscribe(ShareWorld world) {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.equal(Set.of(world.topic), consumer.subscription(), "subscription");
            ShareWorld.pollNothing(consumer, 500);
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.pollNothing(consumer, 500);
            consumer.unsubscribe();
            ShareWorld.equal(Set.of(), consumer.subscription(), "subscription");
            ShareWorld.fails(IllegalStateException.class, () -> consumer.poll(Duration.ofMillis(500)));
            consumer.subscribe(Set.of(world.topic));
            consumer.subscribe(Set.of());
            ShareWorld.fails(IllegalStateException.class, () -> consumer.poll(Duration.ofMillis(500)));
        }
    }

    static void pollRecordsOneAfterAnother(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.topic));
            for (int number = 0; number < 3; number++) {
                world.produce(1);
                ShareWorld.equal((long) number, ShareWorld.poll(consumer, 1).iterator().next().offset(), "offset");
            }
        }
    }

    static void recordAboveFetchMaxBytes(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer("fetch.max.bytes", 1)) {
            world.produce(1);
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 1);
        }
    }

    static void largeRecordsAboveFetchMaxBytes(ShareWorld world) throws Exception {
        String large = "v".repeat(900_000);
        try (KafkaProducer<String, String> producer = world.producer();
            KafkaShareConsumer<String, String> consumer = world.consumer("fetch.max.bytes", 1_000)) {
            for (int number = 0; number < 6; number++) {
                producer.send(new ProducerRecord<>(world.topic, 0, "k", large)).get();
            }
            consumer.subscribe(Set.of(world.topic));
            List<String> delivered = new ArrayList<>();
            ShareWorld.pollAll(consumer, 6).forEach(record -> delivered.add(record.offset() + "x" + record.deliveryCount().get()));
            ShareWorld.equal(List.of("0x1", "1x1", "2x1", "3x1", "4x1", "5x1"), delivered, "deliveries");
        }
    }

    static void recordAboveMaxPartitionFetchBytes(ShareWorld world) throws Exception {
        try (KafkaProducer<String, String> producer = world.producer();
            KafkaShareConsumer<String, String> consumer = world.consumer("max.partition.fetch.bytes", 10_000)) {
            producer.send(new ProducerRecord<>(world.topic, 0, "k", "small")).get();
            producer.send(new ProducerRecord<>(world.topic, 0, "k", "v".repeat(10_000))).get();
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.poll(consumer, 2);
        }
    }

    static void headersKeepTheirOrder(ShareWorld world) throws Exception {
        try (KafkaProducer<String, String> producer = world.producer();
            KafkaShareConsumer<String, String> consumer = world.consumer()) {
            ProducerRecord<String, String> record = new ProducerRecord<>(world.topic, 0, "key", "value");
            record.headers().add("a", "1".getBytes()).add("b", "2".getBytes()).add("c", "3".getBytes());
            producer.send(record).get();
            consumer.subscribe(Set.of(world.topic));
            StringBuilder found = new StringBuilder();
            for (Header header : ShareWorld.poll(consumer, 1).iterator().next().headers()) {
                found.append(header.key()).append(new String(header.value()));
            }
            ShareWorld.equal("a1b2c3", found.toString(), "headers");
        }
    }

    static void serializersAddAndSeeHeaders(ShareWorld world) throws Exception {
        StringSerializer adding = new StringSerializer() {
            @Override
            public byte[] serialize(String topic, Headers headers, String data) {
                headers.add("content-type", "text/plain".getBytes());
                return super.serialize(topic, headers, data);
            }
        };
        StringDeserializer seeing = new StringDeserializer() {
            @Override
            public String deserialize(String topic, Headers headers, java.nio.ByteBuffer data) {
                return new String(headers.lastHeader("content-type").value()) + " " + super.deserialize(topic, headers, data);
            }
        };
        Map<String, Object> settings = Map.of("bootstrap.servers", world.bootstrap);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, new StringSerializer(), adding);
            KafkaShareConsumer<String, String> consumer = world.consumerOf(world.group, seeing)) {
            producer.send(new ProducerRecord<>(world.topic, 0, "key", "value")).get();
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.equal(List.of("text/plain value"), ShareWorld.values(ShareWorld.poll(consumer, 1)), "values");
        }
    }

    static void maxPollRecords(ShareWorld world) throws Exception {
        world.produce(2_000);
        try (KafkaShareConsumer<String, String> consumer = world.consumer("max.poll.records", 2)) {
            consumer.subscribe(Set.of(world.topic));
            List<ConsumerRecord<String, String>> records = ShareWorld.pollAll(consumer, 2_000);
            for (int number = 0; number < 2_000; number++) {
                ShareWorld.equal("value " + number, records.get(number).value(), "record " + number);
            }
        }
    }

    static void controlRecordsAreSkipped(ShareWorld world) throws Exception {
        try (KafkaProducer<String, String> transactional = world.producer("transactional.id", world.group);
            KafkaProducer<String, String> plain = world.producer();
            KafkaShareConsumer<String, String> consumer = world.consumer()) {
            List<Long> written = new ArrayList<>();
            ProducerRecord<String, String> record = new ProducerRecord<>(world.topic, 0, "key", "value");
            transactional.initTransactions();
            transactional.beginTransaction();
            written.add(transactional.send(record).get().offset());
            written.add(plain.send(record).get().offset());
            transactional.commitTransaction();
            transactional.beginTransaction();
            written.add(transactional.send(record).get().offset());
            transactional.abortTransaction();
            written.add(plain.send(record).get().offset());
            consumer.subscribe(Set.of(world.topic));
            List<Long> found = new ArrayList<>();
            ShareWorld.poll(consumer, 4).forEach(each -> found.add(each.offset()));
            ShareWorld.equal(written, found, "offsets");
            ShareWorld.pollNothing(consumer, 500);
        }
    }

    static void wakeupLosesNoRecords(ShareWorld world) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            world.produce(1);
            consumer.subscribe(Set.of(world.topic));
            consumer.wakeup();
            ShareWorld.fails(WakeupException.class, () -> consumer.poll(Duration.ZERO));
            ShareWorld.poll(consumer, 1);
        }
    }

    static void interruptedPoll(ShareWorld world) {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of(world.topic));
            try {
                Thread.currentThread().interrupt();
                ShareWorld.fails(InterruptException.class, () -> consumer.poll(Duration.ZERO));
            } finally {
                Thread.interrupted();
            }
            ShareWorld.pollNothing(consumer, 0);
        }
    }

    static void invalidTopic(ShareWorld world) {
        try (KafkaShareConsumer<String, String> consumer = world.consumer()) {
            consumer.subscribe(Set.of("topic abc"));
            ShareWorld.fails(InvalidTopicException.class, () -> consumer.poll(ShareWorld.PATIENCE));
        }
    }

    // -- several consumers

    static void twoConsumersPollInTurn(ShareWorld world) throws Exception {
        world.produce(2_000);
        Map<Long, Integer> delivered = new HashMap<>();
        try (KafkaShareConsumer<String, String> one = world.consumer();
            KafkaShareConsumer<String, String> two = world.consumer()) {
            one.subscribe(Set.of(world.topic));
            two.subscribe(Set.of(world.topic));
            ShareWorld.until("2000 records", () -> {
                count(delivered, one.poll(Duration.ofMillis(500)));
                count(delivered, two.poll(Duration.ofMillis(500)));
                return delivered.size() == 2_000;
            });
        }
        ShareWorld.equal(Set.of(1), new HashSet<>(delivered.values()), "deliveries of a record");
    }

    private static void count(Map<Long, Integer> delivered, ConsumerRecords<String, String> records) {
        records.forEach(record -> delivered.merge(record.offset(), 1, Integer::sum));
    }

    static void consumersPollAtTheSameTime(ShareWorld world) throws Exception {
        AtomicInteger consumed = new AtomicInteger();
        List<Callable<Void>> work = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            work.add(() -> {
                world.produce(3_000);
                return null;
            });
        }
        for (int number = 0; number < 4; number++) {
            work.add(() -> consume(world, world.group, consumed, 6_000));
        }
        together(work);
        ShareWorld.equal(6_000, consumed.get(), "records");
    }

    static void aConsumerFailsAmongOthers(ShareWorld world) throws Exception {
        world.produce(4_000);
        try (KafkaShareConsumer<String, String> failing = world.explicitConsumer()) {
            failing.subscribe(Set.of(world.topic));
            ShareWorld.someOf(failing);
        }
        AtomicInteger consumed = new AtomicInteger();
        List<Callable<Void>> work = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            work.add(() -> consume(world, world.group, consumed, 4_000));
        }
        together(work);
        ShareWorld.equal(4_000, consumed.get(), "records");
    }

    static void groupsConsumeAllRecordsEach(ShareWorld world) throws Exception {
        List<AtomicInteger> consumed = new ArrayList<>();
        List<Callable<Void>> work = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            String group = world.group + "-" + number;
            world.configure(group, "share.auto.offset.reset", "earliest");
            AtomicInteger own = new AtomicInteger();
            consumed.add(own);
            work.add(() -> consume(world, group, own, 2_000));
            work.add(() -> consume(world, group, own, 2_000));
        }
        world.produce(2_000);
        together(work);
        consumed.forEach(each -> ShareWorld.equal(2_000, each.get(), "records of a group"));
    }

    private static Void consume(ShareWorld world, String group, AtomicInteger consumed, int wanted) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = world.consumerOf(group)) {
            consumer.subscribe(Set.of(world.topic));
            ShareWorld.until(wanted + " records", () -> {
                consumed.addAndGet(consumer.poll(Duration.ofMillis(500)).count());
                return consumed.get() >= wanted;
            });
            consumer.commitSync();
        }
        return null;
    }

    private static void together(List<Callable<Void>> work) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(work.size());
        List<Future<Void>> running = new ArrayList<>();
        work.forEach(each -> running.add(pool.submit(each)));
        pool.shutdown();
        for (Future<Void> each : running) {
            each.get(2 * ShareWorld.PATIENCE.toSeconds(), TimeUnit.SECONDS);
        }
    }

    static void closeReleasesToAnotherConsumer(ShareWorld world) throws Exception {
        world.produce(1_500);
        try (KafkaShareConsumer<String, String> one = world.explicitConsumer();
            KafkaShareConsumer<String, String> two = world.consumer()) {
            one.subscribe(Set.of(world.topic));
            two.subscribe(Set.of(world.topic));
            int acquired = ShareWorld.someOf(one).count();
            one.close();
            Map<Long, Integer> delivered = new HashMap<>();
            ShareWorld.until("all records", () -> {
                count(delivered, two.poll(Duration.ofMillis(500)));
                return delivered.size() == 1_500;
            });
            ShareWorld.equal(true, acquired > 0, "the first consumer had records");
        }
    }
}
