"""Requests to servers of tests, which speak HTTP without TLS."""

from __future__ import annotations

import ssl
from typing import Final

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For `verify`: by default, each client reads the public authorities, which takes longer than opening a host."""
