"""Who implements which hook, and how implementations are called."""
