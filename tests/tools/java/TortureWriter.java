import java.io.PrintStream;
import java.util.Properties;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own idempotent producer as a writer of the torture run (tests/torture/pacing.py says what that is). */
public final class TortureWriter {
    private static final int OUTSTANDING_MAX = 1_000;
    private static final int TICK_MS = 20;

    public static void main(String[] arguments) throws Exception {
        System.setErr(new Diary(System.err));
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        int perTick = Math.max(1, Integer.parseInt(arguments[3]) * TICK_MS / 1000);
        AtomicBoolean stopped = stopAtEndOfInput();
        Semaphore room = new Semaphore(OUTSTANDING_MAX);
        long sent = 0;
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings(arguments[0], arguments[4]))) {
            while (!stopped.get()) {
                for (int i = 0; i < perTick && room.tryAcquire(); i++, sent++) {
                    send(producer, topic, (int) (sent % partitions), sent / partitions, room);
                }
                Thread.sleep(TICK_MS);
            }
            producer.flush();
            double retries = producer.metrics().entrySet().stream()
                .filter(e -> e.getKey().name().equals("record-retry-total") && e.getKey().group().equals("producer-metrics"))
                .mapToDouble(e -> (double) e.getValue().metricValue()).sum();
            tell("end " + sent + " " + (long) retries);
        }
    }

    private static void send(
            KafkaProducer<String, String> producer, String topic, int partition, long number, Semaphore room) {
        String value = "java/" + partition + "/" + number;
        producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
            room.release();
            if (error == null) {
                tell("ack " + partition + " " + number + " " + metadata.offset());
            } else {
                tell("fail " + partition + " " + number + " " + error);
            }
        });
    }

    private static Properties settings(String bootstrap, String deliveryMs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.idempotence", "true");
        settings.put("acks", "all");
        settings.put("linger.ms", "5");
        settings.put("request.timeout.ms", "2000");
        settings.put("delivery.timeout.ms", deliveryMs);
        settings.put("max.block.ms", deliveryMs);
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("retry.backoff.max.ms", "500");
        settings.put("metadata.max.age.ms", "1000");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
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

    /** The client's log: a producer id or epoch after the first one is reported. */
    private static final class Diary extends PrintStream {
        private boolean hasId;

        Diary(PrintStream stderr) {
            super(stderr, true);
        }

        @Override
        public void println(String line) {
            super.println(line);
            int found = line.indexOf("ProducerId set to");
            if (found >= 0) {
                if (hasId) {
                    tell("over " + line.substring(found));
                }
                hasId = true;
            }
        }
    }

    private static synchronized void tell(String line) {
        System.out.println(line.replace('\n', ' '));
    }
}
