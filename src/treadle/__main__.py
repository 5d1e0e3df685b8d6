"""Lets ``python -m treadle`` do what the command ``treadle`` does."""

from treadle.cli.main import main

main()
