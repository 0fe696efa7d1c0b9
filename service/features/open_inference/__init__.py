"""The Open Inference Protocol (V2), as Triton, KServe, MLServer and Seldon speak it."""
