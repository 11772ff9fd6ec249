"""Wall-clock timers, as a context and as a decorator."""
import functools
import time
from collections import defaultdict
from contextlib import contextmanager

_ELAPSED = defaultdict(float)


@contextmanager
def timed(name):
    """Add the time spent in the block to `name`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        _ELAPSED[name] += time.perf_counter() - start


def scoped(name):
    """Decorator form of `timed`."""
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            with timed(name):
                return function(*args, **kwargs)
        return wrapper
    return decorate


def pop_ms(name):
    """Milliseconds since the last call, and start again."""
    return 1000.0 * _ELAPSED.pop(name, 0.0)
