"""Optimizers, gradient clipping, learning-rate schedules."""

from minidl.optim import lr_scheduler
from minidl.optim.adam import Adam, AdamW
from minidl.optim.clip import clip_grad_norm_, clip_grad_value_, grad_norm
from minidl.optim.master import use_master_weights
from minidl.optim.optimizer import Optimizer
from minidl.optim.sgd import SGD
