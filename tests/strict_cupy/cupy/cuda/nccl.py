"""cupy.cuda.nccl as of CuPy 14: the id is bytes. One rank alone is all it serves."""

available = True
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = range(4)
(NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64, NCCL_FLOAT16,
 NCCL_FLOAT32, NCCL_FLOAT64) = range(9)


def get_unique_id():
    return bytes(range(128))


def groupStart():
    pass


def groupEnd():
    pass


class NcclCommunicator:
    def __init__(self, ndev, commId, rank, config=None):
        if not isinstance(commId, bytes):
            raise TypeError("Argument 'commId' has incorrect type (expected bytes, got "
                            f"{type(commId).__name__})")
        if len(commId) != 128:
            raise ValueError(f"commId length {len(commId)} != 128.")
        self.ndev, self.rank = ndev, rank

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        pass

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream):
        pass

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        pass
