package etude_;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.junit.platform.engine.FilterResult;
import org.junit.platform.engine.TestDescriptor;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.TestSource;
import org.junit.platform.engine.discovery.DiscoverySelectors;
import org.junit.platform.engine.support.descriptor.ClassSource;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.Launcher;
import org.junit.platform.launcher.LauncherDiscoveryRequest;
import org.junit.platform.launcher.PostDiscoveryFilter;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.TestPlan;
import org.junit.platform.launcher.core.LauncherConfig;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

/** Runs the test classes of the wanted files, one after the other, with whatever JUnit each is written for. */
public final class Run implements TestExecutionListener {
    private static Run traced; // null in a grading: nothing static leads to the nonce

    private final Events events;
    private final List<String> testRoots;
    private final Set<String> wanted;
    private final Map<String, String> places = new HashMap<>();
    private final Map<String, Long> started = new HashMap<>();
    private final Set<String> told = new HashSet<>();
    private String path = "";
    private String owner = "<collect>";
    private boolean pending; // what runs now belongs to the next test
    private TestPlan plan;

    @SuppressWarnings("unchecked")
    private Run(Events events, Map<String, Object> settings) throws IOException {
        this.events = events;
        testRoots = (List<String>) settings.get("tests");
        List<String> ids = (List<String>) events.config.get("ids");
        wanted = ids == null ? null : new HashSet<>(ids);
        for (String line : Files.readAllLines(Build.PLACES)) {
            String[] parts = line.split("\t", 2);
            places.put(parts[0], parts[1]);
        }
    }

    @SuppressWarnings("unchecked")
    public static void main(String[] arguments) throws IOException {
        Events events = Events.open();
        Run run = new Run(events, Json.read(Files.readString(Paths.get(arguments[0]))));
        Order.kind = (String) events.config.get("order");
        Order.seed = ((Double) events.config.get("seed")).longValue();
        List<Object> codes = (List<Object>) events.config.get("codes");
        if (codes != null) {
            for (Object code : codes) {
                List<Object> parts = (List<Object>) code;
                events.send("code", ((Double) parts.get(0)).intValue(), parts.get(1), ((Double) parts.get(2)).intValue());
            }
            Trace.on = true;
            traced = run;
        }
        List<String> files = new ArrayList<>((List<String>) events.config.get("files"));
        Order.arrange(files);
        try {
            run.all(files);
        } catch (Throwable error) {
            events.send("error", "junit", Events.firstLine(error));
        }
        run.flush("<between>");
        events.send("done");
        System.out.flush();
        System.err.flush();
        Runtime.getRuntime().halt(0); // whatever threads the tests left behind
    }

    static void aboutToStart() {
        if (traced == null) return;
        if (!traced.pending) traced.flush("<between>");
        traced.pending = true;
    }

    private void all(List<String> files) {
        Launcher launcher = LauncherFactory.create(
            LauncherConfig.builder().enableTestExecutionListenerAutoRegistration(false).enableLauncherSessionListenerAutoRegistration(false).build());
        for (String file : files) {
            Class<?> type = load(file);
            if (type == null) continue;
            path = file;
            flush("<collect>");
            PostDiscoveryFilter filter = this::chosen;
            LauncherDiscoveryRequest request = LauncherDiscoveryRequestBuilder.request()
                .selectors(DiscoverySelectors.selectClass(type))
                .filters(filter)
                .configurationParameter("junit.jupiter.testmethod.order.default", Order.class.getName())
                .configurationParameter("junit.jupiter.testclass.order.default", Order.class.getName())
                .configurationParameter("junit.jupiter.extensions.autodetection.enabled", "true")
                .configurationParameter("junit.jupiter.execution.parallel.enabled", "false")
                .build();
            try {
                TestPlan found = launcher.discover(request);
                flush("<collect>");
                launcher.execute(found, this);
            } catch (Throwable error) {
                events.send("error", file, Events.firstLine(error));
            }
        }
    }

    /** The class of a file's name; null if there is none. */
    private Class<?> load(String file) {
        String root = testRoots.stream().filter(each -> file.startsWith(each + "/")).max((a, b) -> a.length() - b.length()).orElse("");
        String name = file.substring(root.isEmpty() ? 0 : root.length() + 1).replaceAll("\\.java$", "");
        Path place = Build.CLASSES.resolve(name + ".class");
        if (!Files.exists(place)) return null;
        try {
            return Class.forName(name.replace('/', '.'), Trace.on, Run.class.getClassLoader());
        } catch (Throwable error) {
            events.send("error", file, Events.firstLine(error));
            return null;
        }
    }

    // -- choice and names

    private FilterResult chosen(TestDescriptor descriptor) {
        if (descriptor.getClass().getSimpleName().equals("RunnerTestDescriptor")) Order.arrange(descriptor);
        if (wanted == null || !descriptor.isTest()) return FilterResult.included("");
        List<String> names = new ArrayList<>();
        TestDescriptor at = descriptor;
        while (at != null && at.getParent().isPresent()) {
            names.add(0, title(at.getSource().orElse(null), at.getDisplayName(), at.getUniqueId().getLastSegment().getType()));
            at = at.getParent().get();
        }
        return FilterResult.includedIf(wanted.contains(id(names)));
    }

    private String id(TestIdentifier test) {
        List<String> names = new ArrayList<>();
        Optional<TestIdentifier> at = Optional.of(test);
        while (at.isPresent() && plan.getParent(at.get()).isPresent()) {
            TestIdentifier each = at.get();
            names.add(0, title(each.getSource().orElse(null), each.getDisplayName(), each.getUniqueIdObject().getLastSegment().getType()));
            at = plan.getParent(each);
        }
        return id(names);
    }

