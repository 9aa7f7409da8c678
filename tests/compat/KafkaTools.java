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
        final String output;

        Exited(int status, String output) {
            this.status = status;
            this.output = output;
        }
    }

    private static final ByteArrayOutputStream printed = new ByteArrayOutputStream();
    /** The first exit of the class that runs; null before it. */
    private static Exited exited;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(new PrintStream(printed, true));
        System.setErr(new PrintStream(printed, true));
        Exit.setExitProcedure((status, message) -> {
            if (exited == null) {
                exited = new Exited(status, printed.toString(StandardCharsets.UTF_8)); // some tools catch it, too
            }
            throw exited;
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            printed.reset();
            exited = null;
            int status = run(line.split("\t"));
            String output = exited == null ? printed.toString(StandardCharsets.UTF_8) : exited.output;
            String encoded = Base64.getEncoder().encodeToString(output.getBytes(StandardCharsets.UTF_8));
            answers.println((exited == null ? status : exited.status) + " " + encoded);
            answers.flush();
        }
    }

    private static int run(String[] words) throws Exception {
        try {
            Class.forName(words[0]).getMethod("main", String[].class)
                .invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
            return 0;
        } catch (java.lang.reflect.InvocationTargetException error) {
            if (exited == null) {
                error.getCause().printStackTrace();
            }
            return 1;
        }
    }
}
