import java.io.*;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.SchemaException;
import org.apache.kafka.common.protocol.types.Struct;
import org.apache.kafka.common.requests.AbstractResponse;

/**
 * Every API and version that an agent advertises, against Kafka's own message classes:
 * `java CodecCheck SEED REQUESTS_PER_VERSION [KEYS ADDRESS]...`. KEYS: api keys with commas, or `all`. ADDRESS:
 * host:port, or user:password@host:port, which logs in by SASL PLAIN without TLS.
 *
 * Requests are random and valid by Kafka's schemas. An answer must have the right correlation id and header, be read by
 * Kafka's response class to its last byte, and be the same bytes when that class writes it. Each address is asked for
 * the keys that no earlier one advertises. Prints `KEY NAME: ...` per key and `finding ...` per fault; status 1 if there
 * is one. Requests depend on the seed, and go on from earlier answers.
 *
 * Left out: versions that Kafka's classes do not have (Produce 0-2), and acks=0, which has no answer.
 */
public final class CodecCheck {
    private static final int SILENCE_MS = 30_000;
    private static final int FINDINGS_PER_VERSION = 2;
    private static final Set<String> TO_GO_ON =
        Set.of("member_id", "generation_id", "member_epoch", "producer_id", "producer_epoch", "session_id", "hmac");
    private static final Set<Short> GROUPED = keys(ApiMessageType.OFFSET_COMMIT, ApiMessageType.OFFSET_FETCH,
        ApiMessageType.HEARTBEAT, ApiMessageType.LEAVE_GROUP, ApiMessageType.SYNC_GROUP, ApiMessageType.DESCRIBE_GROUPS,
        ApiMessageType.LIST_GROUPS, ApiMessageType.TXN_OFFSET_COMMIT, ApiMessageType.OFFSET_DELETE);
    private static final Set<Short> TRANSACTIONAL = keys(ApiMessageType.ADD_PARTITIONS_TO_TXN,
        ApiMessageType.ADD_OFFSETS_TO_TXN, ApiMessageType.END_TXN, ApiMessageType.TXN_OFFSET_COMMIT,
        ApiMessageType.DESCRIBE_TRANSACTIONS);
    private static final Set<Short> OF_CONSUMERS = keys(ApiMessageType.CONSUMER_GROUP_HEARTBEAT,
        ApiMessageType.CONSUMER_GROUP_DESCRIBE);
    private static final Map<String, Object> ANSWERED = new HashMap<>();
    private static int findings;

    private final String address;
    private final int count;
    private final long seed;
    private Socket socket;
    private int correlation;
    private int reconnected;

    private CodecCheck(String address, long seed, int count) {
        this.address = address;
        this.seed = seed;
        this.count = count;
    }

    public static void main(String[] arguments) throws Exception {
        long seed = Long.parseLong(arguments[0]);
        int count = Integer.parseInt(arguments[1]);
        Set<Short> done = new HashSet<>();
        for (int n = 2; n < arguments.length; n += 2) {
            List<String> chosen = List.of(arguments[n].split(","));
            CodecCheck check = new CodecCheck(arguments[n + 1], seed, count);
            for (ApiVersionsResponseData.ApiVersion api : check.advertised()) {
                if ((chosen.contains("all") || chosen.contains("" + api.apiKey())) && done.add(api.apiKey()))
                    check.checkKey(api);
            }
        }
        System.out.println(done.size() + " keys, " + findings + " findings");
    }

    // -- one key

