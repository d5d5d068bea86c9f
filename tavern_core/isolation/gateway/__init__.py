"""The network access of programs in a box: a proxy for HTTP and tunnels, which the host serves on a socket of the box.

destinations.py   the allowed destinations of this call; refusals and their records
byte_relay.py     the two sides of one connection: limited bytes, limited idle time
exchange.py       one request, its head read strictly, and its answer
proxy.py          accepts connections, a limited number at a time; checks and serves each one; all end with the call

It runs in its own thread and event loop, one for all calls of a host, so hostile traffic delays no call. h11 reads
and writes the messages; names are resolved in separate threads.
"""
