// Consumers and one producer at a steady rate: ShareLoad BOOTSTRAP share|consumer CONSUMERS RECORDS_PER_SECOND SECONDS
// PARTITIONS. It prints `ready` once its consumers have joined, `sent N` when the producer ends, and `end N` with the
// records that consumers got.

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class ShareLoad {
    private static final byte[] VALUE = new byte[200];
    private static final AtomicBoolean STOP = new AtomicBoolean();
    private static final AtomicLong GOT = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], kind = arguments[1], topic = "load-" + kind;
        int count = Integer.parseInt(arguments[2]), rate = Integer.parseInt(arguments[3]);
        int seconds = Integer.parseInt(arguments[4]), partitions = Integer.parseInt(arguments[5]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
            if (kind.equals("share")) {
                ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, topic);
                ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
                List<AlterConfigOp> set = List.of(new AlterConfigOp(earliest, AlterConfigOp.OpType.SET));
                admin.incrementalAlterConfigs(Map.of(group, set)).all().get();
            }
        }
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            threads.add(new Thread(() -> consume(bootstrap, kind, topic)));
        }
        threads.forEach(Thread::start);
        Thread.sleep(8000);
        System.out.println("ready");
        long sent = produce(bootstrap, topic, partitions, rate, seconds);
        System.out.println("sent " + sent);
        for (int tries = 0; tries < 100 && GOT.get() < sent; tries++) {
            Thread.sleep(100);
        }
        System.out.println("end " + GOT.get());
        System.exit(0);
    }

    private static void consume(String bootstrap, String kind, String topic) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", topic);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        if (kind.equals("share")) {
            try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings, bytes, bytes)) {
                consumer.subscribe(List.of(topic));
                while (!STOP.get()) {
                    GOT.addAndGet(consumer.poll(Duration.ofMillis(500)).count());
                }
            }
            return;
        }
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            consumer.subscribe(List.of(topic));
            while (!STOP.get()) {
                GOT.addAndGet(consumer.poll(Duration.ofMillis(500)).count());
            }
        }
    }

    private static long produce(String bootstrap, String topic, int partitions, int rate, int seconds) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("linger.ms", "20");
        ByteArraySerializer bytes = new ByteArraySerializer();
        long began = System.nanoTime(), sent = 0;
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            while (System.nanoTime() - began < seconds * 1_000_000_000L) {
                long due = (System.nanoTime() - began) / 1000 * rate / 1_000_000;
                for (; sent < due; sent++) {
                    producer.send(new ProducerRecord<>(topic, (int) (sent % partitions), null, VALUE));
                }
                Thread.sleep(5);
            }
        }
        return sent;
    }
}
