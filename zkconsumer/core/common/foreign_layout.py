"""How other clients name the znodes of a group. Members of the JVM and of this library ignore them.

Pure. The patterns are also valid in Java.
"""

from __future__ import annotations

from typing import Final

BROKER_PARTITION: Final = r"[0-9]+-[0-9]+"
"""A whole name ``{broker}-{partition}``: pykafka and Kafka 0.7."""
BYTES_NAME: Final = r"b(['\"]).*\1"
"""A whole name of a topic: pykafka on Python 3 writes the text of a bytes object."""
