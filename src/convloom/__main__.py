"""``python -m convloom`` is the same as ``convloom``."""

from convloom.cli.main import run

if __name__ == "__main__":
    run()
