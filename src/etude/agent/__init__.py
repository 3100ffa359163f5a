"""The agent: a loop, seven tools, and policies that stand in for a model."""
