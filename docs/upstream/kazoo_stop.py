"""``stop()`` waits without a limit for a silent server while another thread still sends
requests."""

import threading
import time

from kazoo.client import KazooClient
from scripted import Server, silent, verdict

server = Server()
client = KazooClient(server.address, timeout=1.0)
client.start()
server.answer = silent


def read() -> None:
    while True:
        client.exists_async("/a")
        time.sleep(0.1)


threading.Thread(target=read, daemon=True).start()
stopping = threading.Thread(target=client.stop, daemon=True)
stopping.start()
stopping.join(12.0)
verdict(stopping.is_alive(), "stop() with a session of 1 s has not returned after 12 s")
