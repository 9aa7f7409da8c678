// What Kafka's ShareConsumerTest proves of a broker, as scenarios against any server:
// ShareConsumerScenarios BOOTSTRAP [NAME...]. Each scenario has new topics and a new group, so several run at a time. It
// prints `NAME | pass`, or `NAME | fail REASON`, in the order of the names.

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

public final class ShareConsumerScenarios {
    private static final List<Class<?>> SETS = List.of(
        SharePollScenarios.class, ShareAcknowledgementScenarios.class, ShareDeliveryScenarios.class, ShareLogScenarios.class);
    private static final int AT_A_TIME = 6;

    public static void main(String[] arguments) throws Exception {
        List<String> names = List.of(arguments).subList(1, arguments.length);
        ExecutorService pool = Executors.newFixedThreadPool(AT_A_TIME);
        Map<String, Future<String>> running = new TreeMap<>();
        for (Method scenario : scenarios()) {
            if (names.isEmpty() || names.contains(scenario.getName())) {
                running.put(scenario.getName(), pool.submit(() -> run(scenario, arguments[0])));
            }
        }
        for (Map.Entry<String, Future<String>> each : running.entrySet()) {
            System.out.println(each.getKey() + " | " + each.getValue().get());
            System.out.flush();
        }
        pool.shutdown();
    }

    private static List<Method> scenarios() {
        List<Method> found = new ArrayList<>();
        for (Class<?> set : SETS) {
            for (Method method : set.getDeclaredMethods()) {
                if (!Modifier.isPrivate(method.getModifiers()) && !method.isSynthetic()) {
                    found.add(method);
                }
            }
        }
        return found;
    }

    private static String run(Method scenario, String bootstrap) {
        try (ShareWorld world = new ShareWorld(bootstrap, scenario.getName())) {
            scenario.invoke(null, world);
            return "pass";
        } catch (InvocationTargetException error) {
            return "fail " + error.getCause();
        } catch (Exception error) {
            return "fail " + error;
        }
    }
}
