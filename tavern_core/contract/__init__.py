"""The door between the host and plugins. Built-in plugins have no other."""
