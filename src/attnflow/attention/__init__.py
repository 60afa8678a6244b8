"""The velocity: a law is a logit, a normalisation and a value; heads are averaged."""

from attnflow.attention.closure import closure_residual as closure_residual
from attnflow.attention.field import Field as Field
from attnflow.attention.heads import MultiHead as MultiHead
from attnflow.attention.law import Attention as Attention
from attnflow.attention.law import Law as Law
from attnflow.attention.law import simple_attention as simple_attention
from attnflow.attention.normalisations import Hardmax as Hardmax
from attnflow.attention.normalisations import Linear as Linear
from attnflow.attention.normalisations import Normalisation as Normalisation
from attnflow.attention.normalisations import Sigmoid as Sigmoid
from attnflow.attention.normalisations import Sinkhorn as Sinkhorn
from attnflow.attention.normalisations import Softmax as Softmax
from attnflow.attention.normalisations import Unnormalized as Unnormalized
