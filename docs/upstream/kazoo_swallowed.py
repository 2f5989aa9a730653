"""If a signal handler raises while kazoo sends a request, kazoo swallows the exception, even that
of Ctrl-C. The request was sent but counts as failed."""

import signal

from kazoo.client import KazooClient
from scripted import Server, verdict

server = Server()
client = KazooClient(server.address, timeout=3.0)
client.start()
pipe = client._connection._write_sock


class Interrupted:
    """Ctrl-C at the moment of the send."""

    def send(self, data: bytes) -> int:
        client._connection._write_sock = pipe
        sent = pipe.send(data)
        signal.raise_signal(signal.SIGINT)
        return sent


signal.signal(signal.SIGINT, signal.default_int_handler)
client._connection._write_sock = Interrupted()
try:
    request = client.exists_async("/a")
    swallowed = True
except KeyboardInterrupt:
    swallowed = False
verdict(swallowed, f"Ctrl-C did not arrive; the request: {request.exception!r}")
