"""Limits on calls: rates, concurrency, circuit breakers, and cached answers."""
