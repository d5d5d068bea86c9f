"""The life of plugins: judged, activated, stopped, and what they bring."""
