"""Agents: a model that works on a task through governed calls, within its budgets."""
