"""TLS of a connection to a broker, and why a broker ended a connection or does not answer.

The checks use another connection, without credentials. Stateless; runs on the thread that owns the
connection.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from typing import Any, Final

from zkconsumer.broker.api_versions import LIST_OFFSETS, supported_versions
from zkconsumer.errors import AuthenticationError, BrokerError

_QUIET_S: Final = 1.0
"""Seconds without an answer after which a broker may be a silent one."""
_PROBE_S: Final = 3.0
_SILENT_SECONDS: Final = 600.0
"""Seconds after which a silent broker is asked again: it may have been upgraded."""
_NO_TOPICS: Final = b"\xff\xff\xff\xff\0\0\0\0"


def wait_for_versions(connection: Any, sock: socket.socket, seconds: float) -> None:
    """Wait until the broker answers the request for its API versions.

    A 0.9 broker never answers it. So if there is no answer, this function sends an older request on
    another connection. A broker that answers only the older request is recorded in
    ``silent_until``, and TimeoutError is raised at once. Any other broker may be slow: TimeoutError
    is raised after ``seconds``.
    """
    until = time.monotonic() + seconds
    if not connection.security.sasl:
        quiet = min(_QUIET_S, seconds / 4)
        if _answers(sock, quiet):
            return
        share = min(_PROBE_S, seconds / 4)
        probe = type(connection)(connection.here, "", share, 0, connection.security)
        try:
            probe._connect()
            probe.exchange(LIST_OFFSETS, 0, _NO_TOPICS)
        except (OSError, BrokerError):
            pass
        else:
            if not _answers(sock, quiet):
                silent_until = connection.security.silent_until
                silent_until[connection.here.host, connection.here.port] = (
                    time.monotonic() + _SILENT_SECONDS
                )
                raise TimeoutError
        finally:
            probe.close()
    if not _answers(sock, until - time.monotonic()):
        raise TimeoutError


def _answers(sock: socket.socket, seconds: float) -> bool:
    """Whether there is something to receive within this time."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(max(seconds, 0.0)))


def encrypted(connection: Any, sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Carry out the TLS handshake of a ``BrokerConnection``. The socket keeps its timeout."""
    try:
        return context.wrap_socket(sock, server_hostname=connection.here.host)
    except ssl.SSLError as error:
        connection.security.tls_failed(connection.endpoint, error)
        _look_for_plaintext(connection)
        raise
    except ConnectionError:
        _look_for_plaintext(connection)
        raise


def _look_for_plaintext(connection: Any) -> None:
    """Request the broker's versions without TLS. Nothing else is sent."""
    security = connection.security
    probe = type(connection)(connection.here, "", connection.timeout, 0)
    try:
        probe._connect()
        plaintext = supported_versions(probe) is not None
    except (OSError, BrokerError, AuthenticationError):
        return
    finally:
        probe.close()
    if plaintext:
        security.refuse(
            connection.endpoint,
            f"this listener speaks no TLS, but security.protocol={security.protocol}",
        )


def look_for_sasl(connection: Any) -> None:
    """Find out whether a listener that closed the connection requires SASL, by asking for its
    mechanisms.

    Raises the errors of ``security.refuse`` if it does.
    """
    from zkconsumer.broker.sasl import enabled_mechanisms

    security = connection.security
    probe = type(connection)(connection.here, "", connection.timeout, 0, security)
    try:
        probe.open()
        enabled = enabled_mechanisms(probe)
    except BrokerError:
        return
    finally:
        probe.close()
    if enabled is not None:
        wanted = "SASL_SSL" if security.context is not None else "SASL_PLAINTEXT"
        security.refuse(
            connection.endpoint,
            f"this listener wants SASL ({', '.join(enabled)}), but security.protocol="
            f"{security.protocol}: set {wanted} and sasl.mechanism",
        )
