"""Checks of arguments. A wrong one is refused in one line: its name, what was expected, what was got, and the cure.

Each check returns the value that it was given, with its type. Checks look at types and at values that are known; they run before anything
is computed, and take microseconds.
"""

import contextlib
import difflib
import inspect
import operator
import os
import pathlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from attnflow._types import DType

_T = TypeVar("_T")
# Packages whose frames may stand between a user's line and a check.
_LIBRARIES = frozenset(("attnflow", "jax", "equinox", "diffrax", "jaxtyping", "beartype", "contextlib", "functools"))


def shown(value: object) -> str:
    """A value in a few words, on one line."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str):
        return repr(value if len(value) < 60 else value[:57] + "...")
    if isinstance(value, jax.Array | np.ndarray):
        if _is_key(value):
            return "a key" if value.ndim == 0 else f"keys {list(value.shape)}"
        if value.ndim == 0 and not isinstance(value, jax.core.Tracer):
            return str(value)
        return f"an array {list(value.shape)} of {value.dtype}"
    if value is None or isinstance(value, bool | int | float | complex | np.generic):
        return str(value)
    if isinstance(value, list | tuple | dict | set):
        line = repr(value)
        return line if len(line) < 60 and "\n" not in line else f"a {type(value).__name__} of {len(value)}"
    if inspect.isfunction(value) or inspect.isbuiltin(value) or inspect.ismethod(value):
        return f"the function {value.__name__}"
    if inspect.ismodule(value):
        return f"the module {value.__name__}"
    return type(value).__name__


def refusal(name: str, expected: str, value: object, cure: str = "") -> str:
    """`name must be this, got that; the cure`."""
    return f"{name} must be {expected}, got {shown(value)}{'; ' if cure else ''}{cure}"


def instance(name: str, value: object, types: type[_T] | tuple[type[_T], ...], expected: str, cure: str = "") -> _T:
    """`value`, refused unless it is an object of these types. For a string or a class in its place the error says how to make one."""
    if isinstance(value, types):
        return value
    raise TypeError(refusal(name, expected, value, _how_to_make(name, value, types) or cure))


def function(name: str, value: _T, expected: str, cure: str = "") -> _T:
    """`value`, refused unless it can be called: a function, or an object with `__call__`; a class is neither."""
    if callable(value) and not isinstance(value, type):
        return value
    raise TypeError(refusal(name, expected, value, _how_to_make(name, value) or cure))


def field(name: str, value: _T) -> _T:
    """`value`, refused unless it is a law or a field: an object with `at(mu, t, sums)`."""
    if not isinstance(value, type) and callable(getattr(value, "at", None)):
        return value
    cure = "such as af.simple_attention(beta, dim)"
    if hasattr(value, "integrate"):
        cure = "the law comes before the measure"
    elif isinstance(value, jax.Array | np.ndarray):
        cure = "make a law of matrices, af.Attention(af.dot_product(Q, K), V)"
    raise TypeError(refusal(name, "a law or a field, with a method at(mu, t, sums)", value, _how_to_make(name, value) or cure))


def measure(name: str, value: object, types: type[_T] | tuple[type[_T], ...], expected: str = "Particles, a Gaussian or a Grid") -> _T:
    """`value`, refused unless it is a measure of these types. For tokens, paths and distributions the error says how to get a measure."""
    if isinstance(value, types):
        return value
    raise TypeError(refusal(name, expected, value, _how_to_get_a_measure(value)))


def path(name: str, value: object, types: type[_T], measures: type | tuple[type, ...], expected: str) -> _T:
    """`value`, refused unless it is a path of measures of these types."""
    if not isinstance(value, types):
        cure = "af.solve(field, mu, t1) makes a path" + (" of this measure" if hasattr(value, "integrate") else "")
        raise TypeError(refusal(name, expected, value, cure))
    found = getattr(value, "measure", None)
    if not isinstance(found, measures):
        raise TypeError(f"{name} must be {expected}, got a path of {type(found).__name__}")
    return value


def key(name: str, value: _T, optional: bool = False) -> _T:
    """`value`, refused unless it is one random key."""
    if optional and value is None:
        return value
    # A key of the new style is an array of no axes, one of the old style two integers.
    if isinstance(value, jax.Array) and (value.shape == () if _is_key(value) else value.dtype == np.uint32 and value.shape == (2,)):
        return value
    seed = value if isinstance(value, int | np.integer) and not isinstance(value, bool) else 0
    raise TypeError(refusal(name, "a random key", value, f"give {name}=jax.random.key({seed})"))


def count(name: str, value: object, least: int = 1, most: int | None = None, cure: str = "") -> int:
    """A whole number in a range."""
    try:
        found = operator.index(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, jax.errors.JAXTypeError):
        found = None
    if found is None or isinstance(value, bool | np.bool_):
        raise TypeError(refusal(name, "a whole number", value, cure))
    if found < least or (most is not None and found > most):
        raise ValueError(refusal(name, f"at least {least}" if most is None else f"from {least} to {most}", value, cure))
    return found


def flag(name: str, value: object) -> bool:
    """True or False, and nothing that Python only takes for one of them."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError(refusal(name, "True or False", value))


