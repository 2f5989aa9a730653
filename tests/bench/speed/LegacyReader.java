import java.util.Collections;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.KafkaStream;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/** The original consumer (1.1.1), measured by Meter. Arguments: MODE ADDRESS GROUP TOPIC COUNT STREAMS. */
public final class LegacyReader {
    public static void main(String[] args) throws Exception {
        String mode = args[0];
        int streams = Integer.parseInt(args[5]);
        Properties properties = new Properties();
        properties.setProperty("zookeeper.connect", args[1]);
        properties.setProperty("group.id", args[2]);
        properties.setProperty("auto.commit.enable", "false");
        properties.setProperty("auto.offset.reset", mode.equals("read") ? "smallest" : "largest");
        Meter meter = new Meter(mode, Long.parseLong(args[4]), streams);
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties));
        for (KafkaStream<byte[], byte[]> stream :
                connector.createMessageStreams(Collections.singletonMap(args[3], streams)).get(args[3])) {
            Meter.Counter counter = meter.counter();
            Thread thread = new Thread(() -> {
                ConsumerIterator<byte[], byte[]> messages = stream.iterator();
                while (messages.hasNext()) {
                    MessageAndMetadata<byte[], byte[]> message = messages.next();
                    if (counter.add(message.key(), message.message())) return;
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        meter.await();
        Runtime.getRuntime().halt(0);
    }
}
