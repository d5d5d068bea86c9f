"""What programs in a box reach of the network: a proxy for HTTP and tunnels, which the host serves on a socket of the box.

request_head.py       the head of a request, read strictly
destinations.py      where this call may connect to; what is said and recorded where it may not
connection.py      the two sides of one connection: bounded bytes, bounded patience
exchange.py   one request and its answer
listener.py       connections come in, so many at a time
proxy.py      each is judged and served, and ends with the call

It runs in a thread and an event loop of its own, one for all calls of a host: hostile traffic keeps no call waiting. h11 reads and writes the messages; names are looked up in threads of their own.
"""
