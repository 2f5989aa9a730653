import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import kafka.common.TopicAndPartition;
import kafka.consumer.AssignmentContext;
import kafka.consumer.Blacklist;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.KafkaStream;
import kafka.consumer.PartitionAssignor;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Runs members of the original consumer on orders read from stdin, and tells on stdout what happens
 * to them. One order or report a line, its words separated by tabs and URL-encoded. Compiles
 * against Kafka 0.8.2 and 1.1. Ends, without leaving its groups, at the end of stdin.
 *
 * Orders: join NAME KIND KEY=VALUE... -- TOPIC_OR_REGEX=STREAMS... (KIND static, white_list or
 * black_list; =FILE stands for the properties in a file); commit NAME; leave NAME; assign TAG ZOOKEEPER GROUP STRATEGY EXCLUDE_INTERNAL
 * MEMBER... (what the original assignor of these members gives to whom); produce TAG BOOTSTRAP TOPIC
 * PARTITION CODEC VALUE... (base64).
 *
 * Reports: ready; joined NAME; message NAME STREAM TOPIC PARTITION OFFSET VALUE (base64, or null);
 * committed NAME; left NAME; assigned TAG TOPIC PARTITION THREAD...; produced TAG OFFSET...; failed NAME_OR_TAG REASON.
 */
