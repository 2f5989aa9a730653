import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Runs members of the Java consumer. It reads commands from stdin and writes reports to stdout, one
 * per line. Blanks separate words, and an empty word is "-".
 *
 * Commands: join NAME BOOTSTRAP GROUP TOPIC STRATEGY INSTANCE PROTOCOL; leave NAME;
 * subscription TAG VERSION TOPICS USER_DATA OWNED GENERATION; assignment TAG VERSION OWNED USER_DATA;
 * assign TAG STRATEGY TOPIC=COUNT,... MEMBER=INSTANCE=SUBSCRIPTION...
 *
 * Reports: ready; message NAME PARTITION OFFSET MILLISECONDS; holds NAME PARTITIONS GENERATION; left NAME; answer TAG WORD...;
 * failed NAME_OR_TAG REASON. Bytes are in base64, partitions topic:number, lists separated by commas.
 */
public final class GroupMembers {
    private static final PrintStream OUT = System.out;
    private static final Map<String, Class<? extends AbstractPartitionAssignor>> ASSIGNORS = Map.of(
        "range", RangeAssignor.class,
        "roundrobin", RoundRobinAssignor.class,
        "sticky", StickyAssignor.class,
        "cooperative-sticky", CooperativeStickyAssignor.class);
    private static final Set<String> LEAVING = ConcurrentHashMap.newKeySet();

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        report("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            for (int i = 0; i < words.length; i++) if (words[i].equals("-")) words[i] = "";
            try {
                obey(words);
            } catch (Throwable error) {
                error.printStackTrace();
                report("failed", words[1], error.toString());
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void report(Object... words) {
        List<String> texts = new ArrayList<>();
        for (Object word : words) texts.add(word.toString().isEmpty() ? "-" : word.toString());
        OUT.println(String.join(" ", texts));
        OUT.flush();
    }

    private static void obey(String[] words) throws Exception {
        switch (words[0]) {
            case "join":
                new Thread(() -> run(words)).start();
                return;
            case "leave":
                LEAVING.add(words[1]);
                return;
            case "subscription":
                Subscription subscription = new Subscription(
                    list(words[3]), bytes(words[4]), partitions(words[5]), Integer.parseInt(words[6]),
                    Optional.empty());
                report("answer", words[1], text(ConsumerProtocol.serializeSubscription(
                    subscription, Short.parseShort(words[2]))));
                return;
            case "assignment":
                Assignment assignment = new Assignment(partitions(words[3]), bytes(words[4]));
                report("answer", words[1], text(ConsumerProtocol.serializeAssignment(
                    assignment, Short.parseShort(words[2]))));
                return;
            case "assign":
                assign(words);
                return;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static void run(String[] words) {
        Map<String, Object> config = new HashMap<>();
        config.put("client.id", words[1]);
        config.put("bootstrap.servers", words[2]);
        config.put("group.id", words[3]);
        if (words[7].equals("classic")) {
            config.put("partition.assignment.strategy", List.of(ASSIGNORS.get(words[5])));
            config.put("session.timeout.ms", 10_000);
            config.put("heartbeat.interval.ms", 200);
        } else {
            config.put("group.protocol", words[7]);
        }
        if (!words[6].isEmpty()) config.put("group.instance.id", words[6]);
        config.put("auto.offset.reset", "earliest");
        config.put("auto.commit.interval.ms", 200);
        config.put("fetch.max.wait.ms", 100);
        config.put("metadata.max.age.ms", 1000);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(words[4]));
            String before = "";
            while (!LEAVING.contains(words[1])) {
                for (var record : consumer.poll(Duration.ofMillis(100)))
                    report("message", words[1], record.partition(), record.offset(),
                        System.currentTimeMillis());
                TreeSet<Integer> held = new TreeSet<>();
                for (TopicPartition tp : consumer.assignment()) held.add(tp.partition());
                String numbers = held.toString().replaceAll("[\\[\\] ]", "");
                int generation = consumer.groupMetadata().generationId();
                String now = numbers + " " + generation;
                if (!now.equals(before)) report("holds", words[1], numbers, generation);
                before = now;
            }
        } catch (Throwable error) {
            error.printStackTrace();
            report("failed", words[1], error.toString().replace('\n', ' '));
        }
        LEAVING.remove(words[1]);
        report("left", words[1]);
    }

    private static void assign(String[] words) throws Exception {
        AbstractPartitionAssignor assignor =
            ASSIGNORS.get(words[2]).getDeclaredConstructor().newInstance();
        Map<String, List<PartitionInfo>> topics = new TreeMap<>();
        for (String topic : list(words[3])) {
            String name = topic.substring(0, topic.indexOf('='));
            List<PartitionInfo> infos = new ArrayList<>();
            for (int n = 0; n < Integer.parseInt(topic.substring(name.length() + 1)); n++)
                infos.add(new PartitionInfo(name, n, null, null, null));
            topics.put(name, infos);
        }
        Map<String, Subscription> members = new TreeMap<>();
        for (String word : Arrays.asList(words).subList(4, words.length)) {
            String[] parts = word.split("=", 3);
            Subscription told = ConsumerProtocol.deserializeSubscription(bytes(parts[2]));
            if (!parts[1].isEmpty()) told.setGroupInstanceId(Optional.of(parts[1]));
            members.put(parts[0], told);
        }
        List<Object> answer = new ArrayList<>(List.of("answer", words[1]));
        assignor.assignPartitions(topics, members).forEach((member, found) -> {
            TreeSet<String> texts = new TreeSet<>();
            for (TopicPartition tp : found) texts.add(tp.topic() + ":" + tp.partition());
            answer.add(member + "=" + String.join(",", texts));
        });
        report(answer.toArray());
    }

    private static List<String> list(String word) {
        return word.isEmpty() ? List.of() : List.of(word.split(","));
    }

    private static List<TopicPartition> partitions(String word) {
        List<TopicPartition> found = new ArrayList<>();
        for (String part : list(word)) {
            int at = part.lastIndexOf(':');
            found.add(new TopicPartition(part.substring(0, at), Integer.parseInt(part.substring(at + 1))));
        }
        return found;
    }

    private static ByteBuffer bytes(String word) {
        return word.isEmpty() ? null : ByteBuffer.wrap(Base64.getDecoder().decode(word));
    }

    private static String text(ByteBuffer buffer) {
        byte[] found = new byte[buffer.remaining()];
        buffer.get(found);
        return Base64.getEncoder().encodeToString(found);
    }
}
