import java.io.FileInputStream;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.resource.*;

/**
 * Arguments: the settings of a client that may do everything, and for each client of the test NAME, PRINCIPAL and its
 * settings. Prints "NAME WHAT" with the exception that each of Kafka's own clients gets without rights, "works" with them.
 */
public final class AccessRights {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long PATIENCE_NANOS = Duration.ofSeconds(90).toNanos();

    public static void main(String[] arguments) throws Exception {
        try (Admin ruler = Admin.create(settings(arguments[0]))) {
            for (int at = 1; at < arguments.length; at += 3) {
                run(ruler, arguments[at], arguments[at + 1], settings(arguments[at + 2]));
            }
        }
    }

    private static void run(Admin ruler, String name, String principal, Properties settings) throws Exception {
        String topic = "rights-" + name;
        settings.put("group.id", topic);
        ruler.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        AclBinding[] grants = {
            acl(ResourceType.TOPIC, topic, principal, AclOperation.WRITE),
            acl(ResourceType.TOPIC, topic, principal, AclOperation.READ),
            acl(ResourceType.CLUSTER, "kafka-cluster", principal, AclOperation.ALTER),
            acl(ResourceType.TOPIC, "made-" + name, principal, AclOperation.CREATE)};
        try (Admin admin = Admin.create(settings)) {
            AclBinding other = acl(ResourceType.TOPIC, "other", "User:other", AclOperation.READ);
            told(name, "createAcls", () -> admin.createAcls(List.of(other)).all().get());
            NewTopic made = new NewTopic("made-" + name, 1, (short) 1);
            told(name, "createTopics", () -> admin.createTopics(List.of(made)).all().get());
            told(name, "producer", () -> write(settings, topic));
            told(name, "consumer without group", () -> read(settings, topic));

            ruler.createAcls(List.of(grants)).all().get();
            granted(name, "createAcls", () -> admin.createAcls(List.of(other)).all().get());
            granted(name, "createTopics", () -> admin.createTopics(List.of(made)).all().get());
        }
        granted(name, "producer", () -> write(settings, topic));
        granted(name, "consumer without group", () -> read(settings, topic));
        told(name, "consumer, classic group", () -> subscribe(settings, topic, "classic"));
        told(name, "consumer, consumer group", () -> subscribe(settings, topic, "consumer"));
        ruler.createAcls(List.of(acl(ResourceType.GROUP, topic, principal, AclOperation.READ))).all().get();
        granted(name, "consumer, classic group", () -> subscribe(settings, topic, "classic"));
        granted(name, "consumer, consumer group", () -> subscribe(settings, topic, "consumer"));
        revoked(ruler, name, grants[0], settings, topic);
    }

    /** An open producer is refused as soon as the ACL is gone. */
    private static void revoked(Admin ruler, String name, AclBinding grant, Properties settings, String topic)
        throws Exception {
        try (KafkaProducer<String, String> producer = producer(settings)) {
            producer.send(new ProducerRecord<>(topic, "v")).get();
            ruler.deleteAcls(List.of(grant.toFilter())).all().get();
            long until = System.nanoTime() + PATIENCE_NANOS;
            while (System.nanoTime() < until) {
                try {
                    producer.send(new ProducerRecord<>(topic, "v")).get();
                } catch (ExecutionException error) {
                    System.out.println(name + " revoked: " + error.getCause().getClass().getSimpleName());
                    return;
                }
            }
        }
        System.out.println(name + " revoked: still works");
    }

    private interface Call {
        Object run() throws Exception;
    }

    private static void told(String name, String what, Call call) throws Exception {
        System.out.println(name + " " + what + ": " + outcome(call));
    }

    /** Once the agent has read the ACLs. */
    private static void granted(String name, String what, Call call) throws Exception {
        long until = System.nanoTime() + PATIENCE_NANOS;
        String outcome = outcome(call);
        while (!outcome.equals("works") && System.nanoTime() < until) {
            outcome = outcome(call);
        }
        System.out.println(name + " granted " + what + ": " + outcome);
    }

    private static String outcome(Call call) throws Exception {
        try {
            call.run();
            return "works";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        } catch (AuthorizationException error) {
            return error.getClass().getSimpleName();
        }
    }

    private static Object write(Properties settings, String topic) throws Exception {
        try (KafkaProducer<String, String> producer = producer(settings)) {
            return producer.send(new ProducerRecord<>(topic, "v")).get();
        }
    }

    private static KafkaProducer<String, String> producer(Properties settings) {
        return new KafkaProducer<>(with(settings, "serializer", "Serializer"));
    }

    private static Object read(Properties settings, String topic) {
        try (KafkaConsumer<String, String> consumer = consumer(settings, "classic")) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            return first(consumer);
        }
    }

    private static Object subscribe(Properties settings, String topic, String protocol) {
        try (KafkaConsumer<String, String> consumer = consumer(settings, protocol)) {
            consumer.subscribe(List.of(topic));
            return first(consumer);
        }
    }

    private static Object first(KafkaConsumer<String, String> consumer) {
        long until = System.nanoTime() + PATIENCE_NANOS;
        while (System.nanoTime() < until) {
            if (!consumer.poll(POLL).isEmpty()) {
                return consumer;
            }
        }
        throw new IllegalStateException("no record");
    }

    private static KafkaConsumer<String, String> consumer(Properties settings, String protocol) {
        Properties own = with(settings, "deserializer", "Deserializer");
        own.put("auto.offset.reset", "earliest");
        own.put("enable.auto.commit", "false");
        own.put("group.protocol", protocol);
        return new KafkaConsumer<>(own);
    }

    private static Properties with(Properties settings, String kind, String name) {
        Properties own = new Properties();
        own.putAll(settings);
        own.put("key." + kind, "org.apache.kafka.common.serialization.String" + name);
        own.put("value." + kind, "org.apache.kafka.common.serialization.String" + name);
        return own;
    }

    private static AclBinding acl(ResourceType type, String name, String principal, AclOperation operation) {
        ResourcePattern pattern = new ResourcePattern(type, name, PatternType.LITERAL);
        return new AclBinding(pattern, new AccessControlEntry(principal, "*", operation, AclPermissionType.ALLOW));
    }

    private static Properties settings(String path) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(path)) {
            settings.load(file);
        }
        return settings;
    }
}
