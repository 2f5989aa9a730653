"""Membership by the consumer group protocol (KIP-848): the third pure machine, and its data."""
