import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.logging.LogManager;
import org.redisson.Redisson;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseConfig;
import org.redisson.config.Config;
import org.yaml.snakeyaml.Yaml;

/**
 * A worker of the torture for Redisson: ../README.md describes its lines. All settings are Redisson's defaults, but for the
 * lease, the timeouts, and the number of idle connections. Redisson does not tell a holder of a loss.
 */
public final class Peer {
    private static final List<RedissonClient> CLIENTS = new ArrayList<>();
    private static final TimeUnit MS = TimeUnit.MILLISECONDS;

    private RLock held;

    public static void main(String[] args) throws Exception {
        LogManager.getLogManager().reset();
        Map<Object, ExecutorService> executors = new HashMap<>();
        Map<Object, Peer> threads = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            // JSON is YAML too, and Redisson brings a parser for that.
            Map<String, Object> command = new Yaml().load(line);
            Object thread = command.getOrDefault("thread", -1);
            Peer peer = threads.computeIfAbsent(thread, key -> new Peer());
            executors.computeIfAbsent(thread, key -> Executors.newSingleThreadExecutor()).execute(() -> {
                String answer;
                try {
                    answer = peer.obey(command);
                } catch (IllegalMonitorStateException error) {
                    answer = "\"lost\":" + quoted(error.getMessage());
                } catch (Throwable error) {
                    answer = "\"error\":" + quoted(error.toString());
                }
                String text = "{\"id\":" + command.get("id") + ",\"at\":" + System.nanoTime() + "," + answer + "}";
                synchronized (CLIENTS) {
                    System.out.println(text);
                }
            });
        }
        Runtime.getRuntime().halt(0);
    }

    private static String quoted(String text) {
        return '"' + String.valueOf(text).replaceAll("[\\\\\"\\p{Cntrl}]", " ") + '"';
    }

    private String obey(Map<String, Object> command) throws Exception {
        switch ((String) command.get("op")) {
            case "describe" -> {
                String version = Redisson.class.getPackage().getImplementationVersion();
                return "\"library\":\"Redisson\",\"version\":\"" + version + "\",\"renews\":true,\"guards\":false,"
                        + "\"deployments\":[\"one\",\"sentinel\",\"masters\"],"
                        + "\"kinds\":[\"mutex\",\"reentrant\",\"fair\",\"fenced\",\"spin\",\"rwlock\",\"multi\",\"red\"]";
            }
            case "open" -> open(command);
            case "lock" -> {
                return lock(command);
            }
            case "hold" -> Thread.sleep((int) command.get("ms"));
            case "write" -> CLIENTS.get(0).getList((String) command.get("key"), StringCodec.INSTANCE)
                    .add(command.get("entry"));
            case "unlock" -> held.unlock();
            default -> throw new IllegalArgumentException(command.toString());
        }
        return "\"ok\":true";
    }

    @SuppressWarnings("unchecked")
    private static void open(Map<String, Object> command) {
        int timeout = (int) command.get("timeout_ms");
        List<String> urls = (List<String>) command.get("urls");
        Map<String, Object> sentinel = (Map<String, Object>) command.get("sentinel");
        List<String> places = sentinel == null ? urls : List.of("sentinel");
        // The driver opens again after an error, which then was a server's: the clients are there.
        for (String url : CLIENTS.isEmpty() ? places : List.<String>of()) {
            Config config = new Config();
            config.setLockWatchdogTimeout((int) command.get("lease_ms"));
            // A worker starts while its server is unreachable.
            config.setLazyInitialization(true);
            BaseConfig<?> servers;
            if (sentinel == null) {
                servers = config.useSingleServer().setAddress(url).setConnectionMinimumIdleSize(4);
            } else {
                config.setPassword((String) sentinel.get("password"));
                var watched = config.useSentinelServers().setMasterName((String) sentinel.get("service"));
                for (String address : (List<String>) sentinel.get("addresses")) {
                    watched.addSentinelAddress("redis://" + address);
                }
                servers = watched.setMasterConnectionMinimumIdleSize(4).setSlaveConnectionMinimumIdleSize(1);
            }
            servers.setTimeout(timeout);
            servers.setConnectTimeout(timeout);
            servers.setClientName((String) command.get("client_name"));
            CLIENTS.add(Redisson.create(config));
        }
        // Connects, so that the first lock does not wait for that.
        CLIENTS.forEach(client -> client.getBucket("peer").isExists());
    }

    @SuppressWarnings({"unchecked", "deprecation"})
    private String lock(Map<String, Object> command) throws Exception {
        List<String> names = (List<String>) command.get("names");
        String name = names.get(0);
        RedissonClient client = CLIENTS.get(0);
        held = switch ((String) command.get("kind")) {
            case "fair" -> client.getFairLock(name);
            case "fenced" -> client.getFencedLock(name);
            case "spin" -> client.getSpinLock(name);
            case "rwlock" -> command.get("mode").equals("write")
                    ? client.getReadWriteLock(name).writeLock()
                    : client.getReadWriteLock(name).readLock();
            case "multi" -> new RedissonMultiLock(names.stream().map(client::getLock).toArray(RLock[]::new));
            case "red" -> new RedissonRedLock(CLIENTS.stream().map(its -> its.getLock(name)).toArray(RLock[]::new));
            default -> client.getLock(name);
        };
        Integer wait = (Integer) command.get("wait_ms");
        long lease = ((Number) command.getOrDefault("lease_ms", -1)).longValue();
        if (held instanceof RFencedLock fenced) {
            Long token = wait == null ? fenced.lockAndGetToken() : fenced.tryLockAndGetToken(wait, lease, MS);
            return token == null ? "\"busy\":true" : "\"ok\":true,\"token\":" + token;
        }
        if (wait == null) {
            held.lock(lease, MS);
            return "\"ok\":true";
        }
        return held.tryLock(wait, lease, MS) ? "\"ok\":true" : "\"busy\":true";
    }
}
