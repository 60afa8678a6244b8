"""Names for what users pass.

They are for readers and type checkers. At run time a user may pass anything, and the checks of the library refuse what does not fit, in one
line. So at run time these names are `Any`, and no checker of annotations speaks first.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Protocol, TypeAlias

    import jax.typing
    import numpy.typing
    from jaxtyping import Array, PRNGKeyArray

    from attnflow.measures import Measure

    # Numbers of any shape: a list, an array of NumPy or JAX, a traced array.
    ArrayLike: TypeAlias = numpy.typing.ArrayLike
    # One number.
    Scalar: TypeAlias = float | numpy.number | Array
    # A type of numbers.
    DType: TypeAlias = jax.typing.DTypeLike
    # A file or a folder.
    PathLike: TypeAlias = str | os.PathLike[str]
    # A key of `jax.random`.
    Key: TypeAlias = PRNGKeyArray
    # A measure; which pictures fit, each function says.
    MeasureLike: TypeAlias = Measure
    # A function of rows of points, `[n, d] -> [n, ...]`.
    RowFunction: TypeAlias = Callable[[Array], Array]
    # Arrays in nested tuples, lists, dicts and modules.
    PyTree: TypeAlias = Any
    # A function of a measure, whose value is a number, an array or a pytree of those.
    Observable: TypeAlias = Callable[[Any], Any]

    class FieldLike(Protocol):
        """A field, or any object with `at(mu, t, sums) -> velocity`."""

        def at(self, mu: Any, t: Any = 0.0, sums: Any = None) -> Any: ...

else:
    from jaxtyping import PyTree as PyTree

    ArrayLike = Scalar = DType = PathLike = Key = RowFunction = Observable = FieldLike = MeasureLike = Any
