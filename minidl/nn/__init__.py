"""Layers and models, by PyTorch's names.

    module       Module, Parameter: names, state, modes, hooks      norm         normalisations
    layers       linear, embedding, dropout, activations            transformer  attention, block
    containers   chains, lists and dicts of modules                 transformer_encoder  PyTorch's
    conv         convolution, pooling, resizing                     recurrent    RNN, LSTM, GRU
    init         initial values         functional   the ops        models       MLP, CNN, GPT
    lora         fine-tuning            loss         criteria
    moe          mixture of experts     llama        another transformer
    delayed      losses for labels that come late

SyncBatchNorm is in minidl/parallel/data/, and comes when it is asked for.
"""

from importlib import import_module

from minidl.nn import functional, init
from minidl.nn.containers import ModuleDict, ModuleList, ParameterList, Sequential
from minidl.nn.conv import (
    AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool2d, Conv1d, Conv2d, ConvTranspose1d,
    ConvTranspose2d, MaxPool1d, MaxPool2d, Upsample,
)
from minidl.nn.layers import (
    ELU, GELU, GLU, SELU, Dropout, Embedding, EmbeddingBag, Flatten, Identity, LeakyReLU, Linear,
    Mish, PReLU, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh,
)
from minidl.nn.llama import Llama
from minidl.nn.lora import LoRALinear
from minidl.nn.loss import (
    BCELoss, BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss, NLLLoss,
    SmoothL1Loss,
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
from minidl.nn.transformer_encoder import TransformerEncoder, TransformerEncoderLayer
from minidl.ops.extra.elsewhere import no_such_name as _no_such_name

# PyTorch's layers that are not here, and what to use.
_INSTEAD = {
    "BatchNorm3d InstanceNorm3d": "the 2d form on x.flatten(2, 3)", "Buffer": "register_buffer",
    "Conv3d ConvTranspose3d MaxPool3d AvgPool3d": "the 2d form, slice by slice",
    "AvgPool1d AdaptiveAvgPool1d AdaptiveMaxPool1d": "the 2d form on x.unsqueeze(-2)",
    "DataParallel": "minidl.parallel.DataParallel",
    "Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout": "Dropout",
    "LogSoftmax": "functional.log_softmax", "Softmin": "Softmax of -x", "Softmax2d": "Softmax(1)",
    "LSTMCell": "LSTM on a sequence of one", "GRUCell": "GRU on a sequence of one",
    "RNNCell": "RNN on a sequence of one", "RNNBase RNNCellBase": "RNN, LSTM or GRU",
    "Transformer TransformerDecoder TransformerDecoderLayer":
        "TransformerEncoder with a mask, or GPT",
    "ParameterDict": "ParameterList, or register_parameter", "CELU RReLU": "ELU or LeakyReLU",
    "Hardtanh ReLU6 Hardsigmoid Hardswish": "clamp in forward", "LogSigmoid": "Softplus: -F(-x)",
    "Softsign Tanhshrink Softshrink Hardshrink Threshold": "its formula in forward, by where",
    "CosineSimilarity": "functional.cosine_similarity",
    "PairwiseDistance": "functional.pairwise_distance",
    "ConstantPad1d ConstantPad2d ZeroPad1d ZeroPad2d": "functional.pad",
    "ReflectionPad1d ReflectionPad2d ReplicationPad1d ReplicationPad2d CircularPad1d CircularPad2d":
        "functional.pad(..., mode=...)",
    "UpsamplingBilinear2d UpsamplingNearest2d": "Upsample(mode=...)", "Unflatten": "x.reshape",
    "LazyLinear": "Linear with its in_features", "NLLLoss2d": "NLLLoss",
    "PixelShuffle PixelUnshuffle ChannelShuffle": "reshape and permute in forward",
    "TripletMarginLoss TripletMarginWithDistanceLoss CosineEmbeddingLoss MarginRankingLoss "
    "HingeEmbeddingLoss SoftMarginLoss MultiMarginLoss PoissonNLLLoss GaussianNLLLoss":
        "its formula in your loss function, of the ops",
    "utils": "optim.clip_grad_norm_, or minidl.parallel", "parallel": "minidl.parallel",
}
_ADVICE = {name: instead for names, instead in _INSTEAD.items() for name in names.split()}


def __getattr__(name):
    if name == "SyncBatchNorm":  # it joins tensors to a transport, and nn knows no ranks
        return import_module("minidl.parallel.data.sync_batchnorm").SyncBatchNorm
    raise _no_such_name("minidl.nn", name, globals(), _ADVICE, "minidl/nn/__init__.py")
