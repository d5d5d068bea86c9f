"""The HTTP and WebSocket API of a host: one table of routes (`routes.py`), and the ASGI application that serves it."""
