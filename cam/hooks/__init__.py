"""What runs inside a forward pass: hooks that collect activations and gradients, or change them."""
