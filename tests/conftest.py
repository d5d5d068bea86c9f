"""What holds for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tavern_core.isolation.worker_fork_server import worker_server

# Texts for models follow the locale where nothing else is said.
os.environ.update(LC_ALL="C.UTF-8")

# No test is judged by the clock: a busy machine must not fail a correct program. Bounds of time are for `make soak`.
settings.register_profile("tavern", deadline=None)
settings.load_profile("tavern")

# A shell ignores SIGINT for what it runs in the background, and so do some CI systems. The programs that the tests start would
# inherit that, and could not be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_fork_server() -> Iterator[None]:
    """Workers share one fork server for all tests of this process, as the hosts of one program do."""
    worker_server.use()
    yield
    worker_server.leave()
