"""What runs have in common and where they differ: numbers from run folders alone. Nothing here imports torch."""
