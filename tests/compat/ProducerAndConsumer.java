import java.io.FileInputStream;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Arguments: FILE TOPIC. Kafka's own producer writes numbers with one key and its consumer reads them, until the end of
 * standard input; then it reads what is left. For each line of input a new producer writes one of the numbers. Prints
 * "started" after the first record is read, "written" for each line, and at the end "sent N read N in order true errors []".
 */
public final class ProducerAndConsumer {
    private static final long PATIENCE_NANOS = Duration.ofSeconds(120).toNanos();
    private static final AtomicBoolean done = new AtomicBoolean();
    private static final AtomicLong sent = new AtomicLong();
    private static final ConcurrentLinkedQueue<String> errors = new ConcurrentLinkedQueue<>();
    private static long read;
    private static boolean inOrder = true;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            settings.load(file);
        }
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.LongSerializer");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.LongDeserializer");
        settings.put("group.id", arguments[1]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("linger.ms", "0");
        settings.put("metadata.max.age.ms", "500");
        CountDownLatch started = new CountDownLatch(1);
        Thread reading = new Thread(() -> attempt(() -> consume(settings, arguments[1], started)));
        reading.start();
        Thread writing = new Thread(() -> attempt(() -> produce(settings, arguments[1])));
        writing.start();
        started.await();
        System.out.println("started");
        while (System.in.read() >= 0) {
            attempt(() -> {
                try (KafkaProducer<String, Long> producer = new KafkaProducer<>(settings)) {
                    producer.send(new ProducerRecord<>(arguments[1] + "-new", "k", 0L)).get();
                }
            });
            System.out.println("written");
        }
        done.set(true);
        writing.join();
        reading.join();
        System.out.println("sent " + sent + " read " + read + " in order " + inOrder + " errors " + errors);
    }

    private static void produce(Properties settings, String topic) throws Exception {
        try (KafkaProducer<String, Long> producer = new KafkaProducer<>(settings)) {
            while (!done.get()) {
                producer.send(new ProducerRecord<>(topic, "k", sent.getAndIncrement()), (metadata, error) -> {
                    if (error != null) {
                        errors.add(error.toString());
                    }
                });
                Thread.sleep(5);
            }
        }
    }

    private static void consume(Properties settings, String topic, CountDownLatch started) {
        try (KafkaConsumer<String, Long> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(Collections.singletonList(topic));
            long until = Long.MAX_VALUE;
            while (!done.get() || read < sent.get()) {
                for (ConsumerRecord<String, Long> record : consumer.poll(Duration.ofMillis(100))) {
                    inOrder &= record.value() == read++;
                    started.countDown();
                }
                if (done.get() && until == Long.MAX_VALUE) {
                    until = System.nanoTime() + PATIENCE_NANOS;
                }
                if (System.nanoTime() > until) {
                    throw new IllegalStateException("records are missing");
                }
            }
        } finally {
            started.countDown();
        }
    }

    private interface Part {
        void run() throws Exception;
    }

    private static void attempt(Part part) {
        try {
            part.run();
        } catch (Exception error) {
            errors.add(error.toString());
        }
    }
}
