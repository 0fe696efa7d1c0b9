"""What hooks on layers see: activations and gradients, feature maps, and concepts."""
