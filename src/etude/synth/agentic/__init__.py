"""Feature deletion by an agent: the harness of agent/ with tools that only take away, and a machine that accepts only that."""
