"""Layers and models, by PyTorch's names.

    module       Module, Parameter: names, state, modes, hooks      norm         normalisations
    layers       linear, embedding, dropout, activations, lists     transformer  attention, block
    conv         convolution and pooling                            models       MLP, CNN, GPT
    init         initial values         functional   the ops        loss         criteria
"""

from minidl.nn import functional, init
from minidl.nn.conv import AdaptiveAvgPool2d, AvgPool2d, Conv1d, Conv2d, MaxPool2d
from minidl.nn.layers import (
    ELU, GELU, Dropout, Embedding, Flatten, Identity, LeakyReLU, Linear, ModuleList, ReLU,
    Sequential, Sigmoid, SiLU, Softmax, Softplus, Tanh,
)
from minidl.nn.loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from minidl.nn.models import CNN, GPT, MLP
from minidl.nn.module import Module, Parameter
from minidl.nn.norm import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from minidl.nn.transformer import (
    CausalSelfAttention, FeedForward, MultiheadAttention, TransformerBlock,
)
