"""The computing part: batches, worker threads, replicas of a model, and the loaded models."""
