"""Models as chains of layers: the paper's two models, a small CNN, and any torch module of the user.

A model can be cut between any two neighbouring layers.
"""

from hasfl.networks.catalogue import NETWORKS as NETWORKS
from hasfl.networks.catalogue import network as network
from hasfl.networks.cutting.chain import layered as layered
from hasfl.networks.cutting.shared_weights import untie as untie
from hasfl.networks.layered_model import LayeredModel as LayeredModel
from hasfl.networks.resnet import resnet18 as resnet18
from hasfl.networks.small_cnn import small_cnn as small_cnn
from hasfl.networks.vgg import vgg16 as vgg16
