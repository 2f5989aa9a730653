"""kazoo counts requests that it sends as answered pings. So while a program sends requests, kazoo
does not notice that its server is silent, and does not try the next one."""

import time

from kazoo.client import KazooClient
from scripted import Server, silent, verdict

healthy = Server()
server = Server()
client = KazooClient(f"{server.address},{healthy.address}", timeout=3.0, randomize_hosts=False)
client.start()
server.answer = silent
begun = time.monotonic()
while time.monotonic() - begun < 9.0:
    client.exists_async("/a")
    time.sleep(0.3)
verdict(
    client.connected and healthy.connections == 0,
    f"9 s of silence with a session of 3 s: connected is {client.connected}, "
    f"the healthy server was asked {healthy.connections} times",
)
