"""TLS of a connection to a broker, and checks why a broker ended a connection.

The checks use another connection, without credentials. Stateless; runs on the thread that owns the
connection.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

from zkconsumer.broker.api_versions import supported_versions
from zkconsumer.errors import AuthenticationError, BrokerError


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
    """Request the SASL mechanisms, because a listener with SASL closes the connection on all other
    requests.

    Raises the errors of ``security.refuse`` if there are any.
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
