"""A response that arrives twice ends kazoo's connection thread, because it looks for a request that
does not exist."""

import time

from kazoo.client import KazooClient
from scripted import Server, good, honest, verdict

server = Server()
client = KazooClient(server.address, timeout=3.0)
client.start()
server.answer = lambda xid, _op: [good(xid), good(xid)]
assert client.exists("/a") is None
server.answer = honest
time.sleep(2.0)
dead = not client._connection._connection_routine.is_alive()
verdict(
    dead and server.connections == 1,
    f"after a repeated answer the thread is {'dead' if dead else 'alive'}, "
    f"{server.connections - 1} new connections, state {client.state}",
)
