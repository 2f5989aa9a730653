"""What members of both kinds of group share: no IO, no time, no threads."""
