import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;

/** Kafka's own admin client sets, shows and removes what belongs to access; one line per answer. */
public final class AccessAdmin {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(settings)) {
            acls(admin);
            quotas(admin);
            credentials(admin);
            tokens(admin);
        }
    }

    private static void acls(Admin admin) throws Exception {
        ResourcePattern prefix = new ResourcePattern(ResourceType.TOPIC, "java-", PatternType.PREFIXED);
        AccessControlEntry entry = new AccessControlEntry("User:duke", "*", AclOperation.READ, AclPermissionType.ALLOW);
        admin.createAcls(List.of(new AclBinding(prefix, entry))).all().get();
        AclBindingFilter matching = new AclBindingFilter(
            new ResourcePatternFilter(ResourceType.TOPIC, "java-orders", PatternType.MATCH), AccessControlEntryFilter.ANY);
        System.out.println("acls " + admin.describeAcls(matching).values().get());
        System.out.println("deleted acls " + admin.deleteAcls(List.of(matching)).all().get());
        System.out.println("acls " + admin.describeAcls(matching).values().get());
    }

    private static void quotas(Admin admin) throws Exception {
        ClientQuotaEntity duke = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "duke"));
        ClientQuotaAlteration.Op set = new ClientQuotaAlteration.Op("producer_byte_rate", 2048.0);
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(duke, List.of(set)))).all().get();
        ClientQuotaFilter users = ClientQuotaFilter.containsOnly(
            List.of(ClientQuotaFilterComponent.ofEntityType(ClientQuotaEntity.USER)));
        System.out.println("quotas " + admin.describeClientQuotas(users).entities().get());
        ClientQuotaAlteration.Op unset = new ClientQuotaAlteration.Op("producer_byte_rate", null);
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(duke, List.of(unset)))).all().get();
        System.out.println("quotas " + admin.describeClientQuotas(users).entities().get());
    }

    private static void credentials(Admin admin) throws Exception {
        ScramCredentialInfo info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192);
        admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("duke", info, "secret"))).all().get();
        System.out.println("credentials " + admin.describeUserScramCredentials(List.of("duke")).all().get());
        UserScramCredentialDeletion gone = new UserScramCredentialDeletion("duke", ScramMechanism.SCRAM_SHA_512);
        admin.alterUserScramCredentials(List.of(gone)).all().get();
        refused("credential", () -> admin.alterUserScramCredentials(List.of(gone)).all().get());
    }

    private static void tokens(Admin admin) throws Exception {
        refused("create token", () -> admin.createDelegationToken().delegationToken().get());
        refused("renew token", () -> admin.renewDelegationToken(new byte[64]).expiryTimestamp().get());
        refused("expire token", () -> admin.expireDelegationToken(new byte[64]).expiryTimestamp().get());
        refused("describe tokens", () -> admin.describeDelegationToken().delegationTokens().get());
    }

    private interface Call {
        Object run() throws Exception;
    }

    private static void refused(String what, Call call) throws Exception {
        try {
            System.out.println(what + " " + call.run());
        } catch (ExecutionException error) {
            System.out.println(what + " " + error.getCause().getClass().getSimpleName());
        }
    }
}
