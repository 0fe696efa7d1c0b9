"""The labels of ImageNet-1k."""

from __future__ import annotations

from timm.data import ImageNetInfo
from torchvision.models import ResNet18_Weights

from service.models.labels import Labels


def imagenet() -> Labels:
    """Return the labels of the 1000 classes of ImageNet-1k: torchvision's category names, with
    WordNet's synonyms.

    The synonyms also prevent mistakes: `crane` is a bird and a machine, so it is reported as
    ambiguous.
    """
    names = ResNet18_Weights.DEFAULT.meta["categories"]
    wordnet = ImageNetInfo()
    lemmas = [wordnet.index_to_description(index).split(", ") for index in range(len(names))]
    return Labels.of(names, lemmas)
