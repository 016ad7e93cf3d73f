"""What scripts/fleet is made of. Standard library only."""
