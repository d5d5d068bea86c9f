"""What plugin.yaml and tool files say, and what they must say."""
