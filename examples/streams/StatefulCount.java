import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/** Counts the records of each key, in a store that a compacted topic backs: StatefulCount bootstrap folder guarantee name. */
public final class StatefulCount {
  public static void main(String[] words) {
    Properties config = new Properties();
    config.put(StreamsConfig.APPLICATION_ID_CONFIG, "counting-" + words[3]);
    config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, words[0]);
    config.put(StreamsConfig.STATE_DIR_CONFIG, words[1]);
    config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, words[2]);
    config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
    config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
    config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
    config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
    config.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    config.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 10_000); // after a crash, the next instance waits so long
    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream(words[3] + "-words")
        .groupByKey()
        .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts").withCachingDisabled())
        .toStream()
        .mapValues(count -> Long.toString(count))
        .to(words[3] + "-counted", Produced.with(Serdes.String(), Serdes.String()));
    KafkaStreams streams = new KafkaStreams(builder.build(), config);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(30))));
    streams.start();
  }
}
