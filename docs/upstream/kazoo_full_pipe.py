"""Without a connection ``get_async`` and similar calls block after a few hundred requests.

The pipe that wakes the connection thread is full.
"""

import threading
import time

from kazoo.client import KazooClient
from scripted import Server, verdict

server = Server()
client = KazooClient(server.address, timeout=10.0)
client.start()
server.close()
sent = 0


def send() -> None:
    global sent
    while True:
        client.exists_async("/a")
        sent += 1


while client.connected:
    time.sleep(0.05)
sending = threading.Thread(target=send, daemon=True)
sending.start()
time.sleep(2.0)
before = sent
time.sleep(2.0)
verdict(
    sent == before and sent < 100_000,
    f"the call that must not block has been blocking for 2 s, after {sent} requests",
)
