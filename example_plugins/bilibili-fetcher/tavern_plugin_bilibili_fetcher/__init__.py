"""bilibili-fetcher: everything is data and a script; see plugin.yaml, tools/ and scripts/."""
