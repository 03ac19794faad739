"""Reads traces: ``python -m inferwatch.profiles``, a job on standard input."""

from inferwatch.profiles.reading import main

raise SystemExit(main())
