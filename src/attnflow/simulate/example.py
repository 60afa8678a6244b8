"""The example that `attnflow spec` prints: a file that runs, with every key and what else it may be."""

EXAMPLE = """# A simulation for attnflow: attnflow simulate THIS.toml --out FOLDER
# Keys that are left out have the values shown here, but for those marked as needed.
# A key that nothing would read is refused: those of other choices are commented out.

seed = 0                      # the same seed gives the same numbers

[measure]                     # needed
picture = "particles"         # needed: particles, gaussian or grid
n = 256                       # how many tokens
dim = 3                       # of R^dim
space = "sphere"              # sphere or euclidean
start = "uniform"             # on the sphere: uniform, hemisphere or orthonormal
                              # in R^d: normal, ball or cube
# scale = 1.0                 # standard deviation, radius, half the side of these
# order = "position"          # for masks: position 0, 1, ..., n - 1, or
                              # fraction: from 0 to 1
# file = "points.npy"         # tokens [n, dim], in place of n, dim, start and scale

# [measure]                   # a Gaussian
# picture = "gaussian"
# mean = [1.0, 0.0]           # needed
# cov = [[1.0, 0.3], [0.3, 0.5]]  # needed

# [measure]                   # a density
# picture = "grid"
# domain = "circle"           # circle, interval or square
# cells = 512                 # along each side
# mode = 1                    # circle: 1 + amplitude cos(mode angle)
# amplitude = 0.01
# # half_width = 5.0          # interval and square: from -half_width to half_width
# # deviation = 1.0           # the standard deviation of the normal density

[law]                         # needed; for several heads, as many [[law]] tables
logit = "dot_product"         # <Qx, Ky> / temperature, or
                              # squared_distance: -|Qx - Ky|^2 / temperature
temperature = 0.111           # 1 / beta; 1.0 if left out
query = 1.0                   # a number times the identity, a matrix [[...], ...],
                              # or gaussian, goe, wigner: drawn at random
key = 1.0
value = 1.0
normalization = "softmax"     # softmax, sinkhorn, unnormalized, hardmax, sigmoid,
                              # linear, sparsemax
mask = "none"                 # none, causal, window or alibi
# width = 16                  # needed by window: so many tokens, itself the last
# slope = 0.1                 # needed by alibi: how much the logit falls per token
hidden = 0                    # width of a random perceptron after it; 0 for none

[time]                        # needed
t1 = 15.0                     # needed: the end
t0 = 0.0
frames = 100                  # how many states are kept
spacing = "even"              # even, or log: even in log(1 + t - t0)
# rtol = 1e-7                 # tolerances of the steps
# atol = 1e-9
# noise = 0.5                 # sigma: the McKean-Vlasov equation
until = "never"               # never, steady or consensus: when to stop early
max_steps = 100_000

[output]
observe = ["energy", "clusters"]  # [] if left out; energy, clusters, order,
                              # effective_rank, attention_entropy
radius = 0.2                  # of clusters
movie = true                  # of tokens in up to three dimensions
"""
