"""The configuration: one table of keys that drives parsing, the command line and the reference.

Owns no thread and reads only the given properties file.
"""

from zkconsumer.config.consumer import ConsumerConfig

__all__ = ["ConsumerConfig"]
