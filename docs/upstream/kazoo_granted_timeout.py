"""kazoo believes an absurd session timeout in the response of one server.

It then waits that long for a silent server, although the next server is healthy.
"""

from kazoo.client import KazooClient
from scripted import Server, session, silent, verdict

healthy = Server()
broken = Server(answer=silent, accept=lambda _zxid: session(2**31 - 1))
client = KazooClient(f"{broken.address},{healthy.address}", timeout=1.0, randomize_hosts=False)
client.start()
request = client.exists_async("/a")
answered = request.wait(4.0)
verdict(
    not answered and healthy.connections == 0,
    f"asked for 1 s; after 4 s the request is {'answered' if answered else 'waiting'}, "
    f"and the healthy server was asked {healthy.connections} times",
)
