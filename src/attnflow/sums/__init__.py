"""How kernel sums are evaluated: one primitive over queries, keys and weights, that every law, bridge and energy calls."""

from attnflow.sums.atoms import Atoms as Atoms
from attnflow.sums.base import Engine as Engine
from attnflow.sums.choose import automatic as automatic
from attnflow.sums.choose import choose as choose
from attnflow.sums.engine import Dense as Dense
from attnflow.sums.engine import Streamed as Streamed
from attnflow.sums.kernel import accuracy as accuracy
from attnflow.sums.kernel import average as average
from attnflow.sums.kernel import fitted as fitted
from attnflow.sums.kernel import log_integral as log_integral
from attnflow.sums.kernel import nearest_average as nearest_average
from attnflow.sums.kernel import pointwise_average as pointwise_average
from attnflow.sums.kernel import top_keys as top_keys
from attnflow.sums.kernel import visible_logits as visible_logits
from attnflow.sums.logit import Logit as Logit
from attnflow.sums.logit import dot_product as dot_product
from attnflow.sums.logit import squared_distance as squared_distance
from attnflow.sums.mask import ALiBi as ALiBi
from attnflow.sums.mask import Causal as Causal
from attnflow.sums.mask import Explicit as Explicit
from attnflow.sums.mask import Mask as Mask
from attnflow.sums.mask import Window as Window
from attnflow.sums.plan import Spectral as Spectral
from attnflow.sums.plan import fill_of as fill_of
from attnflow.sums.plan import merged as merged
from attnflow.sums.spectral import Transform as Transform
