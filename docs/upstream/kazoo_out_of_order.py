"""A response out of order ends kazoo's connection thread. The client never connects again."""

import contextlib
import time

from kazoo.client import KazooClient
from scripted import Server, good, honest, verdict

server = Server()
client = KazooClient(server.address, timeout=3.0)
client.start()
assert client.exists("/a") is None
server.answer = lambda xid, _op: [good(xid + 1 if xid > 0 else xid)]
with contextlib.suppress(Exception):
    client.exists_async("/a").get(timeout=5)
server.answer = honest
connected_before = server.connections
time.sleep(2.0)  # kazoo tries again after 0.1 s
dead = not client._connection._connection_routine.is_alive()
verdict(
    dead and server.connections == connected_before and not client.connected,
    f"after one answer with a wrong xid the thread is {'dead' if dead else 'alive'}, "
    f"{server.connections - connected_before} new connections, state {client.state}",
)
