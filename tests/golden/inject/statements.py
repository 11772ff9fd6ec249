"""Several kinds of statements."""
import math


def f(x, y=1):
    a = (x
         + y)
    if a > 2: b = math.sqrt(a); c = b * 2
    for i, j in zip([1], [2]):
        a += i * j
    with open(__file__) as h: d = h.name
    while a < 0:
        a += 1
    return g(a,
             y)  # done


def g(p, q):
    yield p
    k = yield q
    return
