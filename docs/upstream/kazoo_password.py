"""A session password that cannot be read (length -1) ends the connection thread.

The thread never makes its next attempt, which the server would have accepted.
"""

import time

from kazoo.client import KazooClient
from scripted import Server, session, verdict

passwords = [None]
server = Server(accept=lambda _zxid: session(3000, passwords.pop() if passwords else b"p" * 16))
client = KazooClient(server.address, timeout=3.0)
client.start_async()
time.sleep(2.0)
dead = not client._connection._connection_routine.is_alive()
verdict(
    dead and server.connections == 1 and not client.connected,
    f"after one such answer the thread is {'dead' if dead else 'alive'}, "
    f"{server.connections} connection, state {client.state}",
)
