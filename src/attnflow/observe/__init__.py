"""What to look at along a path."""

from attnflow.observe.density import entropy as entropy
from attnflow.observe.density import log_density as log_density
from attnflow.observe.energy import energy as energy
from attnflow.observe.stability import growth_rates as growth_rates
