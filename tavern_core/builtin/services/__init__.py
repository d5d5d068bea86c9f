"""Services of the host, which plugins may use and, with the highest grant, replace."""
