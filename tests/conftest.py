"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# No test is judged by the clock: a busy machine must not fail a correct program. Bounds of time are for `make soak`.
settings.register_profile("tavern", deadline=None)
settings.load_profile("tavern")
