"""Optimizers, gradient clipping, learning-rate schedules.

    optimizer   groups, state, the step       master         float32 copies of 2-byte weights
    sgd, adam   the update of one parameter   clip           limits the norm of all gradients
    lbfgs       estimates the curvature       ema            an average of the weights
    layerwise   lars, lamb: large batches     plateau        lowers the rate if the loss does not
                                                             fall any longer
    rmsprop, adagrad, adadelta, muon: the update of one parameter, by other formulas
    lr_scheduler: the learning rate as a formula of the step
    scaling     the learning rate for a larger batch
    over_ranks  one norm, and one decision to skip a step, for all ranks that hold shards
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
