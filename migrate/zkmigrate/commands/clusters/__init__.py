"""Plans between two clusters: ``to_cluster``, and ``from_cluster`` for the way back."""
