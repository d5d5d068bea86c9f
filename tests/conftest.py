"""What holds for all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# Texts for models follow the locale where nothing else is said.
os.environ.update(LC_ALL="C.UTF-8")

# No test is judged by the clock: a busy machine must not fail a correct program. Bounds of time are for `make soak`.
settings.register_profile("tavern", deadline=None)
settings.load_profile("tavern")

# A shell ignores SIGINT for what it runs in the background, and so do some CI systems. The programs that the tests start would
# inherit that, and could not be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
