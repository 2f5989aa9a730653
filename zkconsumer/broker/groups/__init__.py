"""Groups at their coordinators: members of both protocols, offsets, descriptions."""
