"""What is known of a model without torch: its entry, labels, preprocessing and layers."""
