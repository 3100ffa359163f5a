package etude_;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.junit.jupiter.api.ClassOrderer;
import org.junit.jupiter.api.ClassOrdererContext;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.MethodOrdererContext;
import org.junit.platform.engine.TestDescriptor;
import org.junit.runner.Description;
import org.junit.runner.Runner;
import org.junit.runner.manipulation.Sorter;

/** The order of tests inside a class: JUnit 5 asks this class, JUnit 4's runners are sorted by it. */
public final class Order implements MethodOrderer, ClassOrderer {
    static String kind = "plain";
    static long seed;

    static <T> void arrange(List<T> items) {
        if (kind.equals("reversed")) Collections.reverse(items);
        if (kind.equals("shuffled")) Collections.shuffle(items, new java.util.Random(seed));
    }

    @Override
    public void orderMethods(MethodOrdererContext context) {
        arrange(context.getMethodDescriptors());
    }

    @Override
    public void orderClasses(ClassOrdererContext context) {
        arrange(context.getClassDescriptors());
    }

    /** A class of JUnit 4, before it runs. */
    static void arrange(TestDescriptor descriptor) {
        try {
            Field field = descriptor.getClass().getDeclaredField("runner");
            field.setAccessible(true);
            Runner runner = (Runner) field.get(descriptor);
            List<Description> order = new ArrayList<>();
            gather(runner.getDescription(), order);
            new Sorter((one, other) -> order.indexOf(one) - order.indexOf(other)).apply(runner);
        } catch (ReflectiveOperationException | RuntimeException error) {
            return; // a runner that cannot be sorted keeps its order
        }
    }

    private static void gather(Description description, List<Description> order) {
        List<Description> children = new ArrayList<>(description.getChildren());
        arrange(children);
        for (Description child : children) {
            order.add(child);
            gather(child, order);
        }
    }
}
