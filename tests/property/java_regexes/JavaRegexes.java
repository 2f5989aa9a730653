import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.regex.Pattern;

/** Reads names and then regexes, one on each line; prints which names each regex matches, or E. */
public class JavaRegexes {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        String[] names = input.readLine().split(" ");
        StringBuilder output = new StringBuilder();
        for (String regex = input.readLine(); regex != null; regex = input.readLine()) {
            output.append(verdict(regex, names)).append('\n');
        }
        System.out.print(output);
    }

    static String verdict(String regex, String[] names) {
        try {
            Pattern pattern = Pattern.compile(regex);
            StringBuilder matched = new StringBuilder();
            for (String name : names) {
                matched.append(pattern.matcher(name).matches() ? '1' : '0');
            }
            return matched.toString();
        } catch (RuntimeException | StackOverflowError error) {
            return "E";
        }
    }
}
