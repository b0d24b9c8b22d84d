"""python -m mtlprune, and what `torchrun -m mtlprune` starts."""

from mtlprune.cli import main

main()
