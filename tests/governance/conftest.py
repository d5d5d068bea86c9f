"""What holds for the tests of this folder."""

from tests.no_installed_plugins import _no_installed_plugins

__all__ = ["_no_installed_plugins"]