    private void checkKey(ApiVersionsResponseData.ApiVersion api) throws Exception {
        ApiMessageType type = ApiMessageType.fromApiKey(api.apiKey());
        int first = Math.max(api.minVersion(), type.lowestSupportedVersion());
        int last = Math.min(api.maxVersion(), type.highestSupportedVersion(true));
        int stable = type.highestSupportedVersion(false);
        String left = (first > api.minVersion() ? ", not in Kafka: " + api.minVersion() + "-" + (first - 1) : "")
            + (last < api.maxVersion() ? ", not in Kafka: " + (last + 1) + "-" + api.maxVersion() : "")
            + (last < stable ? ", only in Kafka: " + (last + 1) + "-" + stable : "");
        TreeMap<String, Integer> errors = new TreeMap<>();
        int before = findings;
        reconnected = 0;
        if (GROUPED.contains(type.apiKey()))
            joinGroup();
        if (OF_CONSUMERS.contains(type.apiKey()))
            joinConsumerGroup();
        if (TRANSACTIONAL.contains(type.apiKey()))
            initProducer();
        List<Uuid> topicIds = makeTopics();
        for (short version = (short) first; version <= last; version++) {
            Random random = new Random(Objects.hash(seed, type.apiKey(), version));
            RandomRequests requests = new RandomRequests(random, topicIds, ANSWERED);
            int found = 0;
            for (int n = 0; n < count && found < FINDINGS_PER_VERSION; n++) {
                byte[] body = requests.body(type, version);
                String problem = check(type, version, body, requests.header(type, version, ++correlation), errors);
                if (problem != null) {
                    found++;
                    findings++;
                    System.out.println("finding key=" + type.apiKey() + " version=" + version + " seed=" + seed
                        + " request=" + n + ": " + problem + "\n  asked " + read(type.newRequest(), body, version));
                }
            }
        }
        int versions = last - first + 1;
        String form = "%d %s: %d versions (%d-%d%s), %d requests, %d findings, closed after an answer %d, errors %s%n";
        System.out.printf(form,
            type.apiKey(), type.name, versions, first, last, left, count * versions, findings - before, reconnected,
            errors);
    }

    /** What is wrong with the answer; null if nothing is. */
    private String check(ApiMessageType type, short version, byte[] body, byte[] header, Map<String, Integer> errors)
            throws IOException {
        byte[] answer;
        try {
            answer = exchange(header, body);
        } catch (IOException closed) {
            close();
            return "no answer: " + closed;
        }
        return fault(type, version, header, answer, errors);
    }

    private static String fault(
            ApiMessageType type, short version, byte[] asked, byte[] answer, Map<String, Integer> errors) {
        int expected = ByteBuffer.wrap(asked).getInt(2 + 2);
        ByteBuffer bytes = ByteBuffer.wrap(answer);
        try {
            short headerVersion = type.responseHeaderVersion(version);
            ResponseHeaderData head = new ResponseHeaderData(new ByteBufferAccessor(bytes), headerVersion);
            if (head.correlationId() != expected)
                return "correlation id " + head.correlationId() + " instead of " + expected;
            ByteBuffer copy = bytes.duplicate();
            ApiMessage message = type.newResponse();
            message.read(new ByteBufferAccessor(bytes), version);
            if (bytes.hasRemaining())
                return bytes.remaining() + " bytes left over after " + message;
            byte[] again = concat(written(head, headerVersion), written(message, version));
            if (!Arrays.equals(again, answer))
                return "written again it differs: " + HexFormat.of().formatHex(answer) + " is "
                    + HexFormat.of().formatHex(again) + " of " + message;
            note(type, version, copy, errors);
            return null;
        } catch (RuntimeException unreadable) {
            return "unreadable: " + unreadable + ": " + HexFormat.of().formatHex(answer);
        }
    }

    /** Counts the answer's errors, for the reader of the output, and keeps what later requests go on from. */
    private static void note(ApiMessageType type, short version, ByteBuffer body, Map<String, Integer> errors) {
        try {
            ByteBufferAccessor bytes = new ByteBufferAccessor(body.duplicate());
            AbstractResponse.parseResponse(ApiKeys.forId(type.apiKey()), bytes, version).errorCounts()
                .forEach((error, times) -> errors.merge(error.name(), times, Integer::sum));
        } catch (IllegalStateException uncounted) {  // AlterConfigs: two resources of unknown types
            errors.merge("uncounted", 1, Integer::sum);
        }
        try {
            keep(type.responseSchemas()[version].read(body));
        } catch (SchemaException unread) {
            // schemas do not know nullable structs
        }
    }

