"""Tools of the host itself, in the namespace ``system:``."""
