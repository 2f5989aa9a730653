"""The configuration: one table of keys that drives parsing, the command line and the reference.

Owns no thread and reads nothing but the properties file it is given.
"""

from zkconsumer.config.consumer import ConsumerConfig

__all__ = ["ConsumerConfig"]
