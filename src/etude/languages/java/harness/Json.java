package etude_;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As much of JSON as the configuration needs, and events. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> read(String text) {
        return (Map<String, Object>) new Json(text).value();
    }

    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private Object value() {
        char c = next();
        if (c == '{') {
            Map<String, Object> found = new LinkedHashMap<>();
            at++;
            while (next() != '}') {
                if (text.charAt(at) == ',') at++;
                String key = (String) value();
                next();
                at++; // the colon
                found.put(key, value());
            }
            at++;
            return found;
        }
        if (c == '[') {
            List<Object> found = new ArrayList<>();
            at++;
            while (next() != ']') {
                if (text.charAt(at) == ',') at++;
                found.add(value());
            }
            at++;
            return found;
        }
        if (c == '"') return string();
        int start = at;
        while (at < text.length() && ",]} \n".indexOf(text.charAt(at)) < 0) at++;
        String word = text.substring(start, at);
        return word.equals("null") ? null : word.equals("true") || word.equals("false") ? (Object) word.equals("true") : Double.valueOf(word);
    }

    /** The next character that is no space. */
    private char next() {
        while (text.charAt(at) <= ' ') at++;
        return text.charAt(at);
    }

    private String string() {
        StringBuilder out = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            char c = text.charAt(at);
            if (c != '\\') {
                out.append(c);
                continue;
            }
            c = text.charAt(++at);
            if (c == 'u') {
                out.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16));
                at += 4;
            } else {
                int escape = "nrtbf".indexOf(c);
                out.append(escape < 0 ? c : "\n\r\t\b\f".charAt(escape));
            }
        }
        at++;
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value == null || value instanceof Boolean || value instanceof Number) {
            out.append(value);
        } else if (value instanceof int[]) {
            out.append(java.util.Arrays.toString((int[]) value));
        } else if (value instanceof Iterable) {
            String comma = "[";
            for (Object each : (Iterable<?>) value) {
                out.append(comma);
                write(each, out);
                comma = ",";
            }
            out.append(comma.equals("[") ? "[]" : "]");
        } else {
            out.append('"');
            String text = value.toString();
            for (int i = 0; i < text.length(); i++) {
                char c = text.charAt(i);
                if (c == '"' || c == '\\') out.append('\\').append(c);
                else if (c < ' ' || c > '~') out.append(String.format("\\u%04x", (int) c));
                else out.append(c);
            }
            out.append('"');
        }
    }
}
