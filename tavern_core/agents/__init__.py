"""Agents: a model that works on a task through the governed path, within its budgets."""
