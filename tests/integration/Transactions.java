import java.io.BufferedWriter;
import java.io.PrintWriter;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes topics in transactions that overlap, commit, abort and hang, or reads them with
 * read_committed.
 *
 * <p>{@code write BOOTSTRAP TOPICS PARTITIONS RECORDS SEED}: all producers take turns. One of them
 * leaves a transaction open before the last tenth of the records. Prints how many each topic got. {@code end BOOTSTRAP}: that one is
 * aborted, as by a producer that is started again. {@code read BOOTSTRAP TOPICS}: prints topic,
 * partition and offset of each record, then the last stable offset of each partition.
 */
public final class Transactions {
    private static final int PRODUCERS = 4;
    private static Map<String, Integer> counts = new HashMap<>();

    private Transactions() {}

    public static void main(String[] args) {
        switch (args[0]) {
            case "write":
                write(
                    args[1],
                    args[2].split(","),
                    Integer.parseInt(args[3]),
                    Integer.parseInt(args[4]),
                    new Random(Long.parseLong(args[5])));
                break;
            case "end":
                try (var producer = producer(args[1], "hanging", true)) {
                    producer.initTransactions();
                }
                break;
            default:
                read(args[1], args[2].split(","));
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(
            String bootstrap, String id, boolean transactional) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("enable.idempotence", true);
        config.put("linger.ms", 5);
        config.put("transaction.timeout.ms", 3_600_000); // the tests of one cluster take less
        if (transactional) {
            config.put("transactional.id", id);
        }
        var serializer = new ByteArraySerializer();
        return new KafkaProducer<>(config, serializer, serializer);
    }

    private static void write(
            String bootstrap, String[] topics, int partitions, int records, Random random) {
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (int number = 0; number < PRODUCERS; number++) {
            producers.add(producer(bootstrap, "producer-" + number, true));
            producers.get(number).initTransactions();
        }
        var idempotent = producer(bootstrap, "", false);
        var hanging = producer(bootstrap, "hanging", true);
        hanging.initTransactions();
        boolean hangs = false;
        Set<KafkaProducer<byte[], byte[]>> open = new HashSet<>();
        int longer = Math.max(1, records / 100_000); // or the requests would take most of the time
        for (int sent = 0; sent < records; ) {
            int number = random.nextInt(PRODUCERS + 1);
            var one = number < PRODUCERS ? producers.get(number) : idempotent;
            if (number < PRODUCERS && open.add(one)) {
                one.beginTransaction();
            }
            String topic = topics[random.nextInt(topics.length)];
            int first = random.nextInt(partitions);
            int count = 1 + random.nextInt(longer * (random.nextInt(8) == 0 ? 200 : 30));
            for (int at = 0; at < count; at++, sent++) {
                send(one, topic, random.nextInt(4) == 0 ? random.nextInt(partitions) : first, sent);
            }
            one.flush();
            if (open.contains(one) && random.nextInt(3) > 0) {
                open.remove(one);
                if (random.nextInt(3) > 0) {
                    one.commitTransaction();
                } else {
                    one.abortTransaction();
                }
            }
            if (!hangs && sent > records * 9 / 10) {
                hangs = true;
                hanging.beginTransaction();
                for (String each : topics) {
                    for (int partition = 0; partition < partitions; partition += 2) {
                        send(hanging, each, partition, sent++);
                    }
                }
                hanging.flush();
            }
        }
        for (var one : open) {
            one.abortTransaction();
        }
        for (var one : producers) {
            one.close();
        }
        idempotent.close();
        counts.forEach((topic, count) -> System.out.println(topic + " " + count));
        System.out.flush();
        Runtime.getRuntime().halt(0); // close() would abort the transaction that hangs
    }

    private static void send(
            KafkaProducer<byte[], byte[]> one, String topic, int partition, int number) {
        counts.merge(topic, 1, Integer::sum);
        byte[] key = String.valueOf(number % 997).getBytes(StandardCharsets.UTF_8);
        byte[] value = String.valueOf(number).getBytes(StandardCharsets.UTF_8);
        one.send(new ProducerRecord<>(topic, partition, key, value));
    }

    private static void read(String bootstrap, String[] topics) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("isolation.level", "read_committed");
        config.put("enable.auto.commit", false);
        config.put("max.poll.records", 5000);
        var deserializer = new ByteArrayDeserializer();
        var out = new PrintWriter(new BufferedWriter(new OutputStreamWriter(System.out)));
        try (var consumer = new KafkaConsumer<>(config, deserializer, deserializer)) {
            List<TopicPartition> all = new ArrayList<>();
            for (String topic : topics) {
                for (var info : consumer.partitionsFor(topic)) {
                    all.add(new TopicPartition(topic, info.partition()));
                }
            }
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            while (all.stream().anyMatch(tp -> consumer.position(tp) < ends.get(tp))) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    out.println(
                        record.topic() + " " + record.partition() + " " + record.offset());
                }
            }
            ends.forEach((tp, end) -> out.println(
                    "end " + tp.topic() + " " + tp.partition() + " " + end));
        }
        out.flush();
    }
}
