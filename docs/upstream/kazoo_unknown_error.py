"""If a server answers a request with an error code that kazoo does not know, the request never
completes, and the connection thread ends."""

from kazoo.client import KazooClient
from scripted import PING, Server, good, verdict

server = Server(lambda xid, _op: [good(xid, None if xid == PING else -200)])
client = KazooClient(server.address, timeout=3.0)
client.start()
request = client.exists_async("/a")
answered = request.wait(4.0)
dead = not client._connection._connection_routine.is_alive()
verdict(
    not answered and dead,
    f"after 4 s the request is {'answered' if answered else 'not answered'}, "
    f"the thread is {'dead' if dead else 'alive'}",
)
