
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;

/** A topic's life through Kafka's own admin client: `java AdminWork.java host:port`; a line per step that worked. */
public final class AdminWork {
    private static final String TOPIC = "java";

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(settings)) {
            topics(admin);
            configs(admin);
            offsets(admin);
            admin.deleteTopics(TopicCollection.ofTopicIds(List.of(describe(admin).topicId()))).all().get();
            say("deleted", !admin.listTopics().names().get().contains(TOPIC));
        }
    }

    private static void topics(Admin admin) throws Exception {
        CreateTopicsResult created = admin.createTopics(List.of(
            new NewTopic(TOPIC, Optional.of(2), Optional.of((short) 3)).configs(Map.of("retention.ms", "100000"))));
        say("partitions", created.numPartitions(TOPIC).get());
        say("shown", created.config(TOPIC).get().get("retention.ms").value());
        admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(3))).all().get();
        TopicDescription described = describe(admin);
        say("grown", described.partitions().size());
        say("asked", created.replicationFactor(TOPIC).get());
        say("replicas", described.partitions().stream().allMatch(
            partition -> partition.replicas().size() == 3 && partition.isr().size() == 3));
        say("led", described.partitions().stream().allMatch(partition -> partition.leader() != null));
        try {
            admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(3))).all().get();
        } catch (ExecutionException refused) {
            say("refused", refused.getCause().getClass().getSimpleName());
        }
        Set<TopicPartition> partitions = Set.of(new TopicPartition(TOPIC, 0));
        Optional<Throwable> elected = admin.electLeaders(ElectionType.PREFERRED, partitions).partitions().get()
            .get(new TopicPartition(TOPIC, 0));
        say("elected", elected.map(error -> error.getClass().getSimpleName()).orElse("yes"));
    }

    private static void configs(Admin admin) throws Exception {
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);
        admin.incrementalAlterConfigs(Map.of(topic, List.of(
            new AlterConfigOp(new ConfigEntry("segment.ms", "9"), AlterConfigOp.OpType.SET),
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "delete"), AlterConfigOp.OpType.SUBTRACT),
            new AlterConfigOp(new ConfigEntry("retention.ms", null), AlterConfigOp.OpType.DELETE)))).all().get();
        DescribeConfigsOptions everything = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        Config shown = admin.describeConfigs(List.of(topic), everything).all().get().get(topic);
        say("own", shown.entries().stream()
            .filter(entry -> entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG)
            .map(entry -> entry.name() + "=" + entry.value()).sorted().collect(Collectors.joining(" ")));
        say("type", shown.get("segment.ms").type());
        say("documented", shown.entries().stream().allMatch(entry -> entry.documentation() != null));
        String broker = admin.describeCluster().nodes().get().iterator().next().idString();
        ConfigResource one = new ConfigResource(ConfigResource.Type.BROKER, broker);
        say("broker", admin.describeConfigs(List.of(one)).all().get().get(one).get("linger.ms").value());
        say("resources", admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC), new ListConfigResourcesOptions())
            .all().get().contains(topic));
    }

    private static void offsets(Admin admin) throws Exception {
        TopicPartition partition = new TopicPartition(TOPIC, 0);
        for (OffsetSpec spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.maxTimestamp(),
                OffsetSpec.earliestLocal(), OffsetSpec.latestTiered(), OffsetSpec.forTimestamp(5))) {
            long offset = admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get().offset();
            say(spec.getClass().getSimpleName(), offset);
        }
    }

    private static TopicDescription describe(Admin admin) throws Exception {
        return admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC);
    }

    private static void say(String what, Object result) {
        System.out.println(what + " " + result);
    }
}
