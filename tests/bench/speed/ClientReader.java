import java.time.Duration;
import java.util.Collections;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Java's KafkaConsumer, measured by Meter. Arguments: MODE ADDRESS GROUP TOPIC COUNT STREAMS. */
public final class ClientReader {
    public static void main(String[] args) throws Exception {
        String mode = args[0];
        int streams = Integer.parseInt(args[5]);
        Meter meter = new Meter(mode, Long.parseLong(args[4]), streams);
        for (int number = 0; number < streams; number++) {
            Properties properties = new Properties();
            properties.setProperty("bootstrap.servers", args[1]);
            properties.setProperty("group.id", args[2]);
            properties.setProperty("enable.auto.commit", "false");
            properties.setProperty("auto.offset.reset", mode.equals("read") ? "earliest" : "latest");
            Meter.Counter counter = meter.counter();
            Thread thread = new Thread(() -> {
                KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                    properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                consumer.subscribe(Collections.singletonList(args[3]));
                while (true) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(1000))) {
                        if (counter.add(record.key(), record.value())) return;
                    }
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        meter.await();
        Runtime.getRuntime().halt(0);
    }
}
