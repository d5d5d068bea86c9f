"""The engine: runs compiled workflows, in parallel, with events, cache, cancellation and limits."""
