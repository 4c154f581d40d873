"""Calls that users write: the type that a type checker must find for each, and wrong calls.

At least two spaces separate a call from its type. Used by: typecheck.py, test_hints.py
"""

BEFORE = """import minidl
import numpy as np
from minidl import comm, data, nn, optim, parallel
from minidl.nn import functional as F
x, k = minidl.ones(2, 3), minidl.arange(3)
a = np.ones(3)
t = comm.world()
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
optimizer = optim.AdamW(model.parameters(), lr=1e-3)
schedule = optim.lr_scheduler.StepLR(optimizer, 10)
copies = parallel.DataParallel(model, t)
shards = parallel.Zero1(model, t)


@minidl.fuse
def gate(x, y):
    return x.sigmoid() * y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)

    def forward(self, x, twice=False):
        y = self.first(x).relu()
        return y, twice


class Double(minidl.Function):
    def forward(self, x):
        return 2 * x

    def backward(self, gy):
        return 2 * gy
"""
TYPES = """
x.sum()                                             Tensor
x.max(1)                                            MaxResult
x.shape                                             tuple[int, ...]
x.size(0)                                           int
x.numpy()                                           ndarray
x.backward()                                        None
x.split(1)                                          tuple[Tensor, ...]
x.grad                                              Tensor
minidl.zeros(2, 3, dtype="float16")                 Tensor
minidl.randn((2, 3), generator=minidl.Generator(7))  Tensor
minidl.zeros_like(x)                                Tensor
minidl.grad(x.sum(), [x])                           tuple[Tensor | None, ...]
minidl.is_grad_enabled()                            bool
minidl.manual_seed(1)                               Generator
minidl.save({"x": x}, "x.safetensors")              None
minidl.fuse(gate)(x, x)                             Tensor
gate.source                                         str
minidl.kernel("add3.cu", "add3")                    Kernel
Double.apply(x)                                     Tensor
nn.Linear(3, 4)(x)                                  Tensor
nn.CrossEntropyLoss()(x, k)                         Tensor
nn.MultiheadAttention(4, 2)(x, x, x)                tuple[Tensor, Tensor | None]
nn.LSTMCell(3, 4)(x, (x, x))                        tuple[Tensor, Tensor]
nn.Conv2d(1, 8, (3, 3), padding="same").weight      Parameter
nn.MLP(3, 4, activation=nn.Tanh)                    Sequential
Net()(x, twice=True)                                tuple[Tensor, bool]
Net().to("cuda", np.float16).train()                Net
model.state_dict()                                  dict[str, Tensor]
model.named_parameters()                            Iterator[tuple[str, Parameter]]
model.load_state_dict({}, strict=False)             Loaded
nn.init.zeros_(x)                                   Tensor
F.softmax(x, 1)                                     Tensor
optimizer.zero_grad()                               None
optimizer.state_dict()                              dict[str, Any]
optim.clip_grad_norm_(model.parameters(), 1.0)      Tensor
schedule.get_last_lr()                              list[float]
t                                                   Transport
t.rank                                              int
t.recv(a, 0)                                        ndarray
comm.ring.all_reduce(t, a)                          ndarray
comm.ring.all_reduce(t, x, op=np.maximum)           Tensor
comm.ring.all_reduce(t, x, wait=False)              Job
comm.tree.reduce(t, x)                              Tensor | None
comm.ring.bytes_sent(10, 4, 4, 0)                   int
comm.objects.gather(t, "text")                      list[Any] | None
comm.simulate(4, comm.tree.barrier)                 list[Any]
comm.Grid(t, dp=2, tp=2).coordinates(3)             dict[str, int]
copies.bytes_sent()                                 int
copies.state_dict()                                 dict[str, Tensor]
shards.shards()                                     list[Tensor]
shards.grad_norm()                                  float
"""
WRONG = """
optim.SGD(model.parameters(), lr="0.1")
optim.Adam(model, 1e-3)
optim.lr_scheduler.StepLR(1e-3, 10)
nn.Linear(3, "4")
nn.Linear(3, 4)([1.0, 2.0, 3.0])
nn.Linear(3, 4)(x, x)
nn.Linear(3, 4, device="cuda")
Net()(x, twise=True)
nn.Sequential([nn.Linear(3, 4)])
nn.Dropout("half")
minidl.zeros("two")
minidl.full((2, 3), "one")
comm.ring.all_reduce(t, [1.0, 2.0])
comm.ring.all_reduce(x, t)
comm.ring.all_reduce(t, x, wait_=False)
comm.tree.broadcast(t, x, root="0")
comm.simulate("4", comm.tree.barrier)
parallel.DataParallel(t, model)
parallel.Zero3(model)
model.load_state_dict([1, 2])
"""
