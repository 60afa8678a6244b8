"""How logits become the kernel of an average. One file each, the same three members in the same order."""

from attnflow.attention.normalisations.base import Normalisation as Normalisation
from attnflow.attention.normalisations.hardmax import Hardmax as Hardmax
from attnflow.attention.normalisations.linear import Linear as Linear
from attnflow.attention.normalisations.sigmoid import Sigmoid as Sigmoid
from attnflow.attention.normalisations.sinkhorn import Sinkhorn as Sinkhorn
from attnflow.attention.normalisations.softmax import Softmax as Softmax
from attnflow.attention.normalisations.unnormalized import Unnormalized as Unnormalized
