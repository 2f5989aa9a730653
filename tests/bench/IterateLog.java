import java.io.File;
import org.apache.zookeeper.server.persistence.FileTxnLog;
import org.apache.zookeeper.server.persistence.TxnLog.TxnIterator;

/** Reads a directory of logs with ZooKeeper's own iterator and prints records per second in each round. */
public class IterateLog {
    public static void main(String[] arguments) throws Exception {
        int rounds = Integer.parseInt(arguments[1]);
        for (int round = 0; round < rounds; round++) {
            long begin = System.nanoTime();
            long count = 0;
            try (TxnIterator records = new FileTxnLog(new File(arguments[0])).read(0, false)) {
                do {
                    if (records.getTxn() != null) {
                        count++;
                    }
                } while (records.next());
            }
            System.out.println(count + " " + count * 1e9 / (System.nanoTime() - begin));
        }
    }
}
