"""The one path of every call, and the texts that lead to it."""
