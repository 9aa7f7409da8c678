import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.ProducerFencedException;

/**
 * Arguments: BOOTSTRAP [SCENARIO...], all scenarios without one. What any broker with transactions must do, as Kafka's own
 * client sees it: the scenarios have the names of Redpanda's tx-verifier, and ask for more, because each also reads what
 * is left. Prints "passed NAME" or "failed NAME: REASON" for each; the exit status is the number of failures.
 */
public final class TransactionVerifier {
    private static final int LOOKS = 20;
    private static final int LONG_TIMEOUT_MS = 900_000;
    private static final int SHORT_TIMEOUT_MS = 500;

    private interface Scenario {
        void run(VerifierClients clients) throws Exception;
    }

    private static final Map<String, Scenario> SCENARIOS = new LinkedHashMap<>();

    static {
        SCENARIOS.put("init", TransactionVerifier::init);
        SCENARIOS.put("tx", clients -> commits(clients, 1));
        SCENARIOS.put("txes", clients -> commits(clients, 3));
        SCENARIOS.put("abort", TransactionVerifier::abort);
        SCENARIOS.put("commuting-txes", TransactionVerifier::commuting);
        SCENARIOS.put("conflicting-tx", TransactionVerifier::conflicting);
        SCENARIOS.put("read-committed-seek", clients -> seekPastPlain(clients, "read_committed"));
        SCENARIOS.put("read-uncommitted-seek", clients -> seekPastPlain(clients, "read_uncommitted"));
        SCENARIOS.put("read-committed-tx-seek", clients -> seekPastCommitted(clients, "read_committed"));
        SCENARIOS.put("read-uncommitted-tx-seek", clients -> seekPastCommitted(clients, "read_uncommitted"));
        SCENARIOS.put("fetch-reads-committed-txs", clients -> commits(clients, 10));
        SCENARIOS.put("fetch-skips-aborted-txs", TransactionVerifier::skipsAborted);
        SCENARIOS.put("read-committed-seek-waits-ongoing-tx", clients -> waits(clients, 60_000));
        SCENARIOS.put("read-committed-seek-waits-long-hanging-tx", clients -> waits(clients, LONG_TIMEOUT_MS));
        SCENARIOS.put("read-committed-seek-reads-short-hanging-tx", TransactionVerifier::timesOut);
        SCENARIOS.put("read-uncommitted-seek-reads-ongoing-tx", TransactionVerifier::uncommittedSeesOpen);
        SCENARIOS.put("set-group-start-offset", TransactionVerifier::groupOffset);
        SCENARIOS.put("read-process-write", TransactionVerifier::readProcessWrite);
        SCENARIOS.put("concurrent-reads-writes", TransactionVerifier::concurrentReadsAndWrites);
    }

    public static void main(String[] arguments) {
        List<String> asked = List.of(arguments).subList(1, arguments.length);
        for (String name : asked.isEmpty() ? SCENARIOS.keySet() : asked) {
            try (VerifierClients clients = new VerifierClients(arguments[0], name)) {
                SCENARIOS.get(name).run(clients);
                System.out.println("passed " + name);
            } catch (Exception | AssertionError error) {
                System.out.println("failed " + name + ": " + error);
            }
        }
    }

    private static void init(VerifierClients clients) {
        clients.producer("first", 60_000).initTransactions();
        clients.producer("first", 60_000).initTransactions();
        clients.producer("second", 60_000).initTransactions();
    }

    private static void commits(VerifierClients clients, int count) throws Exception {
        KafkaProducer<String, String> producer = clients.begun("first", "0");
        producer.commitTransaction();
        List<String> sent = new ArrayList<>(List.of("0"));
        for (int index = 1; index < count; index++) {
            sent.add(String.valueOf(index));
            producer.beginTransaction();
            clients.send(producer, clients.topic, sent.get(index));
            producer.commitTransaction();
        }
        same(sent, clients.values("read_committed"));
        same(sent, clients.values("read_uncommitted"));
    }

    private static void abort(VerifierClients clients) throws Exception {
        clients.begun("first", "aborted").abortTransaction();
        same(List.of(), clients.values("read_committed"));
        same(List.of("aborted"), clients.values("read_uncommitted"));
    }

    private static void commuting(VerifierClients clients) throws Exception {
        KafkaProducer<String, String> first = clients.begun("first", "1");
        KafkaProducer<String, String> second = clients.begun("second", "2");
        same(List.of(), clients.values("read_committed"));
        second.commitTransaction();
        same(List.of(), clients.values("read_committed"));
        first.commitTransaction();
        same(List.of("1", "2"), clients.values("read_committed"));
    }

    private static void conflicting(VerifierClients clients) throws Exception {
        KafkaProducer<String, String> zombie = clients.begun("first", "zombie");
        KafkaProducer<String, String> heir = clients.begun("first", "heir");
        expect(ProducerFencedException.class, zombie::commitTransaction);
        heir.commitTransaction();
        same(List.of("heir"), clients.values("read_committed"));
    }

    private static void seekPastPlain(VerifierClients clients, String isolation) throws Exception {
        long offset = clients.send(clients.plainProducer(), clients.topic, "plain");
        clients.awaitEndAfter(offset, isolation);
        same(List.of("plain"), clients.values(isolation));
    }

    private static void seekPastCommitted(VerifierClients clients, String isolation) throws Exception {
        clients.begun("first", "committed").commitTransaction();
        clients.awaitEndAfter(clients.lastSent, isolation);
        same(List.of("committed"), clients.values(isolation));
    }

