"""The entry point of ``python -m mtlprune``."""

from mtlprune.cli import main

if __name__ == "__main__":
    main()
