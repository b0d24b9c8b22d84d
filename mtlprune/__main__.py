"""Run mtlprune as a module: python -m mtlprune."""

from mtlprune.cli import main

if __name__ == "__main__":
    main()
