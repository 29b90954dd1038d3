//! The sampler against scripted models.
