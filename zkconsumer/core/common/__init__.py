"""Types and algorithms for members of both kinds of group: no IO, no time, no threads."""
