"""What to look at along a path."""

from attnflow.observe.attention import attention_entropy as attention_entropy
from attnflow.observe.attention import attention_rank as attention_rank
from attnflow.observe.attention import leaders as leaders
from attnflow.observe.clusters import Clusters as Clusters
from attnflow.observe.clusters import clusters as clusters
from attnflow.observe.concentration import misalignment as misalignment
from attnflow.observe.density import entropy as entropy
from attnflow.observe.density import fisher_information as fisher_information
from attnflow.observe.density import log_density as log_density
from attnflow.observe.energy import dissipation as dissipation
from attnflow.observe.energy import energy as energy
from attnflow.observe.hemisphere import in_hemisphere as in_hemisphere
from attnflow.observe.hemisphere import renyi_centers as renyi_centers
from attnflow.observe.limit_shape import Verdict as Verdict
from attnflow.observe.limit_shape import limit_shape as limit_shape
from attnflow.observe.lipschitz import linearization as linearization
from attnflow.observe.lipschitz import local_lipschitz as local_lipschitz
from attnflow.observe.lipschitz import lyapunov_exponents as lyapunov_exponents
from attnflow.observe.order import cosine_histogram as cosine_histogram
from attnflow.observe.order import effective_rank as effective_rank
from attnflow.observe.order import mean_cosine as mean_cosine
from attnflow.observe.order import order_parameter as order_parameter
from attnflow.observe.stability import growth_rates as growth_rates
