"""The command line `tavern`: an entry point. It translates commands and prints results; it makes no decisions."""
