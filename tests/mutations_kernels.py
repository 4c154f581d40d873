"""Planted bugs in the CUDA kernels, their launches, what runs and checks them. See mutations.py."""

MUTATIONS = []
