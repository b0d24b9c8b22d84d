"""What `python -m mtlprune` starts."""

from mtlprune.cli import main

if __name__ == "__main__":
    main()
