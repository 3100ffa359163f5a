"""Java: javac and JUnit 3, 4 and 5."""
