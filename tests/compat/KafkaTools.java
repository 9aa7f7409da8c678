import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the classes that Kafka's scripts start (kafka-acls.sh and others) in one process, as a JVM takes seconds to start.
 * Each line of input is a class and its arguments, with tabs between. Answers a line: the exit status and all that the
 * class printed, in base64.
 */
public final class KafkaTools {
    private static final class Exited extends RuntimeException {
        final int status;

        Exited(int status) {
            this.status = status;
        }
    }

    private static final ByteArrayOutputStream printed = new ByteArrayOutputStream();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(new PrintStream(printed, true));
        System.setErr(new PrintStream(printed, true));
        Exit.setExitProcedure((status, message) -> {
            throw new Exited(status);
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            printed.reset();
            int status = run(line.split("\t"));
            answers.println(status + " " + Base64.getEncoder().encodeToString(printed.toByteArray()));
            answers.flush();
        }
    }

    private static int run(String[] words) throws Exception {
        try {
            Class.forName(words[0]).getMethod("main", String[].class)
                .invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
            return 0;
        } catch (java.lang.reflect.InvocationTargetException error) {
            if (error.getCause() instanceof Exited exited) {
                return exited.status;
            }
            error.getCause().printStackTrace();
            return 1;
        }
    }
}
