"""Continued pretraining: configuration, data, model and loop of `etude pretrain`."""
