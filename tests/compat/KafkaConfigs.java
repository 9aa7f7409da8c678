import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

/** The configs that Kafka has, a line each: `broker|topic|group NAME DEFAULT`, without those of its own tests. */
public final class KafkaConfigs {
    public static void main(String[] arguments) {
        print("broker", KafkaConfig.configDef());
        print("topic", LogConfig.configDefCopy());
        print("group", GroupConfig.CONFIG_DEF);
    }

    private static void print(String kind, ConfigDef definition) {
        definition.configKeys().forEach((name, key) -> {
            if (!key.internalConfig)
                System.out.println(kind + "\t" + name + "\t"
                    + ConfigDef.convertToString(key.hasDefault() ? key.defaultValue : null, key.type));
        });
    }
}
