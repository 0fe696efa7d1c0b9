"""Evidence layers: the reasons of a model one after the other, on the fixed model."""
