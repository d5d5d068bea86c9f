"""Who may use which tool: lists, profiles and their inventories' files."""
