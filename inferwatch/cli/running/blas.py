"""Limits NumPy to one BLAS thread, where it is first imported."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit NumPy, if the context is the first to import it, to one BLAS thread.

    Where matrices are small, threads that wait for each other beside a busy engine make
    them slower, too. Processes that we start do not inherit the limit.
    """
    if BLAS_THREADS in os.environ:
        yield
        return
    os.environ[BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[BLAS_THREADS]
