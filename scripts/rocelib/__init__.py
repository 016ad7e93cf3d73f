"""What scripts/soft_roce is made of. Standard library only."""
