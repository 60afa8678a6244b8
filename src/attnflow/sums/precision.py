"""The round-off of logits that are scalar products of rows."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from attnflow._check import warn
from attnflow.numerics.arrays import Numbers, array, known
from attnflow.sums.engines.base import Request
from attnflow.sums.logits.logit import Logit
from attnflow.sums.rows import Atoms, Pairs

# Above this the weights of attention are wrong in digits that a reader of float32 or float64 results relies on.
_LIMITS = {"float32": 1e-3, "float64": 1e-8}
_warned: set[str] = set()


def round_off(pairs: Pairs, sums: Request | None) -> dict[str, Any]:
    r"""The bound $u \max|q| \max|k|$ on the round-off of a logit, $u$ the unit round-off, and the limit above which users are
    warned; nothing where logits are computed from differences, whose round-off is relative."""
    asked = pairs.atoms.engine if sums is None else sums
    apart = pairs.logit.differences is not None and (asked is None or asked.differences)
    if apart or pairs.x.dtype.name not in _LIMITS:
        return {}
    given: Any = pairs.logit, pairs.x, pairs.order, pairs.atoms.points, pairs.atoms.order
    bound = _bound(*(jax.tree.map(np.asarray, given) if known(given) else jax.lax.stop_gradient(given)))
    return {"round_off": {"bound": array(bound, pairs.x.dtype), "limit": array(_LIMITS[pairs.x.dtype.name], pairs.x.dtype)}}


def warn_of_round_off(logit: Logit, atoms: Atoms, sums: Request | None) -> None:
    """Warn once if the logits between these tokens lose too many digits, where their values are known."""
    if not _warned and known(logit, atoms.points):
        warn_of_rough(round_off(Pairs(logit, atoms.points, atoms, atoms.order), sums))


def warn_of_rough(report: object) -> None:
    """Warn once if a report, which may be nested, has a bound above its limit."""
    if _warned or not isinstance(report, dict):
        return
    for name, part in report.items():
        if name != "round_off":
            warn_of_rough(part)
        elif not _warned and float(part["bound"]) > float(part["limit"]):
            _warned.add(name)
            single = float(part["limit"]) > 1e-5
            cure = 'use double precision, jax.config.update("jax_enable_x64", True), or scale' if single else "center or scale"
            warn(
                f"logits carry round-off of up to {float(part['bound']):.0e}, as scalar products of long rows do, and so do the weights of "
                f"attention; {cure} the tokens, or raise the temperature"
            )


def _bound(
    logit: Logit, x: Float[Numbers, "m d"], s: Float[Numbers, " m"] | None, y: Float[Numbers, "n d"], tau: Float[Numbers, " n"] | None
) -> Any:
    """`u max|q| max|k|` for the rows about the mean of the keys, for arrays of NumPy or of JAX."""
    c = y.mean(axis=0)
    (q, _), (k, _) = logit.queries(x, s, c), logit.keys(y, tau, c)
    return np.finfo(x.dtype).eps / 2 * ((q * q).sum(axis=1).max() * (k * k).sum(axis=1).max()) ** 0.5