    private String id(List<String> names) {
        return path + "::" + String.join(" > ", names);
    }

    /** Names of classes and methods as they stand in the code; what is made while it runs by what it is called. */
    private static String title(TestSource source, String shown, String type) {
        if (type.equals("class") || type.equals("nested-class") || (type.equals("runner") && source instanceof ClassSource)) {
            String name = ((ClassSource) source).getClassName();
            return name.substring(Math.max(name.lastIndexOf('.'), name.lastIndexOf('$')) + 1);
        }
        if (source instanceof MethodSource && (type.equals("method") || type.equals("test-template") || type.equals("test-factory"))) {
            return ((MethodSource) source).getMethodName();
        }
        return shown.replaceAll("\\s+", " ").replaceAll("@[0-9a-f]{5,}\\b", "@...").replace("::", ":");
    }

    // -- what happens

    @Override
    public void testPlanExecutionStarted(TestPlan found) {
        plan = found;
        List<String> ids = new ArrayList<>();
        for (TestIdentifier root : found.getRoots()) {
            for (TestIdentifier each : found.getDescendants(root)) if (each.isTest()) ids.add(id(each));
        }
        events.send("items", ids);
        for (TestIdentifier root : found.getRoots()) {
            for (TestIdentifier each : found.getDescendants(root)) if (each.isTest()) where(each);
        }
    }

    @Override
    public void dynamicTestRegistered(TestIdentifier test) {
        if (test.isTest() && counts(test)) {
            events.send("items", List.of(id(test)));
            where(test);
        }
    }

    @Override
    public void executionStarted(TestIdentifier test) {
        if (!test.isTest()) return;
        if (!pending) flush("<between>");
        pending = false;
        owner = id(test);
        if (counts(test)) events.send("start", owner);
        started.put(test.getUniqueId(), System.nanoTime());
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
        String message = result.getThrowable().map(Events::firstLine).orElse("");
        if (test.isTest()) {
            double seconds = (System.nanoTime() - started.remove(test.getUniqueId())) / 1e9;
            flush(owner);
            owner = "<between>";
            if (counts(test)) report(id(test), outcome(result), seconds, message);
            told.add(test.getUniqueId());
        } else if (result.getStatus() != TestExecutionResult.Status.SUCCESSFUL) {
            String kind = outcome(result);
            boolean any = untold(test, kind, message);
            if (!any && kind.equals("failed") && plan.getDescendants(test).stream().noneMatch(TestIdentifier::isTest)) {
                events.send("error", path, message);
            }
        }
    }

    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
        if (test.isTest() && counts(test)) {
            events.send("start", id(test));
            report(id(test), "skipped", 0.0, "");
            told.add(test.getUniqueId());
        }
        untold(test, "skipped", "");
    }

    /** Tests below what failed or was skipped as a whole. */
    private boolean untold(TestIdentifier container, String outcome, String message) {
        boolean any = false;
        for (TestIdentifier each : plan.getDescendants(container)) {
            if (!each.isTest() || !counts(each) || !told.add(each.getUniqueId())) continue;
            events.send("start", id(each));
            report(id(each), outcome, 0.0, message);
            any = true;
        }
        return any;
    }

    private boolean counts(TestIdentifier test) {
        return wanted == null || wanted.contains(id(test));
    }

    private void report(String id, String outcome, double seconds, String message) {
        events.send("report", id, "call", outcome, false, seconds, outcome.equals("failed") ? message : "");
        events.send("report", id, "teardown", "passed", false, 0, "");
    }

    private static String outcome(TestExecutionResult result) {
        switch (result.getStatus()) {
            case SUCCESSFUL: return "passed";
            case ABORTED: return "skipped";
            default: return "failed";
        }
    }

    private void flush(String whose) {
        if (!Trace.on) return;
        int[] always = Trace.takeAlways();
        if (always.length > 0) events.send("reach", "<collect>", always);
        int[] numbers = Trace.take();
        if (numbers.length > 0) events.send("reach", whose, numbers);
    }

    // -- places

    /** The method that is the test, in the class that declares it, which may be above the one that runs. */
    private void where(TestIdentifier test) {
        Optional<TestIdentifier> at = Optional.of(test);
        while (at.isPresent()) {
            TestSource source = at.get().getSource().orElse(null);
            if (source instanceof MethodSource) {
                String place = place((MethodSource) source);
                if (place != null) {
                    String[] parts = place.split("\t");
                    events.send("where", id(test), parts[0], Integer.parseInt(parts[1]));
                }
                return;
            }
            at = plan.getParent(at.get());
        }
    }

    private String place(MethodSource source) {
        String types = source.getMethodParameterTypes();
        int count = types == null || types.isBlank() ? 0 : types.split(",").length;
        String name = source.getMethodName().replaceAll("\\[.*", "");
        List<Class<?>> classes = new ArrayList<>();
        try {
            classes.add(source.getJavaClass());
        } catch (RuntimeException error) {
            return null;
        }
        for (int i = 0; i < classes.size(); i++) {
            Class<?> each = classes.get(i);
            String found = places.get(each.getName() + "#" + name + "#" + count);
            if (found != null) return found;
            if (each.getSuperclass() != null) classes.add(each.getSuperclass());
            classes.addAll(List.of(each.getInterfaces()));
        }
        return null;
    }
}
