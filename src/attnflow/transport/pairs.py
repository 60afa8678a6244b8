"""Functions of two measures that know some pairs of pictures in closed form: `functools.singledispatch` on the first two arguments."""

import functools
import itertools
from collections.abc import Callable
from typing import Any


class ByPair:
    """What serves two measures: what is registered for their pictures, the first measure's before the second's, or the `default`."""

    def __init__(self, default: Callable):
        self.default, self.closed = default, {}
        functools.update_wrapper(self, default)

    def register(self, one: type, other: type) -> Callable[[Callable], Callable]:
        """A decorator: the function serves these two pictures."""

        def keep(function: Callable) -> Callable:
            self.closed[one, other] = function
            return function

        return keep

    def __call__(self, mu: Any, nu: Any, *rest: Any) -> Any:
        pairs = itertools.product(type(mu).__mro__, type(nu).__mro__)
        return next((self.closed[pair] for pair in pairs if pair in self.closed), self.default)(mu, nu, *rest)
