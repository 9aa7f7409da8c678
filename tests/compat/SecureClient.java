import java.io.FileInputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.security.token.delegation.DelegationToken;

/**
 * Arguments: NAME=FILE with the settings of a client. With each it creates a topic, writes and reads records, and prints
 * "read NAME true". NAME "token" first creates a delegation token with these settings and then uses that. Names that begin
 * with "again" go on writing for some seconds, at the same time, in which their connections authenticate again.
 */
public final class SecureClient {
    private static final int RECORDS = 20;

    public static void main(String[] arguments) throws Exception {
        List<CompletableFuture<Void>> again = new ArrayList<>();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            Properties settings = new Properties();
            try (FileInputStream file = new FileInputStream(parts[1])) {
                settings.load(file);
            }
            if (parts[0].equals("token")) {
                withToken(settings);
            }
            if (parts[0].startsWith("again")) {
                again.add(CompletableFuture.runAsync(() -> runUnchecked(parts[0], settings)));
            } else {
                run(parts[0], settings);
            }
        }
        again.forEach(CompletableFuture::join);
    }

    private static void runUnchecked(String name, Properties settings) {
        try {
            run(name, settings);
        } catch (Exception error) {
            throw new IllegalStateException(name, error);
        }
    }

    private static void withToken(Properties settings) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            DelegationToken token = admin.createDelegationToken().delegationToken().get();
            settings.put("sasl.mechanism", "SCRAM-SHA-256");
            settings.put("sasl.jaas.config",
                "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"" + token.tokenInfo().tokenId()
                + "\" password=\"" + token.hmacAsBase64String() + "\" tokenauth=\"true\";");
        }
    }

    private static void run(String name, Properties settings) throws Exception {
        String topic = "java-" + name;
        try (Admin admin = Admin.create(settings)) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();
        }
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("group.id", topic);
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        int records = RECORDS;
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            if (name.startsWith("again")) {
                long end = System.nanoTime() + Duration.ofSeconds(5).toNanos();
                for (records = 0; System.nanoTime() < end; records++) {
                    producer.send(new ProducerRecord<>(topic, "k", "v")).get();
                }
            } else {
                for (int number = 0; number < records; number++) {
                    producer.send(new ProducerRecord<>(topic, "k" + number, "v"));
                }
                producer.flush();
            }
        }
        int read = 0;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            while (read < records) {
                read += consumer.poll(Duration.ofMillis(200)).count();
            }
        }
        System.out.println("read " + name + " " + (read == records));
    }
}
