"""Checks of paths and addresses, for gates and for plugins that open them (SECURITY §5)."""
