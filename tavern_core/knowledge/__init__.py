"""Knowledge bases: folders of Markdown, split into passages, indexed and searched (docs/knowledge.md).

chunking.py   text → passages          index.py       passages in SQLite
folders.py     folder → files           knowledge.py   the knowledge bases of one host
"""
