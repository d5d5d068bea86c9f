"""Entry points for other processes: an MCP server. Like the command line, it translates and decides nothing."""
