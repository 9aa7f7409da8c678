import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Argument: BOOTSTRAP. Transactions as Kafka's own client does them; each line of input is a command with its arguments,
 * and is answered by a line. Producers are named by their transactional id, and stay open.
 *
 * init ID TIMEOUT: another producer with this transactional id
 * send ID TOPIC VALUE...: begins a transaction with these records
 * offsets ID GROUP TOPIC OFFSET: adds an offset of partition 0, of a group without members
 * commit ID, abort ID, forget ID
 * read TOPIC COUNT ISOLATION: the first records of partition 0
 * Answers "ok ..." or the simple name of the exception.
 */
public final class TransactionalClient {
    private static final Map<String, KafkaProducer<String, String>> producers = new java.util.HashMap<>();
    private static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        var lines = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(answer(line.split(" ")));
            System.out.flush();
        }
    }

    private static String answer(String[] words) {
        try {
            return "ok" + run(words);
        } catch (Exception error) {
            Throwable cause = error instanceof java.util.concurrent.ExecutionException ? error.getCause() : error;
            return cause.getClass().getSimpleName();
        }
    }

    private static String run(String[] words) throws Exception {
        KafkaProducer<String, String> producer = producers.get(words[1]);
        switch (words[0]) {
            case "init":
                producers.put(words[1], begin(words[1], words[2]));
                return "";
            case "send":
                producer.beginTransaction();
                for (int index = 3; index < words.length; index++) {
                    producer.send(new ProducerRecord<>(words[2], 0, null, words[index])).get();
                }
                return "";
            case "offsets":
                producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(words[3], 0), new OffsetAndMetadata(Long.parseLong(words[4]))),
                    new org.apache.kafka.clients.consumer.ConsumerGroupMetadata(words[2]));
                return "";
            case "commit":
                producer.commitTransaction();
                return "";
            case "abort":
                producer.abortTransaction();
                return "";
            case "forget":
                producers.remove(words[1]).close(Duration.ZERO);
                return "";
            default:
                return " " + read(words[1], Integer.parseInt(words[2]), words[3]);
        }
    }

    private static KafkaProducer<String, String> begin(String id, String timeout) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", id);
        settings.put("transaction.timeout.ms", timeout);
        settings.put("linger.ms", "0");
        settings.put("max.block.ms", "30000");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
        producer.initTransactions();
        return producer;
    }

    private static String read(String topic, int count, String isolation) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("isolation.level", isolation);
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partition = List.of(new TopicPartition(topic, 0));
            consumer.assign(partition);
            consumer.seekToBeginning(partition);
            long until = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            while (values.size() < count && System.nanoTime() < until) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    values.add(record.value());
                }
            }
        }
        return values.stream().collect(Collectors.joining(" "));
    }
}
