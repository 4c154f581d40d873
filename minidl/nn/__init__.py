"""Layers and models, by PyTorch's names.

    module       Module, Parameter: names, state, modes, hooks      norm         normalisations
    layers       linear, embedding, dropout, activations            transformer  attention, block
    containers   chains, lists and dicts of modules                 transformer_encoder, _decoder
    conv         convolution, pooling, resizing                     recurrent    RNN, LSTM, GRU
    init         initial values         functional   the ops        models       MLP, CNN, GPT
    utils        parameters as one vector, padded sequences
    lora         fine-tuning            loss         losses as modules
    moe          mixture of experts     llama        another transformer
    delayed      losses for labels that come late
    cells        One step of a recurrent layer: RNNCell, LSTMCell, GRUCell
    transformer_decoder  PyTorch's decoder of Vaswani et al

SyncBatchNorm is in minidl/parallel/data/. It is imported on first use.
"""

import sys
from importlib import import_module

from minidl.nn import functional, init, utils
from minidl.nn.cells import GRUCell, LSTMCell, RNNCell
from minidl.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from minidl.nn.conv import (
    AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool2d, Conv1d, Conv2d, ConvTranspose1d,
    ConvTranspose2d, MaxPool1d, MaxPool2d, Upsample,
)
from minidl.nn.layers import (
    CELU, ELU, GELU, GLU, SELU, Dropout, Dropout2d, Embedding, EmbeddingBag, Flatten, Hardsigmoid,
    Hardswish, Hardtanh, Identity, LeakyReLU, Linear, LogSigmoid, LogSoftmax, Mish, PixelShuffle,
    PReLU, ReLU, ReLU6, Sigmoid, SiLU, Softmax, Softmin, Softplus, Softsign, Tanh, Threshold,
    Unflatten,
)
from minidl.nn.llama import Llama
from minidl.nn.lora import LoRALinear
from minidl.nn.loss import (
    BCELoss, BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss, NLLLoss,
    SmoothL1Loss, TripletMarginLoss,
)
from minidl.nn.models import CNN, GPT, MLP
from minidl.nn.module import Module, Parameter
from minidl.nn.moe import MoE
from minidl.nn.norm import (
    BatchNorm1d, BatchNorm2d, GroupNorm, InstanceNorm1d, InstanceNorm2d, LayerNorm, RMSNorm,
)
from minidl.nn.recurrent import GRU, LSTM, RNN
from minidl.nn.transformer import (
    CausalSelfAttention, FeedForward, MultiheadAttention, TransformerBlock,
)
from minidl.nn.transformer_decoder import Transformer, TransformerDecoder, TransformerDecoderLayer
from minidl.nn.transformer_encoder import TransformerEncoder, TransformerEncoderLayer


def __getattr__(name):
    if name == "SyncBatchNorm":  # imported here, because nn must not import minidl.parallel
        return import_module("minidl.parallel.data.sync_batchnorm").SyncBatchNorm
    raise AttributeError(f"module 'minidl.nn' has no attribute {name!r}", name=name,
                         obj=sys.modules[__name__])


def __dir__():
    return sorted({*globals(), "SyncBatchNorm"})
