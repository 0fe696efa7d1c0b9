"""`:activations`: what hooks on layers see of each image: inputs, outputs and gradients."""
