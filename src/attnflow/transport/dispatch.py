"""Functions of two measures that know some pairs of pictures in closed form: `functools.singledispatch` on the first two arguments."""

import functools
import itertools
from collections.abc import Callable
from typing import Any


class ByPair:
    """Calls what is registered for the pictures of two measures, the first measure's before the second's, or else the `default`."""

    def __init__(self, default: Callable[..., Any]) -> None:
        self.default: Callable[..., Any] = default
        self.registered: dict[tuple[type, type], Callable[..., Any]] = {}
        functools.update_wrapper(self, default)

    def register(self, one: type, other: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator: the function serves these two pictures."""

        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            self.registered[one, other] = function
            return function

        return keep

    def __call__(self, mu: object, nu: object, *rest: object) -> Any:
        pairs = itertools.product(type(mu).__mro__, type(nu).__mro__)
        return next((self.registered[pair] for pair in pairs if pair in self.registered), self.default)(mu, nu, *rest)
