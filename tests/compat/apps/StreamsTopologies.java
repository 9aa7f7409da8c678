import java.time.Duration;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;

/**
 * Runs one topology with group.protocol=streams: StreamsTopologies bootstrap folder topology guarantee threads [setting=value]...
 *
 * <p>Topologies read NAME-left and NAME-right and write NAME-out. What they write for a key ends the same in any order of
 * partitions.
 */
public final class StreamsTopologies {
  private static final Map<String, Consumer<Topics>> TOPOLOGIES = new LinkedHashMap<>();

  private record Topics(StreamsBuilder builder, String name) {
    KStream<String, String> left() {
      return builder.stream(name + "-left");
    }

    KStream<String, String> right() {
      return builder.stream(name + "-right");
    }

    KTable<String, String> table(String side) {
      return builder.table(name + "-" + side, Materialized.as(side));
    }

    void out(KStream<String, ?> stream) {
      stream.mapValues(value -> value == null ? null : value.toString()).to(name + "-out");
    }

    void counts(KTable<Windowed<String>, Long> counts) {
      out(counts.toStream().map((key, count) -> KeyValue.pair(key.key() + "@" + key.window().start(), count)));
    }
  }

  static {
    TOPOLOGIES.put("stateless", t -> t.out(t.left().filter((key, value) -> !value.isEmpty()).mapValues(String::length)));
    TOPOLOGIES.put("count", t -> t.out(t.left().groupByKey().count(Materialized.as("counts")).toStream()));
    TOPOLOGIES.put("words", t -> t.out(words(t.left()).groupBy((key, word) -> word).count(Materialized.as("counts")).toStream()));
    TOPOLOGIES.put(
        "reduced",
        t -> t.out(
            t.left().map((key, value) -> KeyValue.pair(value.split(" ")[0], value))
                .repartition(Repartitioned.<String, String>as("wide").withNumberOfPartitions(6))
                .groupByKey().reduce((one, other) -> one.compareTo(other) > 0 ? one : other, Materialized.as("largest")).toStream()));
    TOPOLOGIES.put("merged", t -> t.out(t.left().merge(t.right()).groupByKey().count(Materialized.as("counts")).toStream()));
    TOPOLOGIES.put(
        "tables",
        t -> t.out(largest(t.left(), "l").join(largest(t.right(), "r"), (l, r) -> l + "|" + r, Materialized.as("joined")).toStream()));
    TOPOLOGIES.put(
        "foreign",
        t -> t.out(
            t.table("left").join(t.table("right"), value -> value.split(" ")[0], (l, r) -> l + "|" + r, Materialized.as("joined"))
                .toStream()));
    TOPOLOGIES.put(
        "streams",
        t -> t.out(
            t.left().join(t.right(), (l, r) -> l + "|" + r, JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofDays(9)))
                .groupByKey().count(Materialized.as("pairs")).toStream()));
    TOPOLOGIES.put(
        "rekeyed",
        t -> t.out(
            words(t.left()).selectKey((key, word) -> word)
                .join(t.right().selectKey((key, value) -> value.split(" ")[0]), (l, r) -> l,
                    JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofDays(9)))
                .groupByKey().count(Materialized.as("pairs")).toStream()));
    TOPOLOGIES.put(
        "tumbling",
        t -> t.counts(
            t.left().groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(10), Duration.ofDays(9)))
                .count(Materialized.as("windows"))));
    TOPOLOGIES.put(
        "sessions",
        t -> t.counts(
            t.left().groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofSeconds(5), Duration.ofDays(9)))
                .count(Materialized.as("sessions"))));
    TOPOLOGIES.put(
        "branches",
        t -> {
          t.left().split()
              .branch((key, value) -> value.startsWith("ant"), Branched.withConsumer(ants -> counted(t, ants, "ants")))
              .defaultBranch(Branched.withConsumer(others -> counted(t, others, "others")));
        });
  }

  private static void counted(Topics t, KStream<String, String> branch, String name) {
    t.out(
        branch.groupByKey().count(Named.as("count-" + name), Materialized.as(name)).toStream()
            .selectKey((key, count) -> key + "-" + name));
  }

  private static KStream<String, String> words(KStream<String, String> lines) {
    return lines.flatMapValues(line -> Arrays.asList(line.split(" ")));
  }

  private static KTable<String, String> largest(KStream<String, String> stream, String store) {
    return stream.groupByKey().reduce((one, other) -> one.compareTo(other) > 0 ? one : other, Materialized.as(store));
  }

  public static void main(String[] words) {
    Properties config = new Properties();
    config.put(StreamsConfig.APPLICATION_ID_CONFIG, words[2]);
    config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, words[0]);
    config.put(StreamsConfig.STATE_DIR_CONFIG, words[1]);
    config.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, "streams");
    config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, words[3]);
    config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, words[4]);
    config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
    config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
    config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
    config.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    for (String setting : Arrays.copyOfRange(words, 5, words.length)) {
      config.put(setting.split("=", 2)[0], setting.split("=", 2)[1]);
    }
    StreamsBuilder builder = new StreamsBuilder();
    TOPOLOGIES.get(words[2].split("-")[0]).accept(new Topics(builder, words[2]));
    KafkaStreams streams = new KafkaStreams(builder.build(config), config);
    streams.setStateListener((now, before) -> System.out.println("state " + now));
    streams.setUncaughtExceptionHandler(error -> {
      error.printStackTrace(System.out);
      return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
    });
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(30))));
    streams.start();
  }
}
