import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * What `sql-client.sh -f` does with a file of SET, CREATE TABLE and one INSERT, with a Flink cluster in this process:
 * RunSql file [name=value ...]. The SET statements come first.
 */
public final class RunSql {
  private static final Pattern SET = Pattern.compile("SET\\s+'([^']+)'\\s*=\\s*'([^']*)'");

  public static void main(String[] words) throws Exception {
    Configuration config = new Configuration();
    for (int number = 1; number < words.length; number++) {
      String[] pair = words[number].split("=", 2);
      config.setString(pair[0], pair[1]);
    }
    TableEnvironment tables = null;
    for (String part : Files.readString(Path.of(words[0])).replaceAll("(?m)^--.*$", "").split(";\\s*\\n")) {
      String statement = part.strip();
      Matcher set = SET.matcher(statement);
      if (set.matches()) {
        if (tables != null) throw new IllegalArgumentException("SET after another statement");
        config.setString(set.group(1), set.group(2));
        continue;
      }
      if (statement.isEmpty()) continue;
      if (tables == null) {
        tables = TableEnvironment.create(
            EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(config).build());
      }
      TableResult result = tables.executeSql(statement);
      if (statement.startsWith("INSERT")) result.await();
    }
  }
}
