package etude_;

import com.sun.source.tree.ClassTree;
import com.sun.source.tree.CompilationUnitTree;
import com.sun.source.tree.MethodTree;
import com.sun.source.util.JavacTask;
import com.sun.source.util.TaskEvent;
import com.sun.source.util.TaskListener;
import com.sun.source.util.TreeScanner;
import com.sun.source.util.Trees;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.tools.Diagnostic;
import javax.tools.DiagnosticCollector;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.StandardJavaFileManager;
import javax.tools.ToolProvider;

/**
 * Compiles every source and the wanted test files into a folder. A test file that does not compile is reported and left out; a source that
 * does not compile ends the build with code 1. Writes down where each method stands. No annotation processor runs.
 */
public final class Build {
    static final Path CLASSES = Paths.get("/tmp/etude-classes");
    static final Path PLACES = Paths.get("/tmp/etude-places");

    private final Events events;
    private final List<String> sourceRoots;
    private final List<String> testRoots;
    private final Set<String> leftOut;
    private final List<String> options;
    private final Map<String, String> places = new TreeMap<>();

    @SuppressWarnings("unchecked")
    private Build(Events events, Map<String, Object> settings) {
        this.events = events;
        sourceRoots = (List<String>) settings.get("sources");
        testRoots = (List<String>) settings.get("tests");
        leftOut = new LinkedHashSet<>((List<String>) settings.get("left_out"));
        options = new ArrayList<>((List<String>) settings.get("options"));
        options.addAll(List.of("-proc:none", "-nowarn", "-g", "-Xmaxerrs", "10000", "-implicit:class", "-d", CLASSES.toString()));
        options.addAll(List.of("-classpath", System.getProperty("java.class.path")));
        List<String> roots = Stream.concat(sourceRoots.stream(), testRoots.stream()).collect(Collectors.toList());
        options.addAll(List.of("-sourcepath", String.join(File.pathSeparator, roots)));
    }

    public static void main(String[] arguments) throws IOException {
        Events events = Events.open();
        Map<String, Object> settings = Json.read(Files.readString(Paths.get(arguments[0])));
        boolean done = new Build(events, settings).run();
        System.out.flush();
        Runtime.getRuntime().halt(done ? 0 : 1);
    }

    private boolean run() throws IOException {
        List<String> sources = new ArrayList<>();
        for (String root : sourceRoots) sources.addAll(javaFiles(root));
        Set<String> tests = new LinkedHashSet<>();
        for (Object path : (List<?>) events.config.get("files")) if (Files.isRegularFile(Paths.get((String) path))) tests.add((String) path);
        while (true) {
            Map<String, String> errors = compile(sources, tests);
            if (errors.isEmpty()) break;
            Set<String> bad = new LinkedHashSet<>(errors.keySet());
            bad.retainAll(tests);
            for (Map.Entry<String, String> error : errors.entrySet()) {
                if (bad.isEmpty() || bad.contains(error.getKey())) events.send("error", error.getKey(), error.getValue());
            }
            if (bad.isEmpty() || !bad.containsAll(errors.keySet())) {
                errors.keySet().removeAll(bad);
                for (Map.Entry<String, String> error : errors.entrySet()) {
                    if (!bad.isEmpty()) events.send("error", error.getKey(), error.getValue());
                    System.out.println(error.getKey() + ": error: " + error.getValue());
                }
                return false;
            }
            tests.removeAll(bad);
        }
        Files.write(PLACES, places.entrySet().stream().map(each -> each.getKey() + "\t" + each.getValue()).collect(Collectors.toList()));
        return true;
    }

    private List<String> javaFiles(String root) throws IOException {
        if (!Files.isDirectory(Paths.get(root))) return Collections.emptyList();
        try (Stream<Path> found = Files.walk(Paths.get(root))) {
            return found.filter(path -> path.toString().endsWith(".java") && Files.isRegularFile(path))
                .map(path -> path.normalize().toString())
                .filter(path -> !path.endsWith("module-info.java") && !leftOut.contains(path) && !isBelow(path, testRoots, root))
                .sorted()
                .collect(Collectors.toList());
        }
    }

    private static boolean isBelow(String path, List<String> roots, String but) {
        return roots.stream().anyMatch(root -> root.length() > but.length() && path.startsWith(root + "/"));
    }

    /** File -> its first error; empty if all is well. */
    private Map<String, String> compile(List<String> sources, Set<String> tests) throws IOException {
        wipe();
        places.clear();
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        DiagnosticCollector<JavaFileObject> told = new DiagnosticCollector<>();
        StandardJavaFileManager files = compiler.getStandardFileManager(told, Locale.ROOT, StandardCharsets.UTF_8);
        List<String> all = new ArrayList<>(sources);
        all.addAll(tests);
        if (all.isEmpty()) return Collections.emptyMap();
        JavacTask task = (JavacTask) compiler.getTask(null, files, told, options, null, files.getJavaFileObjectsFromStrings(all));
        Trees trees = Trees.instance(task);
        task.addTaskListener(new TaskListener() {
            @Override
            public void finished(TaskEvent event) {
                if (event.getKind() == TaskEvent.Kind.PARSE) note(event.getCompilationUnit(), trees);
            }
        });
        boolean done = task.call();
        Map<String, String> errors = new LinkedHashMap<>();
        for (Diagnostic<? extends JavaFileObject> each : told.getDiagnostics()) {
            if (each.getKind() != Diagnostic.Kind.ERROR) continue;
            String path = each.getSource() == null ? "javac" : relative(each.getSource());
            String message = each.getMessage(Locale.ROOT).lines().map(String::strip).collect(Collectors.joining(" "));
            errors.putIfAbsent(path, "line " + each.getLineNumber() + ": " + message);
        }
        if (!done && errors.isEmpty()) errors.put("javac", "it failed without a reason");
        return errors;
    }

    private static String relative(JavaFileObject file) {
        Path path = Paths.get(file.toUri());
        Path here = Paths.get("").toAbsolutePath();
        return path.startsWith(here) ? here.relativize(path).toString() : path.toString();
    }

    private void note(CompilationUnitTree unit, Trees trees) {
        String path = relative(unit.getSourceFile());
        if (testRoots.stream().noneMatch(root -> path.startsWith(root + "/"))) return;
        String start = unit.getPackageName() == null ? "" : unit.getPackageName() + ".";
        new TreeScanner<Void, String>() {
            @Override
            public Void visitClass(ClassTree node, String owner) {
                String name = owner.endsWith("$") || owner.equals(start) ? owner + node.getSimpleName() : owner + "$" + node.getSimpleName();
                return super.visitClass(node, name);
            }

            @Override
            public Void visitMethod(MethodTree node, String owner) {
                long offset = trees.getSourcePositions().getEndPosition(unit, node) - 1;
                long line = unit.getLineMap().getLineNumber(Math.max(offset, 0));
                places.putIfAbsent(owner + "#" + node.getName() + "#" + node.getParameters().size(), path + "\t" + line);
                return super.visitMethod(node, owner);
            }
        }.scan(unit, start);
    }

    private static void wipe() throws IOException {
        if (Files.exists(CLASSES)) {
            try (Stream<Path> found = Files.walk(CLASSES)) {
                for (Path path : found.sorted(Comparator.reverseOrder()).collect(Collectors.toList())) Files.delete(path);
            }
        }
        Files.createDirectories(CLASSES);
    }
}
