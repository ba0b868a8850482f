"""Adapters from environments of other libraries to Gymnasium, one module each; each needs its extra."""
