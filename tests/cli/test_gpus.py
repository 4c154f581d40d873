"""Each rank of a machine sees one GPU, in turn."""

import pytest

from minidl.cli.gpus import local_rank, own_gpu
from tests.mpi.launch import mpiexec

NAMES = [("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
         ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"), ("SLURM_LOCALID", "UNTOLD")]


@pytest.fixture
def dev(tmp_path):
    """A folder like /dev of a machine with 3 GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("rank, size", NAMES)
def test_ranks_take_turns(rank, size, dev):
    seen = [own_gpu({rank: str(i), size: "5"}, dev) for i in range(5)]
    assert seen == [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in "01201"]


def test_of_those_that_are_dealt_out_already(dev):
    mine = {"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    assert own_gpu(mine | {"CUDA_VISIBLE_DEVICES": "5,7"}, dev) == {"CUDA_VISIBLE_DEVICES": "7"}
    assert own_gpu(mine | {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, dev) == {
        "CUDA_VISIBLE_DEVICES": "GPU-b"}
    for nothing_to_deal in ("", "5", "-1"):
        assert own_gpu(mine | {"CUDA_VISIBLE_DEVICES": nothing_to_deal}, dev) == {}


def test_left_alone_where_there_is_nothing_to_choose(dev, tmp_path):
    assert own_gpu({}, dev) == {} and local_rank({}) is None
    assert own_gpu({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, dev) == {}  # sees all
    assert own_gpu({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, tmp_path / "none") == {}


@pytest.mark.mpi
def test_a_started_rank_sees_its_own(tmp_path, monkeypatch):
    script = tmp_path / "which.py"
    script.write_text("import os; print('gpu', os.environ['CUDA_VISIBLE_DEVICES'])\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    done = mpiexec(3, "-m", "minidl.cli.rank", script, timeout=60, check=True)
    assert sorted(done.stdout.split("\n")[:-1]) == ["gpu 4", "gpu 4", "gpu 6"]
