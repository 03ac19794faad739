"""Runs ``python -m inferwatch.cli``, the same as the ``inferwatch`` command."""

from inferwatch.cli.main import main

main()
