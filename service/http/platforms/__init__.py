"""Adapters of serving platforms' contracts to the routes of the service.

What a platform says with environment variables is in `service.core.platforms`. Azure ML and KServe
need no more than that: their contracts are addresses, and KServe's V1 and V2 are native.
"""
