"""Other people's environments behind Gymnasium's interface, one module each; each needs its extra."""
