import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import io.debezium.engine.spi.OffsetCommitPolicy;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends each change of the table `orders` to the topic `captured`, with Debezium's embedded engine, which keeps its
 * offsets in the compacted topic `debezium-offsets`: CapturedTable bootstrap postgres-port user password.
 */
public final class CapturedTable {
  public static void main(String[] words) throws Exception {
    Properties config = new Properties();
    config.put("name", "captured");
    config.put("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
    config.put("offset.storage", "org.apache.kafka.connect.storage.KafkaOffsetBackingStore");
    config.put("bootstrap.servers", words[0]);
    config.put("offset.storage.topic", "debezium-offsets");
    config.put("offset.storage.partitions", "1");
    config.put("offset.storage.replication.factor", "1");
    config.put("database.hostname", "127.0.0.1");
    config.put("database.port", words[1]);
    config.put("database.user", words[2]);
    config.put("database.password", words[3]);
    config.put("database.dbname", "postgres");
    config.put("plugin.name", "pgoutput");
    config.put("topic.prefix", "shop");
    config.put("table.include.list", "public.orders");
    config.put("value.converter.schemas.enable", "false");

    Properties producing = new Properties();
    producing.put("bootstrap.servers", words[0]);
    KafkaProducer<String, String> producer =
        new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer());
    CountDownLatch ended = new CountDownLatch(1);
    DebeziumEngine<ChangeEvent<String, String>> engine =
        DebeziumEngine.create(Json.class)
            .using(config)
            .using(OffsetCommitPolicy.always())
            .using((isSuccess, message, error) -> ended.countDown())
            .notifying(
                (events, committer) -> {
                  for (ChangeEvent<String, String> event : events) {
                    producer.send(new ProducerRecord<>("captured", event.value()));
                  }
                  producer.flush();
                  for (ChangeEvent<String, String> event : events) committer.markProcessed(event);
                  committer.markBatchFinished();
                })
            .build();
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  try {
                    engine.close();
                    ended.await();
                  } catch (Exception error) {
                    error.printStackTrace();
                  }
                }));
    engine.run();
  }
}
