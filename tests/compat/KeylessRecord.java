import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.StringSerializer;

/** One batch with a record without a key: `java KeylessRecord.java host:port topic`; a line per record, why it failed. */
public final class KeylessRecord {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("linger.ms", "500");
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (Producer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.partitionsFor(arguments[1]);
            for (String key : Arrays.asList("k", null, "k")) {
                sent.add(producer.send(new ProducerRecord<>(arguments[1], 0, key, "v")));
            }
            producer.flush();
        }
        for (Future<RecordMetadata> one : sent) {
            try {
                System.out.println("stored at " + one.get().offset());
            } catch (ExecutionException failed) {
                Throwable why = failed.getCause();
                System.out.println(why.getClass().getSimpleName() + ": " + why.getMessage());
            }
        }
    }
}
