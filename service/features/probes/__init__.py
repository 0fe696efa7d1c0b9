"""Probes at a port of their own: `/healthz`, `/readyz` and `/metrics`."""
