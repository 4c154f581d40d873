"""Layers and models, by PyTorch's names.

    module        Module and Parameter: names, state, modes, hooks
    containers    chains, lists and dicts of modules
    layers        linear, embedding, dropout, activations
    conv          convolution, pooling, resizing
    norm          normalisations
    transformer   attention, and the block of a transformer
    transformer_encoder, transformer_decoder   the two halves of the model of Vaswani et al. 2017
    recurrent     RNN, LSTM, GRU
    cells         one step of a recurrent layer: RNNCell, LSTMCell, GRUCell
    models        MLP, CNN, GPT
    llama         the Llama model
    moe           mixture of experts
    lora          fine-tuning with few trained parameters
    loss          losses as modules
    delayed       losses for labels that come late
    init          initial values
    functional    the ops that layers use
    utils         parameters as one vector, gradient clipping, padded sequences

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
    if name == "SyncBatchNorm":  # imported on first use, because minidl.parallel imports nn
        return import_module("minidl.parallel.data.sync_batchnorm").SyncBatchNorm
    raise AttributeError(f"module 'minidl.nn' has no attribute {name!r}", name=name,
                         obj=sys.modules[__name__])


def __dir__():
    return sorted({*globals(), "SyncBatchNorm"})
