"""Optimizers, gradient clipping, learning-rate schedules.

    optimizer     the base class of all optimizers
    sgd, adam     update the parameters by the formulas of SGD, Adam and AdamW
    rmsprop, adagrad, adadelta, muon   update the parameters by other formulas
    lars, lamb    for large batches: the length of a step depends on the layer. layerwise.py has
                  their common part
    lbfgs         estimates the curvature
    master        float32 copies of 2-byte weights
    clip          limits the norm of all gradients
    ema           an average of the weights
    lr_scheduler  computes the learning rate from the number of the step
    plateau       lowers the learning rate if the loss does not fall any longer
    scaling       the learning rate for a larger batch
    over_ranks    one norm for all ranks that hold shards, and one decision to skip a step
"""

from minidl.optim import lr_scheduler
from minidl.optim.adadelta import Adadelta
from minidl.optim.adagrad import Adagrad
from minidl.optim.adam import Adam, AdamW
from minidl.optim.clip import clip_grad_norm_, clip_grad_value_, grad_norm
from minidl.optim.ema import EMA
from minidl.optim.lamb import LAMB
from minidl.optim.lars import LARS
from minidl.optim.layerwise import groups_by_ndim
from minidl.optim.lbfgs import LBFGS
from minidl.optim.master import use_master_weights
from minidl.optim.muon import Muon
from minidl.optim.optimizer import Optimizer
from minidl.optim.rmsprop import RMSprop
from minidl.optim.scaling import scaled_rate, warmed_up
from minidl.optim.sgd import SGD
