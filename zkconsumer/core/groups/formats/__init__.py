"""Byte formats that members of a group and its coordinator send or store."""
