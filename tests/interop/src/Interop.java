import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.logging.LogManager;
import org.redisson.Redisson;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.RBucket;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Redisson clients, driven by lines: {@code ID THREAD VERB ARGUMENT...}.
 *
 * <p>Each line is answered by {@code ID ok RESULT}, {@code ID busy} or {@code ID error TEXT}, once it is done. Lines with
 * the same THREAD are done by the same thread, one after another. Moments are those of {@code System.nanoTime()}, the
 * monotonic clock that all processes share. The end of the input ends the process, which releases nothing.
 *
 * <pre>
 * open CLIENT URL,... WATCHDOG_MS PREFIX    a client; of a cluster if the URLs begin with "cluster+"; no prefix: "-"
 * shut CLIENT                               ends it
 * take CLIENT KIND NAME WAIT_MS LEASE_MS    -1: without limit, renewed; answers with the moment and the token
 * free CLIENT KIND NAME                     the newest hold of this thread; answers with the moment before it
 * held CLIENT KIND NAME                     whether this thread has it
 * force CLIENT KIND NAME                    takes it from whoever has it
 * parked THREAD                             whether it waits for a message
 * permits CLIENT KIND NAME N                sets the permits of a semaphore
 * count CLIENT NAME N                       sets a latch
 * down CLIENT NAME                          counts it down; answers with the moment before it
 * await CLIENT NAME                         answers with the moment when it is open
 * load CLIENT KIND NAME THREADS MS          see {@link #load}
 * </pre>
 */
public final class Interop {
    private static final Map<String, RedissonClient> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, ExecutorService> THREADS = new ConcurrentHashMap<>();
    private static final ThreadLocal<Map<String, Deque<Hold>>> HOLDS = ThreadLocal.withInitial(HashMap::new);
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    /** A hold of a thread. */
    private record Hold(long since, long token, Runnable release) {}

    /** A way to acquire. A negative wait means no limit, a negative lease means renewal; returns null at the end of the wait. */
    private interface Kind {
        Hold take(long wait, long lease) throws InterruptedException;
    }

    public static void main(String[] args) throws IOException {
        // Netty logs an error when a server goes away.
        LogManager.getLogManager().reset();
        say("ready " + Redisson.class.getPackage().getImplementationVersion());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split(" ");
            String id = words[0];
            String[] order = Arrays.copyOfRange(words, 2, words.length);
            THREADS.computeIfAbsent(words[1], Interop::executor).execute(() -> {
                String answer;
                try {
                    String result = obey(id, order);
                    answer = result == null ? "busy" : "ok " + result;
                } catch (Throwable error) {
                    answer = "error " + error.toString().replace('\n', ' ');
                }
                say(id + " " + answer);
            });
        }
        Runtime.getRuntime().halt(0);
    }

    private static ExecutorService executor(String name) {
        return Executors.newSingleThreadExecutor(work -> new Thread(work, name));
    }

    private static void say(String line) {
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private static String obey(String id, String[] order) throws Exception {
        String client = order[1];
        switch (order[0]) {
            case "open" -> CLIENTS.put(client, open(order[2], Long.parseLong(order[3]), order[4]));
            case "shut" -> CLIENTS.remove(client).shutdown(0, 0, TimeUnit.SECONDS);
            case "take" -> {
                Hold hold = kind(client, order[2], order[3]).take(Long.parseLong(order[4]), Long.parseLong(order[5]));
                if (hold == null) {
                    return null;
                }
                holds(order).push(hold);
                return hold.since + " " + hold.token;
            }
            case "free" -> {
                long now = System.nanoTime();
                holds(order).pop().release.run();
                return Long.toString(now);
            }
            case "held" -> {
                return Boolean.toString(lock(client, order[2], order[3]).isHeldByCurrentThread());
            }
            case "force" -> {
                return Boolean.toString(lock(client, order[2], order[3]).forceUnlock());
            }
            case "parked" -> {
                return Boolean.toString(isParked(order[1]));
            }
            case "permits" -> {
                int permits = Integer.parseInt(order[4]);
                RedissonClient its = CLIENTS.get(client);
                return Boolean.toString(order[2].equals("permit")
                        ? its.getPermitExpirableSemaphore(order[3]).trySetPermits(permits)
                        : its.getSemaphore(order[3]).trySetPermits(permits));
            }
            case "count" -> {
                long count = Long.parseLong(order[3]);
                return Boolean.toString(CLIENTS.get(client).getCountDownLatch(order[2]).trySetCount(count));
            }
            case "down" -> {
                long now = System.nanoTime();
                CLIENTS.get(client).getCountDownLatch(order[2]).countDown();
                return Long.toString(now);
            }
            case "await" -> {
                CLIENTS.get(client).getCountDownLatch(order[2]).await();
                return Long.toString(System.nanoTime());
            }
            case "load" -> load(id, client, order[2], order[3], Integer.parseInt(order[4]), Long.parseLong(order[5]));
            default -> throw new IllegalArgumentException(String.join(" ", order));
        }
        return "";
    }

    /** Whether this thread is parked until a message of a plain or read-write lock arrives. */
    private static boolean isParked(String name) {
        return Thread.getAllStackTraces().entrySet().stream()
                .filter(thread -> thread.getKey().getName().equals(name))
                .filter(thread -> thread.getKey().getState().name().endsWith("WAITING"))
                .flatMap(thread -> Arrays.stream(thread.getValue()))
                .map(StackTraceElement::getClassName)
                .anyMatch(its -> its.endsWith(".Semaphore") || its.endsWith(".ReclosableLatch"));
    }

    private static Deque<Hold> holds(String[] order) {
        String what = order[1] + " " + order[2] + " " + order[3];
        return HOLDS.get().computeIfAbsent(what, key -> new ArrayDeque<>());
    }

    private static RedissonClient open(String urls, long watchdog, String prefix) throws Exception {
        Config config = new Config();
        config.setLockWatchdogTimeout(watchdog);
        if (urls.startsWith("cluster+")) {
            config.useClusterServers().addNodeAddress(urls.substring("cluster+".length()).split(","));
            return Redisson.create(config);
        }
        Object server = config.useSingleServer().setAddress(urls);
        if (!prefix.equals("-")) {
            // The class has been in another package since 3.x.
            for (Method setter : server.getClass().getMethods()) {
                if (setter.getName().equals("setNameMapper")) {
                    Class<?> mapper = setter.getParameterTypes()[0];
                    Object ours = Proxy.newProxyInstance(mapper.getClassLoader(), new Class<?>[] {mapper},
                            (proxy, method, args) -> switch (method.getName()) {
                                case "map" -> prefix + args[0];
                                case "unmap" -> ((String) args[0]).substring(prefix.length());
                                default -> null;
                            });
                    setter.invoke(server, ours);
                    break;
                }
            }
        }
        return Redisson.create(config);
    }

    /** The clients of a RedLock and the names of a multi-lock are joined by '+'. */
    private static RLock lock(String client, String kind, String name) {
        if (kind.equals("red")) {
            return new RedissonRedLock(Arrays.stream(client.split("\\+"))
                    .map(its -> CLIENTS.get(its).getLock(name)).toArray(RLock[]::new));
        }
        RedissonClient its = CLIENTS.get(client);
        return switch (kind) {
            case "lock" -> its.getLock(name);
            case "fair" -> its.getFairLock(name);
            case "spin" -> its.getSpinLock(name);
            case "fenced" -> its.getFencedLock(name);
            case "read" -> its.getReadWriteLock(name).readLock();
            case "write" -> its.getReadWriteLock(name).writeLock();
            case "multi" -> new RedissonMultiLock(
                    Arrays.stream(name.split("\\+")).map(its::getLock).toArray(RLock[]::new));
            case "multi-read" -> new RedissonMultiLock(Arrays.stream(name.split("\\+"))
                    .map(each -> its.getReadWriteLock(each).readLock()).toArray(RLock[]::new));
            default -> throw new IllegalArgumentException(kind);
        };
    }

    private static Kind kind(String client, String kind, String name) {
        switch (kind) {
            case "semaphore": {
                RSemaphore semaphore = CLIENTS.get(client).getSemaphore(name);
                return (wait, lease) -> {
                    if (wait < 0) {
                        semaphore.acquire();
                    } else if (!semaphore.tryAcquire(1, wait, TimeUnit.MILLISECONDS)) {
                        return null;
                    }
                    return new Hold(System.nanoTime(), 0, semaphore::release);
                };
            }
            case "permit": {
                RPermitExpirableSemaphore semaphore = CLIENTS.get(client).getPermitExpirableSemaphore(name);
                return (wait, lease) -> {
                    String id = wait < 0
                            ? semaphore.acquire(lease, TimeUnit.MILLISECONDS)
                            : semaphore.tryAcquire(wait, lease, TimeUnit.MILLISECONDS);
                    return id == null ? null : new Hold(System.nanoTime(), 0, () -> semaphore.release(id));
                };
            }
            case "fenced": {
                RFencedLock lock = CLIENTS.get(client).getFencedLock(name);
                return (wait, lease) -> {
                    Long token = wait < 0
                            ? lock.lockAndGetToken()
                            : lock.tryLockAndGetToken(wait, lease, TimeUnit.MILLISECONDS);
                    return token == null ? null : new Hold(System.nanoTime(), token, lock::unlock);
                };
            }
            default: {
                RLock lock = lock(client, kind, name);
                return (wait, lease) -> {
                    if (wait >= 0) {
                        if (!lock.tryLock(wait, lease, TimeUnit.MILLISECONDS)) {
                            return null;
                        }
                    } else if (lease < 0) {
                        lock.lock();
                    } else {
                        lock.lock(lease, TimeUnit.MILLISECONDS);
                    }
                    return new Hold(System.nanoTime(), 0, lock::unlock);
                };
            }
        }
    }

    /**
     * Threads that take a lock again and again, for so long. Of a read-write lock ("rw") each fourth turn writes; if
     * it is "rw-apart", the first thread always does and the others read for longer. Whoever
     * is alone increments the number at the key "NAME:number" in two steps; whoever reads, reads it twice.
     *
     * <p>Each turn is a line {@code turn THREAD MODE ASKED ANSWERED UNTIL RELEASED TOKEN NUMBER AGAIN}; the mode is "x"
     * alone, "r" reading and "p" with one permit of several.
     */
    private static void load(String id, String client, String kind, String name, int threads, long ms)
            throws Exception {
        RBucket<String> number = CLIENTS.get(client.split("\\+")[0]).getBucket(name + ":number", StringCodec.INSTANCE);
        boolean counts = kind.equals("semaphore") || kind.equals("permit");
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
        List<Thread> all = new ArrayList<>();
        List<Throwable> errors = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            int me = i;
            Thread thread = new Thread(() -> {
                try {
                    List<String> turns = new ArrayList<>();
                    Kind alone = kind(client, kind.startsWith("rw") ? "write" : kind, name);
                    Kind reading = kind.startsWith("rw") ? kind(client, "read", name) : null;
                    for (int n = me; System.nanoTime() < end; n++) {
                        boolean reads = reading != null && (kind.equals("rw") ? n % 4 != 0 : me != 0);
                        long asked = System.nanoTime();
                        Hold hold = (reads ? reading : alone).take(-1, counts ? 30_000 : -1);
                        long found = counts ? 0 : read(number);
                        Thread.sleep(kind.equals("rw-apart") ? 10 : 1);
                        long again = found;
                        if (reads) {
                            again = read(number);
                        } else if (!counts) {
                            number.set(Long.toString(found + 1));
                        }
                        long until = System.nanoTime();
                        hold.release.run();
                        turns.add(String.join(" ", "turn", "" + me, counts ? "p" : reads ? "r" : "x", "" + asked,
                                "" + hold.since, "" + until, "" + System.nanoTime(), "" + hold.token, "" + found,
                                "" + again));
                    }
                    turns.forEach(turn -> say(id + " " + turn));
                } catch (Throwable error) {
                    synchronized (errors) {
                        errors.add(error);
                    }
                }
            });
            thread.start();
            all.add(thread);
        }
        for (Thread thread : all) {
            thread.join();
        }
        if (!errors.isEmpty()) {
            throw new IllegalStateException(errors.toString());
        }
    }

    private static long read(RBucket<String> number) {
        String found = number.get();
        return found == null ? 0 : Long.parseLong(found);
    }
}
