"""A request that is answered with an error number that kazoo does not know is never
completed, and the connection thread ends."""

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
