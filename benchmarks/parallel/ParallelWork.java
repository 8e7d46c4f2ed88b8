import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * The Parallel Consumer at the work of the benchmark: waits amount % (most + 1) milliseconds for
 * each message, in key order. Ends when it has handled so many, and prints one JSON line: when the
 * first was begun and the last was done (epoch milliseconds), and how many came out of order.
 *
 * <p>Arguments: servers, topic, group, messages, concurrency, most (0 does nothing).
 */
public final class ParallelWork {
  private static final String AMOUNT = "\"amount\":";

  public static void main(String[] args) throws Exception {
    String topic = args[1];
    long expected = Long.parseLong(args[3]);
    int most = Integer.parseInt(args[5]);
    Properties properties = new Properties();
    properties.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
    properties.put(ConsumerConfig.GROUP_ID_CONFIG, args[2]);
    properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    properties.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
    KafkaConsumer<String, String> consumer =
        new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    ParallelStreamProcessor<String, String> processor =
        ParallelStreamProcessor.createEosStreamProcessor(
            ParallelConsumerOptions.<String, String>builder()
                .ordering(ProcessingOrder.KEY)
                .maxConcurrency(Integer.parseInt(args[4]))
                .consumer(consumer)
                .build());
    Map<String, Long> last = new ConcurrentHashMap<>();
    AtomicLong begun = new AtomicLong(Long.MAX_VALUE);
    AtomicLong ended = new AtomicLong();
    AtomicLong outOfOrder = new AtomicLong();
    AtomicLong handled = new AtomicLong();
    CountDownLatch done = new CountDownLatch(1);
    processor.subscribe(List.of(topic));
    processor.poll(
        context -> {
          var record = context.getSingleConsumerRecord();
          begun.accumulateAndGet(System.currentTimeMillis(), Math::min);
          long wait = most == 0 ? 0 : amount(record.value()) % (most + 1);
          if (wait > 0) {
            try {
              Thread.sleep(wait);
            } catch (InterruptedException error) {
              Thread.currentThread().interrupt();
            }
          }
          Long before = last.put(record.key(), record.offset());
          if (before != null && before >= record.offset()) {
            outOfOrder.incrementAndGet();
          }
          ended.accumulateAndGet(System.currentTimeMillis(), Math::max);
          if (handled.incrementAndGet() == expected) {
            done.countDown();
          }
        });
    done.await();
    processor.closeDrainFirst();
    System.out.printf(
        "{\"begun_ms\": %d, \"ended_ms\": %d, \"handled\": %d, \"out_of_order\": %d}%n",
        begun.get(), ended.get(), handled.get(), outOfOrder.get());
    System.exit(0);
  }

  private static long amount(String value) {
    int from = value.indexOf(AMOUNT) + AMOUNT.length();
    int to = from;
    while (Character.isDigit(value.charAt(to))) {
      to++;
    }
    return Long.parseLong(value.substring(from, to));
  }
}
