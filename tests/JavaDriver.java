import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Runs the main methods of other programs, one after another: a JVM and Kafka's classes take seconds of CPU to start.
 *
 * A request is a line of fields in Base64, separated by tabs: class path of the libraries, folder of the program's
 * classes, class, standard input, arguments. The answer is a line: 0 or 1 (the method threw), and what the program wrote
 * to standard output and standard error, in Base64. Libraries are loaded once, a program's classes for each request.
 */
public final class JavaDriver {
    private static final Map<String, ClassLoader> LIBRARIES = new HashMap<>();

    public static void main(String[] none) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = System.out;
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            List<String> fields = new ArrayList<>();
            for (String field : line.split("\t", -1)) {
                fields.add(new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8));
            }
            answers.println(answer(fields));
            answers.flush();
        }
    }

    private static String answer(List<String> fields) throws Exception {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(fields.get(3).getBytes(StandardCharsets.UTF_8)));
        System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        int status = 0;
        try {
            ClassLoader platform = ClassLoader.getPlatformClassLoader();
            ClassLoader libraries = LIBRARIES.computeIfAbsent(fields.get(0), path -> loader(path, platform));
            ClassLoader loader = loader(fields.get(1), libraries);
            Thread.currentThread().setContextClassLoader(loader);
            String[] arguments = fields.subList(4, fields.size()).toArray(new String[0]);
            Class<?> program = Class.forName(fields.get(2), true, loader);
            program.getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            thrown.getCause().printStackTrace();
            status = 1;
        }
        return status + "\t" + encoded(output) + "\t" + encoded(errors);
    }

    private static ClassLoader loader(String classPath, ClassLoader parent) {
        URL[] places = Arrays.stream(classPath.split(File.pathSeparator)).map(JavaDriver::place).toArray(URL[]::new);
        return new URLClassLoader(places, parent);
    }

    private static URL place(String path) {
        try {
            return new File(path).toURI().toURL();
        } catch (java.net.MalformedURLException impossible) {
            throw new IllegalArgumentException(path, impossible);
        }
    }

    private static String encoded(ByteArrayOutputStream bytes) {
        return Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}