    private static void skipsAborted(VerifierClients clients) throws Exception {
        KafkaProducer<String, String> producer = clients.begun("first", "1");
        producer.commitTransaction();
        producer.beginTransaction();
        clients.send(producer, clients.topic, "aborted");
        producer.abortTransaction();
        producer.beginTransaction();
        clients.send(producer, clients.topic, "3");
        producer.commitTransaction();
        same(List.of("1", "3"), clients.values("read_committed"));
        same(List.of("1", "aborted", "3"), clients.values("read_uncommitted"));
    }

    private static void waits(VerifierClients clients, int timeoutMs) throws Exception {
        clients.send(clients.plainProducer(), clients.topic, "before");
        KafkaProducer<String, String> producer = clients.producer("first", timeoutMs);
        producer.initTransactions();
        producer.beginTransaction();
        long first = clients.send(producer, clients.topic, "open");
        clients.send(clients.plainProducer(), clients.topic, "after");
        for (int look = 0; look < LOOKS; look++) {
            same(first, clients.end("read_committed"));
        }
        same(List.of("before"), clients.values("read_committed"));
        producer.commitTransaction();
        same(List.of("before", "open", "after"), clients.values("read_committed"));
    }

    private static void timesOut(VerifierClients clients) throws Exception {
        KafkaProducer<String, String> producer = clients.producer("first", SHORT_TIMEOUT_MS);
        producer.initTransactions();
        producer.beginTransaction();
        long offset = clients.send(producer, clients.topic, "late");
        clients.awaitEndAfter(offset, "read_committed");
        expect(KafkaException.class, producer::commitTransaction);
        same(List.of(), clients.values("read_committed"));
    }

    private static void uncommittedSeesOpen(VerifierClients clients) throws Exception {
        KafkaProducer<String, String> producer = clients.begun("first", "open");
        clients.awaitEndAfter(clients.lastSent, "read_uncommitted");
        same(List.of("open"), clients.values("read_uncommitted"));
        producer.commitTransaction();
    }

    private static void groupOffset(VerifierClients clients) throws Exception {
        KafkaProducer<String, String> producer = clients.begun("first", "1");
        ConsumerGroupMetadata group = new ConsumerGroupMetadata(clients.group);
        producer.sendOffsetsToTransaction(Map.of(clients.partition(), new OffsetAndMetadata(7)), group);
        producer.abortTransaction();
        try (KafkaConsumer<String, String> consumer = clients.consumer("read_committed")) {
            same(null, clients.committed(consumer));
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(clients.partition(), new OffsetAndMetadata(1)), group);
            producer.commitTransaction();
            same(1L, clients.committed(consumer));
        }
    }

    private static void readProcessWrite(VerifierClients clients) throws Exception {
        KafkaProducer<String, String> writer = clients.begun("writer", "a");
        for (String value : List.of("b", "c")) {
            clients.send(writer, clients.topic, value);
        }
        writer.commitTransaction();
        KafkaProducer<String, String> producer = clients.producer("first", 60_000);
        producer.initTransactions();
        try (KafkaConsumer<String, String> consumer = clients.consumer("read_committed")) {
            consumer.subscribe(List.of(clients.topic));
            for (int copied = 0; copied < 3;) {
                for (ConsumerRecord<String, String> record : consumer.poll(VerifierClients.POLL)) {
                    producer.beginTransaction();
                    clients.send(producer, clients.target, record.value().toUpperCase(Locale.ROOT));
                    OffsetAndMetadata next = new OffsetAndMetadata(record.offset() + 1);
                    producer.sendOffsetsToTransaction(Map.of(clients.partition(), next), consumer.groupMetadata());
                    producer.commitTransaction();
                    same(record.offset() + 1, clients.committed(consumer));
                    copied++;
                }
            }
        }
        same(List.of("A", "B", "C"), clients.values(clients.target, "read_committed"));
    }

    private static void concurrentReadsAndWrites(VerifierClients clients) throws Exception {
        KafkaProducer<String, String> producer = clients.begun("first", "commit 0");
        producer.commitTransaction();
        List<String> committed = new ArrayList<>(List.of("commit 0"));
        AtomicBoolean isOver = new AtomicBoolean();
        CompletableFuture<List<String>> reading =
            CompletableFuture.supplyAsync(() -> clients.follow("read_committed", isOver::get));
        for (int round = 1; round <= 5; round++) {
            producer.beginTransaction();
            for (int index = 0; index < 10; index++) {
                clients.send(producer, clients.topic, "abort " + round);
            }
            producer.abortTransaction();
            producer.beginTransaction();
            committed.add("commit " + round);
            clients.send(producer, clients.topic, "commit " + round);
            producer.commitTransaction();
        }
        isOver.set(true);
        same(committed, reading.get());
        same(committed, clients.values("read_committed"));
    }

    private static void expect(Class<? extends Exception> wanted, Runnable action) {
        try {
            action.run();
        } catch (Exception error) {
            if (wanted.isInstance(error)) {
                return;
            }
            throw error;
        }
        throw new AssertionError("no " + wanted.getSimpleName());
    }

    private static void same(Object wanted, Object found) {
        if (!java.util.Objects.equals(wanted, found)) {
            throw new AssertionError("wanted " + wanted + ", found " + found);
        }
    }
}
