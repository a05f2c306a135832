"""devhost: a configuration-driven Kubernetes device plugin host."""

__version__ = "0.1.0"