    /** Answers with an error have no ids. */
    private static boolean saysSomething(Object value) {
        if (value instanceof Number)
            return ((Number) value).longValue() >= 0;
        return value instanceof ByteBuffer ? ((ByteBuffer) value).hasRemaining() : value != null && !value.equals("");
    }

    private static void keep(Struct struct) {
        for (BoundField field : struct.schema().fields()) {
            Object value = struct.get(field);
            if (TO_GO_ON.contains(field.def.name) && saysSomething(value))
                ANSWERED.put(field.def.name, value);
            else if (value instanceof Object[])
                Stream.of((Object[]) value).filter(Struct.class::isInstance).forEach(each -> keep((Struct) each));
        }
    }

    // -- the connection

    /** The answer, without its length. A connection that ended after its previous answer is opened again. */
    private byte[] exchange(byte[] header, byte[] body) throws IOException {
        boolean used = socket != null;
        try {
            return exchangeOnce(header, body);
        } catch (EOFException | java.net.SocketException closed) {
            close();
            if (!used)
                throw closed;
            reconnected++;
            return exchangeOnce(header, body);
        }
    }

    private byte[] exchangeOnce(byte[] header, byte[] body) throws IOException {
        if (socket == null) {
            String[] place = address.substring(address.indexOf('@') + 1).split(":");
            socket = new Socket(place[0], Integer.parseInt(place[1]));
            socket.setSoTimeout(SILENCE_MS);
            socket.setTcpNoDelay(true);
            if (address.contains("@"))
                logIn(address.substring(0, address.indexOf('@')));
        }
        byte[] frame = concat(header, body);
        socket.getOutputStream().write(ByteBuffer.allocate(4 + frame.length).putInt(frame.length).put(frame).array());
        DataInputStream input = new DataInputStream(socket.getInputStream());
        byte[] answer = new byte[input.readInt()];
        input.readFully(answer);
        return answer;
    }

    private void logIn(String credentials) throws IOException {
        ask(ApiMessageType.SASL_HANDSHAKE, new SaslHandshakeRequestData().setMechanism("PLAIN"), 1);
        byte[] plain = ("\0" + credentials.replace(':', '\0')).getBytes(StandardCharsets.UTF_8);
        SaslAuthenticateResponseData answer = (SaslAuthenticateResponseData) ask(
            ApiMessageType.SASL_AUTHENTICATE, new SaslAuthenticateRequestData().setAuthBytes(plain), 2);
        if (answer.errorCode() != 0)
            throw new IllegalStateException("login refused: " + answer);
    }

    private void close() throws IOException {
        if (socket != null)
            socket.close();
        socket = null;
    }

    // -- what the requests need

    private List<ApiVersionsResponseData.ApiVersion> advertised() throws IOException {
        ApiVersionsRequestData request = new ApiVersionsRequestData().setClientSoftwareName("codec")
            .setClientSoftwareVersion("1");
        List<ApiVersionsResponseData.ApiVersion> found =
            new ArrayList<>(((ApiVersionsResponseData) ask(ApiMessageType.API_VERSIONS, request, 3)).apiKeys());
        found.sort(Comparator.comparing(ApiVersionsResponseData.ApiVersion::apiKey));
        return found;
    }

    /** The topics that random requests name exist again; their ids. */
    private List<Uuid> makeTopics() throws IOException {
        if (advertised().stream().noneMatch(api -> api.apiKey() == ApiMessageType.CREATE_TOPICS.apiKey()))
            return List.of();
        CreateTopicsRequestData request = new CreateTopicsRequestData().setTimeoutMs(SILENCE_MS);
        for (String name : RandomRequests.TOPICS)
            request.topics().add(new CreateTopicsRequestData.CreatableTopic().setName(name).setNumPartitions(3)
                .setReplicationFactor((short) -1));
        ask(ApiMessageType.CREATE_TOPICS, request, 7);
        MetadataRequestData names = new MetadataRequestData().setTopics(RandomRequests.TOPICS.stream()
            .map(name -> new MetadataRequestData.MetadataRequestTopic().setName(name)).collect(Collectors.toList()));
        return ((MetadataResponseData) ask(ApiMessageType.METADATA, names, 12)).topics().stream()
            .map(MetadataResponseData.MetadataResponseTopic::topicId).collect(Collectors.toList());
    }