def choice(name: str, value: object, options: Iterable[str]) -> str:
    """One of a few words."""
    options = tuple(options)
    if isinstance(value, str) and value in options:
        return value
    expected = " or ".join(filter(None, (", ".join(map(repr, options[:-1])), repr(options[-1]))))
    raise (ValueError if isinstance(value, str) else TypeError)(refusal(name, expected, value, did_you_mean(value, options)))


def real_type(name: str, value: DType | None) -> np.dtype:
    """A floating-point type, by default that of JAX."""
    if value is None:
        return jnp.result_type(float)
    try:
        found = jnp.dtype(value)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise TypeError(refusal(name, "a floating-point type such as jnp.float32", value))
    return found


def folder(name: str, value: object) -> pathlib.Path:
    """A place on the disk."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(refusal(name, "a path on the disk", value, f'give {name}="somewhere"'))
    return pathlib.Path(value)


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """`did you mean 'Softmax'?`, or nothing if no name is close."""
    lower = {known.lower(): known for known in names if not known.startswith("_")}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6) if isinstance(name, str) else []
    return f"did you mean {lower[close[0]]!r}?" if close else ""


def no_attribute(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """The error of a name that a module does not have."""
    cure = "" if name.startswith("_") else did_you_mean(name, names)
    return AttributeError(f"{module} has no {name!r}{'; ' if cure else ''}{cure}", name=name)


def warn(message: str) -> None:
    """A warning that points to the line of the user, however deep in the library it is found."""
    frame, level = sys._getframe(1), 2
    while frame is not None and _package(frame) in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Around a call that is compiled: an error of this library that is raised inside it comes out without the frames of the compiler."""
    try:
        yield
    except (TypeError, ValueError) as error:
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        if last is None or _package(last.tb_frame) != "attnflow":
            raise
        plain = type(error)(*error.args)
    else:
        return
    raise plain from None


def _is_key(value: jax.Array | np.ndarray) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _package(frame: FrameType) -> str:
    """The package whose code a frame runs."""
    return str(frame.f_globals.get("__name__", "")).split(".")[0]


def _how_to_make(name: str, value: object, types: type | tuple[type, ...] | None = None) -> str:
    """How to make the object that a string or a class stands for; without `types`, one that is a function or a field."""
    found = _public(value) if isinstance(value, str) else value
    if not isinstance(found, type) or (types is not None and not issubclass(found, types)):
        return ""
    if isinstance(value, str) and types is None and not any("__call__" in vars(c) or "at" in vars(c) for c in found.__mro__[:-1]):
        return ""
    return f"give {name}={_call(found)}"


def _public(word: str) -> object:
    """The public object whose name is closest to a word, in upper or lower case."""
    # The package imports its rooms, so that this module cannot import the package.
    package = sys.modules["attnflow"]
    names = {name.lower(): name for name in package.__all__}
    close = difflib.get_close_matches(word.lower().replace("_", "").replace(" ", ""), names, n=1, cutoff=0.8)
    return getattr(package, names[close[0]]) if close else None


def _call(cls: type) -> str:
    """The call that makes an object of a class, with the arguments that it needs."""
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    needed = ", ".join(p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    home = cls.__module__.split(".")[0]
    return f"{'af' if home == 'attnflow' else home}.{cls.__name__}({needed})"


def _how_to_get_a_measure(value: object) -> str:
    """How to get a measure from what was given instead."""
    if isinstance(value, type):
        return f"give an object, {_call(value)}" if hasattr(value, "integrate") else ""
    if isinstance(value, jax.Array | np.ndarray | list):
        with contextlib.suppress(TypeError, ValueError):
            if np.ndim(value) == 2:  # pyright: ignore[reportArgumentType]
                return "make tokens of the rows, af.Particles(points)"
        return ""
    if hasattr(value, "final") and hasattr(value, "measure"):
        return "give one of its measures, such as path.final"
    if callable(getattr(value, "sample", None)):
        return "draw tokens with .sample(n, key=key)"
    return "the measure comes after the law" if callable(getattr(value, "at", None)) else ""
