"""The only package that uses kafka-python."""
