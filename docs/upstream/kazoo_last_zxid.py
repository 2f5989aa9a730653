"""A server that has seen fewer transactions than the client (an ensemble restored from a backup)
closes each of the client's connections. kazoo retries indefinitely and only reports SUSPENDED."""

import socket
import time

from kazoo.client import KazooClient
from scripted import Server, session, verdict

latest = [1]
server = Server(accept=lambda zxid: session(1000) if zxid <= latest[0] else None)
client = KazooClient(
    server.address, timeout=1.0, connection_retry={"max_tries": -1, "max_delay": 0.1}
)
client.start()
assert client.exists("/a") is None  # its response has transaction 1
latest[0] = 0
client._connection._socket.shutdown(socket.SHUT_RDWR)
time.sleep(4.0)
verdict(
    not client.connected and client.state == "SUSPENDED" and server.connections > 10,
    f"four session timeouts later: {server.connections} connections, state {client.state}",
)
