package etude_;

import java.util.BitSet;

/** Which definitions ran: the numbers of those whose bodies called hit() since the last take(). Off unless Run switches it on. */
public final class Trace {
    static boolean on;
    private static final BitSet SEEN = new BitSet();
    private static final BitSet ALWAYS = new BitSet(); // by initialisers of classes
    private static int depth;

    private Trace() {}

    public static void hit(int number) {
        if (on) {
            synchronized (SEEN) {
                (depth > 0 ? ALWAYS : SEEN).set(number);
            }
        }
    }

    public static void enter() {
        synchronized (SEEN) {
            depth++;
        }
    }

    public static void leave() {
        synchronized (SEEN) {
            depth--;
        }
    }

    static int[] take() {
        return taken(SEEN);
    }

    static int[] takeAlways() {
        return taken(ALWAYS);
    }

    private static int[] taken(BitSet set) {
        synchronized (SEEN) {
            int[] numbers = set.stream().toArray();
            set.clear();
            return numbers;
        }
    }
}
