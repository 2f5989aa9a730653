import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Instant;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Counts messages from the first to the last one, as reader.py does, and prints the same JSON.
 * Modes: read (until this number of messages), latency (for this number of seconds, after two
 * seconds), idle (the CPU time of this number of seconds, after three seconds).
 */
final class Meter {
    private static final int AT_ONCE = 1000;
    private final OperatingSystemMXBean system =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private final String mode;
    private final long wanted;
    private final AtomicLong messages = new AtomicLong();
    private final AtomicLong bytes = new AtomicLong();
    private final CountDownLatch over = new CountDownLatch(1);
    private final long[] delays = new long[1 << 20];
    private int delayed;
    private long first;
    private long last;
    private long cpuFirst;
    private long cpuLast;

    Meter(String mode, long wanted, int streams) {
        this.mode = mode;
        this.wanted = wanted;
    }

    Counter counter() {
        return new Counter();
    }

    private synchronized void begin() {
        if (first == 0) {
            first = System.nanoTime();
            cpuFirst = system.getProcessCpuTime();
        }
    }

    private synchronized void end() {
        if (last == 0) {
            last = System.nanoTime();
            cpuLast = system.getProcessCpuTime();
            over.countDown();
        }
    }

    private synchronized void delay(byte[] value) {
        Instant now = Instant.now();
        long sent = ByteBuffer.wrap(value).getLong();
        long running = System.nanoTime() - first;
        if (running > 2_000_000_000L && delayed < delays.length) {
            delays[delayed++] = now.getEpochSecond() * 1_000_000_000L + now.getNano() - sent;
        }
        if (running > (2 + wanted) * 1_000_000_000L) end();
    }

    void await() throws Exception {
        if (mode.equals("idle")) {
            Thread.sleep(3000);
            begin();
            Thread.sleep(wanted * 1000);
            end();
        }
        over.await();
        long[] sorted = Arrays.copyOf(delays, delayed);
        Arrays.sort(sorted);
        System.out.println(String.format(
            "{\"messages\": %d, \"bytes\": %d, \"first\": %d, \"last\": %d, \"cpu\": %.6f, \"rss\": %d, \"p50\": %d, \"p99\": %d}",
            messages.get(), bytes.get(), first, last, (cpuLast - cpuFirst) / 1e9, resident(),
            at(sorted, 0.50), at(sorted, 0.99)));
    }

    private static long at(long[] sorted, double part) {
        return sorted.length == 0 ? 0 : sorted[(int) (part * (sorted.length - 1))];
    }

    private static long resident() throws IOException {
        for (String line : Files.readAllLines(Paths.get("/proc/self/status"))) {
            if (line.startsWith("VmRSS:")) return Long.parseLong(line.replaceAll("[^0-9]", ""));
        }
        return 0;
    }

    /** Counts on one thread, and regularly adds to the total. */
    final class Counter {
        private int count;
        private long size;
        private boolean begun;

        /** Counts a message. Returns true if there are enough. */
        boolean add(byte[] key, byte[] value) {
            if (!begun) {
                begun = true;
                begin();
            }
            size += (key == null ? 0 : key.length) + (value == null ? 0 : value.length);
            if (mode.equals("latency")) {
                delay(value);
                messages.incrementAndGet();
                return over.getCount() == 0;
            }
            if (++count < AT_ONCE) return false;
            bytes.addAndGet(size);
            long total = messages.addAndGet(count);
            count = 0;
            size = 0;
            if (total >= wanted) end();
            return total >= wanted;
        }
    }
}
