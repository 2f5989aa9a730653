"""Membership of a group on the broker's coordinator: the classic protocol and KIP-848."""