public final class LegacyMembers {
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out));
    private static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // the log must not mix with the reports
        ExecutorService pool = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        report("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<String> words = new ArrayList<>();
            for (String word : line.split("\t", -1)) words.add(URLDecoder.decode(word, "UTF-8"));
            pool.execute(() -> {
                try {
                    obey(words);
                } catch (Throwable error) {
                    error.printStackTrace();
                    Throwable cause = error.getCause() == null ? error : error.getCause();
                    report("failed", words.get(1), String.valueOf(cause));
                }
            });
        }
        Runtime.getRuntime().halt(0);
    }

    private static void obey(List<String> words) throws Exception {
        String name = words.get(1);
        switch (words.get(0)) {
            case "join":
                Member joining = new Member(name, words);
                MEMBERS.put(name, joining);
                joining.join();
                report("joined", name);
                return;
            case "commit":
                MEMBERS.get(name).connector.commitOffsets();
                report("committed", name);
                return;
            case "leave":
                Member leaving = MEMBERS.remove(name);
                if (leaving != null) leaving.leave(); // null: it never came to be
                report("left", name);
                return;
            case "assign":
                assign(words);
                return;
            case "produce":
                produce(words);
                return;
            default:
                throw new IllegalArgumentException("unknown order " + words.get(0));
        }
    }

    private static synchronized void report(String... words) {
        StringBuilder line = new StringBuilder();
        try {
            for (String word : words) {
                if (line.length() > 0) line.append('\t');
                line.append(URLEncoder.encode(word, "UTF-8"));
            }
        } catch (java.io.UnsupportedEncodingException error) {
            throw new AssertionError(error);
        }
        OUT.println(line);
        OUT.flush();
    }

    /** One connector with a thread for each of its streams. */
    private static final class Member {
        final ConsumerConnector connector;
        private final String name;
        private final String kind;
        private final Map<String, Integer> wanted = new HashMap<>();
        private final List<Thread> threads = new ArrayList<>();

        Member(String name, List<String> words) throws IOException {
            this.name = name;
            this.kind = words.get(2);
            Properties properties = new Properties();
            int end = words.indexOf("--");
            for (String pair : words.subList(3, end)) {
                int at = pair.indexOf('=');
                if (at == 0) {
                    try (FileInputStream file = new FileInputStream(pair.substring(1))) {
                        properties.load(file);
                    }
                    continue;
                }
                properties.setProperty(pair.substring(0, at), pair.substring(at + 1));
            }
            for (String pair : words.subList(end + 1, words.size())) {
                int at = pair.lastIndexOf('=');
                wanted.put(pair.substring(0, at), Integer.valueOf(pair.substring(at + 1)));
            }
            connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties));
        }

        void join() {
            List<KafkaStream<byte[], byte[]>> streams = new ArrayList<>();
            if (kind.equals("static")) {
                connector.createMessageStreams(wanted).values().forEach(streams::addAll);
            } else {
                Map.Entry<String, Integer> only = wanted.entrySet().iterator().next();
                streams.addAll(connector.createMessageStreamsByFilter(
                    kind.equals("white_list") ? new Whitelist(only.getKey()) : new Blacklist(only.getKey()),
                    only.getValue()));
            }
            for (int i = 0; i < streams.size(); i++) {
                KafkaStream<byte[], byte[]> stream = streams.get(i);
                String number = String.valueOf(i);
                Thread thread = new Thread(() -> read(number, stream), name + "-stream-" + i);
                thread.setDaemon(true);
                threads.add(thread);
                thread.start();
            }
        }

        private void read(String number, KafkaStream<byte[], byte[]> stream) {
            try {
                ConsumerIterator<byte[], byte[]> messages = stream.iterator();
                while (messages.hasNext()) {
                    MessageAndMetadata<byte[], byte[]> message = messages.next();
                    byte[] value = message.message();
                    report("message", name, number, message.topic(),
                        String.valueOf(message.partition()), String.valueOf(message.offset()),
                        value == null ? "null" : Base64.getEncoder().encodeToString(value));
                }
            } catch (Throwable error) {
                error.printStackTrace();
                report("failed", name, "stream " + number + ": " + error);
            }
        }

        void leave() throws InterruptedException {
            connector.shutdown();
            for (Thread thread : threads) thread.join();
        }
    }

    private static void produce(List<String> words) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("bootstrap.servers", words.get(2));
        properties.setProperty("compression.type", words.get(5));
        properties.setProperty("acks", "all");
        properties.setProperty("linger.ms", "100"); // so that messages are sent in sets
        properties.setProperty("key.serializer", ByteArraySerializer.class.getName());
        properties.setProperty("value.serializer", ByteArraySerializer.class.getName());
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties);
        List<String> offsets = new ArrayList<>(List.of("produced", words.get(1)));
        try {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String value : words.subList(6, words.size())) {
                sent.add(producer.send(new ProducerRecord<byte[], byte[]>(words.get(3),
                    Integer.valueOf(words.get(4)), null, Base64.getDecoder().decode(value))));
            }
            for (Future<RecordMetadata> each : sent) offsets.add(String.valueOf(each.get().offset()));
        } finally {
            producer.close();
        }
        report(offsets.toArray(new String[0]));
    }

    private static void assign(List<String> words) throws Exception {
        String zookeeper = words.get(2);
        String group = words.get(3);
        boolean exclude = Boolean.parseBoolean(words.get(5));
        PartitionAssignor assignor = (PartitionAssignor) Class.forName(
            words.get(4).equals("roundrobin") ? "kafka.consumer.RoundRobinAssignor" : "kafka.consumer.RangeAssignor")
            .getConstructor().newInstance();
        Object reader = open(zookeeper);
        List<String> found = new ArrayList<>(List.of("assigned", words.get(1)));
        try {
            for (String member : words.subList(6, words.size())) {
                Object context = AssignmentContext.class.getConstructors()[0]
                    .newInstance(group, member, exclude, reader);
                Object result = PartitionAssignor.class.getMethod("assign", AssignmentContext.class)
                    .invoke(assignor, context);
                collect(result, found);
            }
        } finally {
            reader.getClass().getMethod("close").invoke(reader);
        }
        report(found.toArray(new String[0]));
    }

    /** ZkUtils (since 0.9), or the ZkClient that 0.8.2 uses directly. */
    private static Object open(String zookeeper) throws Exception {
        try {
            Method apply = Class.forName("kafka.utils.ZkUtils")
                .getMethod("apply", String.class, int.class, int.class, boolean.class);
            return apply.invoke(null, zookeeper, 10000, 10000, false);
        } catch (NoSuchMethodException before09) {
            Object serializer = Class.forName("kafka.utils.ZKStringSerializer$").getField("MODULE$").get(null);
            Class<?> type = Class.forName("org.I0Itec.zkclient.ZkClient");
            return type.getConstructor(String.class, int.class, int.class,
                Class.forName("org.I0Itec.zkclient.serialize.ZkSerializer"))
                .newInstance(zookeeper, 10000, 10000, serializer);
        }
    }

    /** The result is a map of owners (0.8.2: the member's own), or a pool of such maps by member. */
    private static void collect(Object result, List<String> found) {
        scala.collection.Iterator<?> entries = ((scala.collection.Iterable<?>) result).iterator();
        while (entries.hasNext()) {
            scala.Tuple2<?, ?> entry = (scala.Tuple2<?, ?>) entries.next();
            if (entry._1() instanceof TopicAndPartition) {
                TopicAndPartition partition = (TopicAndPartition) entry._1();
                Collections.addAll(found, partition.topic(),
                    String.valueOf(partition.partition()), entry._2().toString());
            } else {
                collect(entry._2(), found);
            }
        }
    }
}