    private void joinGroup() throws IOException {
        JoinGroupRequestData request = new JoinGroupRequestData().setGroupId(RandomRequests.GROUPS.get(0))
            .setSessionTimeoutMs(SILENCE_MS).setRebalanceTimeoutMs(30).setMemberId("").setProtocolType("consumer");
        request.protocols().add(new JoinGroupRequestData.JoinGroupRequestProtocol().setName("range"));
        JoinGroupResponseData joined = (JoinGroupResponseData) ask(ApiMessageType.JOIN_GROUP, request, 3);
        ANSWERED.put("member_id", joined.memberId());
        ANSWERED.put("generation_id", joined.generationId());
    }

    private void joinConsumerGroup() throws IOException {
        ConsumerGroupHeartbeatRequestData request = new ConsumerGroupHeartbeatRequestData()
            .setGroupId(RandomRequests.GROUPS.get(2)).setMemberId("codec-consumer").setMemberEpoch(0)
            .setRebalanceTimeoutMs(SILENCE_MS).setSubscribedTopicNames(RandomRequests.TOPICS)
            .setTopicPartitions(List.of());
        ConsumerGroupHeartbeatResponseData joined =
            (ConsumerGroupHeartbeatResponseData) ask(ApiMessageType.CONSUMER_GROUP_HEARTBEAT, request, 1);
        ANSWERED.put("member_id", "codec-consumer");
        ANSWERED.put("member_epoch", joined.memberEpoch());
    }

    private void initProducer() throws IOException {
        InitProducerIdRequestData request = new InitProducerIdRequestData()
            .setTransactionalId(RandomRequests.TRANSACTIONS.get(0)).setTransactionTimeoutMs(SILENCE_MS);
        InitProducerIdResponseData made = (InitProducerIdResponseData) ask(ApiMessageType.INIT_PRODUCER_ID, request, 1);
        ANSWERED.put("producer_id", made.producerId());
        ANSWERED.put("producer_epoch", made.producerEpoch());
    }

    private static Set<Short> keys(ApiMessageType... types) {
        return Stream.of(types).map(ApiMessageType::apiKey).collect(Collectors.toSet());
    }

    private ApiMessage ask(ApiMessageType type, ApiMessage request, int version) throws IOException {
        RequestHeaderData header = new RequestHeaderData().setRequestApiKey(type.apiKey())
            .setRequestApiVersion((short) version).setCorrelationId(++correlation).setClientId("codec");
        byte[] asked = written(header, type.requestHeaderVersion((short) version));
        byte[] answer = exchange(asked, written(request, (short) version));
        String fault = fault(type, (short) version, asked, answer, new HashMap<>());
        if (fault != null) {
            findings++;
            System.out.println("finding " + type.name + " version=" + version + ": " + fault + "\n  asked " + request);
        }
        ByteBufferAccessor bytes = new ByteBufferAccessor(ByteBuffer.wrap(answer));
        new ResponseHeaderData(bytes, type.responseHeaderVersion((short) version));
        ApiMessage found = type.newResponse();
        found.read(bytes, (short) version);
        return found;
    }

    // -- bytes

    static byte[] written(ApiMessage message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer bytes = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(bytes), cache, version);
        return bytes.array();
    }

    static ApiMessage read(ApiMessage message, byte[] body, short version) {
        ByteBuffer bytes = ByteBuffer.wrap(body);
        message.read(new ByteBufferAccessor(bytes), version);
        if (bytes.hasRemaining())
            throw new IllegalStateException("a made request has bytes left over: " + message);
        return message;
    }

    private static byte[] concat(byte[] one, byte[] other) {
        return ByteBuffer.allocate(one.length + other.length).put(one).put(other).array();
    }
}
