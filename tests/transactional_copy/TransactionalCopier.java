import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;

/** Kafka's own clients as a copier (tests/transactional_copy/copier.py says what that is, and what the lines mean). */
public final class TransactionalCopier {
    private static final String INPUT = "input";
    private static final String OUTPUT = "copy";
    private static final int BATCH = 40;
    private static final double ABORTED_SHARE = 0.15;
    private static final int OVER = 3;
    private static final long PATIENCE_NS = Duration.ofSeconds(240).toNanos();

    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private final Random random;
    private final String tag;
    private long begun;

    private TransactionalCopier(String bootstrap, String group, String name, String incarnation, String seed) {
        tag = name + "." + incarnation;
        random = new Random((seed + " " + incarnation).hashCode());
        producer = new KafkaProducer<>(producerSettings(bootstrap, name));
        untilKnown(producer::initTransactions);
        consumer = new KafkaConsumer<>(consumerSettings(bootstrap, group));
        consumer.subscribe(List.of(INPUT));
    }

    public static void main(String[] arguments) {
        AtomicBoolean stopped = stopAtEndOfInput();
        try {
            TransactionalCopier copier =
                new TransactionalCopier(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]);
            while (!stopped.get()) {
                copier.step();
            }
            copier.consumer.close();
        } catch (KafkaException | IllegalStateException error) {
            tell("over " + error.getClass().getSimpleName());
            Runtime.getRuntime().halt(OVER); // as a crash: nothing is closed
        }
        Runtime.getRuntime().halt(0);
    }

    /** Rebalances happen in poll only, so the batch and the group's metadata are of one generation. */
    private void step() {
        List<ConsumerRecord<String, String>> batch = new ArrayList<>();
        consumer.poll(Duration.ofMillis(200)).forEach(batch::add);
        if (batch.isEmpty()) {
            return;
        }
        begun++;
        String mine = tag + "." + begun;
        tell("begin " + mine + " " + batch.stream()
            .map(record -> name(record).replace('/', ':')).collect(Collectors.joining(",")));
        try {
            copy(mine, batch);
        } catch (IllegalStateException error) {
            throw error;
        } catch (KafkaException error) {
            abort(mine); // which throws if only another producer can go on
        }
    }

    private void copy(String mine, List<ConsumerRecord<String, String>> batch) {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        for (ConsumerRecord<String, String> record : batch) {
            producer.send(new ProducerRecord<>(OUTPUT, record.partition(), null, mine + "/" + name(record)));
            positions.put(
                new TopicPartition(INPUT, record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        double draw = random.nextDouble();
        if (draw < ABORTED_SHARE / 2) {
            abort(mine);
            return;
        }
        untilKnown(() -> producer.sendOffsetsToTransaction(positions, consumer.groupMetadata()));
        if (draw < ABORTED_SHARE) {
            producer.flush();
            abort(mine);
            return;
        }
        tell("ending " + mine);
        untilKnown(producer::commitTransaction);
        tell("committed " + mine);
    }

    private void abort(String mine) {
        untilKnown(producer::abortTransaction);
        tell("aborted " + mine);
        for (var place : consumer.committed(consumer.assignment(), Duration.ofMinutes(2)).entrySet()) {
            consumer.seek(place.getKey(), place.getValue() == null ? 0 : place.getValue().offset());
        }
    }

    private static String name(ConsumerRecord<String, String> record) {
        return record.value().substring(record.value().indexOf('/') + 1);
    }

    /** Java's producer repeats requests for max.block.ms; then the same call waits for the same outcome. */
    private static void untilKnown(Runnable call) {
        long until = System.nanoTime() + PATIENCE_NS;
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException error) {
                if (System.nanoTime() > until) {
                    throw error;
                }
            }
        }
    }

    private static Properties producerSettings(String bootstrap, String name) {
        Properties settings = settings(bootstrap);
        settings.put("transactional.id", name);
        settings.put("transaction.timeout.ms", "15000");
        settings.put("linger.ms", "2");
        settings.put("request.timeout.ms", "3000");
        settings.put("delivery.timeout.ms", "14000");
        settings.put("max.block.ms", "10000");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        return settings;
    }

    private static Properties consumerSettings(String bootstrap, String group) {
        Properties settings = settings(bootstrap);
        settings.put("group.id", group);
        settings.put("session.timeout.ms", "4000");
        settings.put("heartbeat.interval.ms", "500");
        settings.put("request.timeout.ms", "5000");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        settings.put("max.poll.records", Integer.toString(BATCH));
        // librdkafka's first one: members of one group need an assignor in common
        settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        return settings;
    }

    private static Properties settings(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("retry.backoff.max.ms", "500");
        settings.put("metadata.max.age.ms", "1000");
        return settings;
    }

    private static AtomicBoolean stopAtEndOfInput() {
        AtomicBoolean stopped = new AtomicBoolean();
        Thread reader = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) {
                System.err.println(error);
            }
            stopped.set(true);
        });
        reader.setDaemon(true);
        reader.start();
        return stopped;
    }

    private static synchronized void tell(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
